"""Delete expired records in small portions, without delaying calls.

A portion is one short write that shares its commit with concurrent calls. For each kind of row there is one portion every
`PORTION_EVERY_S`. If commits take long, because the store or the machine is busy, several portions run together, up to
`MAX_PORTIONS`, so that retention does not fall behind. While rows expire as fast as new ones are written, it runs continuously;
otherwise every `tasks.sweep_interval_ms`.

All kinds together use at most `CPU_SHARE` of the time of one processor, however many rows expire at once: the rest is left to
calls. If the event loop resumes them late, so that calls wait as well, it is this share of what the whole gateway uses: on a busy
machine a tenth of a processor may be most of what the gateway gets. If they have worked for longer than `RAISED_AFTER_S` without an
end, rows expire faster than that, and the share is doubled, up to twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from taskgate import clock
from taskgate.telemetry.logs import log

PORTION_EVERY_S: Final = 0.016
SHORTEST_PAUSE_S: Final = 0.005
SHORTEST_SLEEP_S: Final = 0.001
MAX_PORTIONS: Final = 16
CPU_SHARE: Final = 0.1
"""Measured in the operations; what the commits of these rows take in the store's threads is not in it."""
LATE_S: Final = 0.002
LEAST_PART: Final = 0.2
"""Of the elapsed time that counts while the loop is late: an idle gateway on a busy machine still deletes."""
RAISED_AFTER_S: Final = 60.0
MAX_RAISES: Final = 2
LEFTOVERS_EVERY_S: Final = 3_600.0

Portions = Callable[[int], Awaitable[bool]]
"""Deletes up to this many portions. Returns whether more may remain."""


class _Budget:
    """When the CPU time that deletion has used is paid for."""

    def __init__(self, spent_s: Callable[[], float]) -> None:
        self._spent_s = spent_s
        self._charged_s = spent_s()
        self._at, self._process_at = clock.monotonic(), time.process_time()
        self._now = self._paid_at = 0.0
        self._is_late = False
        self._working = 0
        self._since = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around the work on one kind, until none of its rows is left."""
        if self._working == 0:
            self._since = clock.monotonic()
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1

    @property
    def _share(self) -> float:
        raises = min(MAX_RAISES, int((clock.monotonic() - self._since) / RAISED_AFTER_S))
        return CPU_SHARE * (1 << raises)

    def now(self) -> float:
        """The time of which deletion may use its share: all time, or while the loop is late what the gateway has used of it."""
        at, process_at = clock.monotonic(), time.process_time()
        elapsed, used = at - self._at, process_at - self._process_at
        self._now += min(elapsed, max(used, elapsed * LEAST_PART)) if self._is_late else elapsed
        self._at, self._process_at = at, process_at
        return self._now

    async def sleep_until(self, end: float) -> None:
        """Return when `now` is `end`."""
        while (seconds := end - self.now()) > 0:
            due = clock.monotonic() + max(seconds, SHORTEST_SLEEP_S)
            await clock.sleep(due - clock.monotonic())
            self._is_late = clock.monotonic() - due > LATE_S

    def charge(self, began: float) -> float:
        """Charge what was used since the last call, by work that began then. Return how long to wait."""
        spent = self._spent_s()
        self._paid_at = max(self._paid_at, began) + (spent - self._charged_s) / self._share
        self._charged_s = spent
        return self._paid_at - self.now()


class Retention:
    def __init__(
        self,
        kinds: Sequence[Portions],
        leftovers: Callable[[], Awaitable[object]],
        every_s: Callable[[], float],
        spent_s: Callable[[], float],
    ) -> None:
        """`leftovers` deletes records that no index finds; it runs periodically. `spent_s` is the CPU time of deletion so far."""
        self._kinds = kinds
        self._budget = _Budget(spent_s)
        self._leftovers = leftovers
        self._every_s = every_s
        self._last_orphan_check = float("-inf")

    async def run(self) -> None:
        await asyncio.gather(*(self._run_periodically(kind) for kind in self._kinds), self._delete_orphans())

    async def catch_up(self) -> None:
        """Delete all kinds concurrently until none has more."""
        await asyncio.gather(*(self._delete_all_expired(kind) for kind in self._kinds))

    async def _run_periodically(self, kind: Portions) -> None:
        while True:
            await clock.sleep(self._every_s())
            await _guarded(self._delete_all_expired(kind))

    async def _delete_all_expired(self, kind: Portions) -> None:
        budget = self._budget
        count, began = 1, budget.now()
        with budget.working():
            while await kind(count):
                unpaid_s = budget.charge(began)
                took = budget.now() - began
                pause = max(SHORTEST_PAUSE_S, count * PORTION_EVERY_S - took)
                await budget.sleep_until(began + took + max(pause, unpaid_s))
                now = budget.now()
                # More at once only if it was the commit that took long, and not the work itself.
                behind = int((now - began) / PORTION_EVERY_S) if unpaid_s <= pause else 1
                count, began = min(max(1, behind), MAX_PORTIONS), now

    async def _delete_orphans(self) -> None:
        while True:
            await clock.sleep(self._every_s())
            if clock.monotonic() - self._last_orphan_check >= LEFTOVERS_EVERY_S:
                self._last_orphan_check = clock.monotonic()
                await _guarded(self._leftovers())


async def _guarded(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception as fault:  # one round of a background loop: the next rounds must run
        log.error("expired records could not be deleted; this is retried", exc_info=fault)
