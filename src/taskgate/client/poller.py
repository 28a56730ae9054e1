"""A scheduler for everything that a session polls: a heap of due times, one timer, and a few workers.

Each watched object has an `async tick()` that returns the seconds until its next call, or None when it is done. Ten
thousand objects cost one timer and at most `concurrency` asyncio tasks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from math import ceil
from typing import Protocol

from taskgate import clock
from taskgate.client.poll_delays import GREATEST_INTERVAL

# Above MANY_WATCHED watched objects, turns within MOMENT seconds share one timer.
MANY_WATCHED, MOMENT = 500, 0.05
_log = logging.getLogger("taskgate.client")


class Watched(Protocol):
    """An object that is polled."""

    async def tick(self) -> float | None: ...


class Poller:
    """Calls `tick` of each watched object when it is due."""

    def __init__(self, concurrency: int = 32) -> None:
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._heap: list[tuple[float, int, Watched]] = []
        self._current: dict[Watched, int] = {}
        self._numbers = itertools.count(1)
        self._ready: deque[tuple[int, Watched]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def __len__(self) -> int:
        return len(self._current)

    def watch(self, watched: Watched, delay: float) -> None:
        """Schedule `watched` after `delay` seconds, replacing its earlier schedule."""
        number = next(self._numbers)
        self._current[watched] = number
        due = clock.monotonic() + delay
        heapq.heappush(self._heap, (due, number, watched))
        self._drop_void_entries()
        if self._timer is None or due < self._timer_due:
            self._arm(due)

    def forget(self, watched: Watched) -> None:
        self._current.pop(watched, None)

    async def close(self) -> None:
        self._current.clear()
        if self._timer is not None:
            self._timer.cancel()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if len(self._current) > MANY_WATCHED:
            due = ceil(due / MOMENT) * MOMENT
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, number, watched = heapq.heappop(self._heap)
            if self._current.get(watched) == number:
                self._ready.append((number, watched))
        for _ in range(min(len(self._ready), self._concurrency - len(self._workers))):
            worker = asyncio.create_task(self._work(), name="taskgate-client-poller")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if self._heap:
            self._arm(self._heap[0][0])

    async def _work(self) -> None:
        while self._ready:
            number, watched = self._ready.popleft()
            if self._current.get(watched) != number:
                continue
            try:
                delay = await watched.tick()
            except Exception:  # around one call: an error must not stop the other objects
                _log.exception("a poll failed")
                delay = GREATEST_INTERVAL
            if self._current.get(watched) != number:
                continue  # removed or rescheduled meanwhile
            if delay is None:
                self.forget(watched)
            else:
                self.watch(watched, delay)

    def _drop_void_entries(self) -> None:
        """Remove outdated entries when they outnumber the watched objects."""
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
