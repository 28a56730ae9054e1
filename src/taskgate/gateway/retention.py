"""Forgets what is past its time, in small portions until nothing is left, beside the calls and without disturbing them.

A portion is one short write that shares its commit with the calls of that moment. After each there is a pause of half the time that
it took, so that not every commit has one. While rows become old as fast as new ones are written, it simply does not stop. Otherwise
it looks again every `tasks.sweep_interval_ms`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from taskgate import clock
from taskgate.telemetry.logs import log

SHORTEST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 1.0
LEFTOVERS_EVERY_S: Final = 3_600.0

Portion = Callable[[], Awaitable[bool]]
"""Forgets a portion; whether there may be more."""


class Retention:
    def __init__(
        self, portions: Sequence[Portion], leftovers: Callable[[], Awaitable[object]], every_s: Callable[[], float]
    ) -> None:
        """`leftovers`: what has no index to be found by, and is looked for now and then."""
        self._portions = portions
        self._leftovers = leftovers
        self._every_s = every_s
        self._looked = float("-inf")

    async def run(self) -> None:
        while True:
            await clock.sleep(self._every_s())
            try:
                await self.catch_up()
                if clock.monotonic() - self._looked >= LEFTOVERS_EVERY_S:
                    self._looked = clock.monotonic()
                    await self._leftovers()
            except (
                Exception
            ) as fault:  # one round of a background loop: without the next ones nothing would ever be forgotten
                log.error("what is past its time could not be forgotten; it will be tried again", exc_info=fault)

    async def catch_up(self) -> None:
        """A portion of each kind in turn, until none has more."""
        left = list(self._portions)
        while left:
            left = [portion for portion in left if await self._one(portion)]

    async def _one(self, portion: Portion) -> bool:
        began = clock.monotonic()
        more = await portion()
        if more:
            await clock.sleep(min(max((clock.monotonic() - began) / 2, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))
        return more
