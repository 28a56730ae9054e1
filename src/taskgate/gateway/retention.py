"""Delete expired records in small portions, without delaying calls.

A portion is one short write that shares its commit with concurrent calls. For each kind of row there is one portion every
`PORTION_EVERY_S`. If commits take long, because the store or the machine is busy, several portions run together, up to
`MAX_PORTIONS`, so that retention does not fall behind. While rows expire as fast as new ones are written, it runs continuously;
otherwise every `tasks.sweep_interval_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from taskgate import clock
from taskgate.telemetry.logs import log

PORTION_EVERY_S: Final = 0.016
SHORTEST_PAUSE_S: Final = 0.005
MAX_PORTIONS: Final = 16
LEFTOVERS_EVERY_S: Final = 3_600.0

Portions = Callable[[int], Awaitable[bool]]
"""Deletes up to this many portions. Returns whether more may remain."""


class Retention:
    def __init__(
        self, kinds: Sequence[Portions], leftovers: Callable[[], Awaitable[object]], every_s: Callable[[], float]
    ) -> None:
        """`leftovers` deletes records that no index finds; it runs periodically."""
        self._kinds = kinds
        self._leftovers = leftovers
        self._every_s = every_s
        self._last_orphan_check = float("-inf")

    async def run(self) -> None:
        await asyncio.gather(*(self._run_periodically(kind) for kind in self._kinds), self._delete_orphans())

    async def catch_up(self) -> None:
        """Delete all kinds concurrently until none has more."""
        await asyncio.gather(*(_delete_all_expired(kind) for kind in self._kinds))

    async def _run_periodically(self, kind: Portions) -> None:
        while True:
            await clock.sleep(self._every_s())
            await _guarded(_delete_all_expired(kind))

    async def _delete_orphans(self) -> None:
        while True:
            await clock.sleep(self._every_s())
            if clock.monotonic() - self._last_orphan_check >= LEFTOVERS_EVERY_S:
                self._last_orphan_check = clock.monotonic()
                await _guarded(self._leftovers())


async def _delete_all_expired(kind: Portions) -> None:
    count, began = 1, clock.monotonic()
    while await kind(count):
        took = clock.monotonic() - began
        await clock.sleep(max(SHORTEST_PAUSE_S, count * PORTION_EVERY_S - took))
        now = clock.monotonic()
        count, began = min(max(1, int((now - began) / PORTION_EVERY_S)), MAX_PORTIONS), now


async def _guarded(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception as fault:  # one round of a background loop: the next rounds must run
        log.error("expired records could not be deleted; this is retried", exc_info=fault)
