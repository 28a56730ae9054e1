"""One scheduler for everything a session has to look at again: a heap of due times, one timer, a few workers.

It knows when, not what: each watched thing has an `async tick()` that returns the seconds until its next turn, or
None when it needs no more. Ten thousand things cost one timer and at most `concurrency` asyncio tasks. Owned by
the session.

How long to put up with failing polls of one task, and how long to wait between them.

Counts failures in a row; says either how many seconds to wait or with which error to give the task up. Used by the
task handle.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections import deque
from math import ceil
from typing import Protocol

from taskgate import clock
from taskgate.client.errors import ClientError, InvalidReply, ServerError, ServerUnreachable, Unauthorized
from taskgate.client.options import Options

LEAST_INTERVAL, GREATEST_INTERVAL = 0.25, 60.0
# With so many things watched, turns that are due within the same moment (seconds) are taken together: one timer instead of
# a thousand a second.
CROWD, MOMENT = 500, 0.05
_log = logging.getLogger("taskgate.client")


class Watched(Protocol):
    """Something that wants turns."""

    async def tick(self) -> float | None: ...


class Poller:
    """Gives each watched thing its turns."""

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

    def watch(self, thing: Watched, delay: float) -> None:
        """Give `thing` a turn after `delay` seconds; an earlier appointment of the same thing is void."""
        number = next(self._numbers)
        self._current[thing] = number
        due = clock.monotonic() + delay
        heapq.heappush(self._heap, (due, number, thing))
        self._drop_void_entries()
        if self._timer is None or due < self._timer_due:
            self._arm(due)

    def forget(self, thing: Watched) -> None:
        self._current.pop(thing, None)

    def is_watching(self, thing: Watched) -> bool:
        return thing in self._current

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
        if len(self._current) > CROWD:
            due = ceil(due / MOMENT) * MOMENT
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, number, thing = heapq.heappop(self._heap)
            if self._current.get(thing) == number:
                self._ready.append((number, thing))
        for _ in range(min(len(self._ready), self._concurrency - len(self._workers))):
            worker = asyncio.create_task(self._work(), name="taskgate-client-poller")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if self._heap:
            self._arm(self._heap[0][0])

    async def _work(self) -> None:
        while self._ready:
            number, thing = self._ready.popleft()
            if self._current.get(thing) != number:
                continue
            try:
                delay = await thing.tick()
            except Exception:  # around one turn: one broken thing must not stop the others
                _log.exception("a turn of the poller failed")
                delay = GREATEST_INTERVAL
            if self._current.get(thing) != number:
                continue  # forgotten, or given another appointment meanwhile
            if delay is None:
                self.forget(thing)
            else:
                self.watch(thing, delay)

    def _drop_void_entries(self) -> None:
        """Hurried and forgotten things leave entries behind; keep the heap in proportion to what is watched."""
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)


def next_delay(interval_ms: int | None, default: float, *, pushed: bool = False) -> float:
    """Seconds until the next look at a task: what the server asked for, within bounds, a little spread out.

    The spread only ever lengthens the wait, because polling faster than asked is impolite. Where the server pushes its
    status by itself (`pushed`) only a slow safety poll stays.
    """
    interval = default if interval_ms is None else interval_ms / 1000
    interval = min(max(interval, LEAST_INTERVAL), GREATEST_INTERVAL)
    if pushed:
        interval = min(interval * 3, GREATEST_INTERVAL)
    return interval * random.uniform(1.0, 1.1)


def back_off(interval: float, failures: int, retry_after: float | None) -> float:
    """Seconds until the next try after `failures` failures in a row."""
    grown = min(interval * 2.0 ** min(failures, 10), GREATEST_INTERVAL) * random.uniform(0.8, 1.2)
    return max(grown, retry_after or 0.0)


# A reply that makes no sense is asked for again this often: it may have been a passing proxy, it may be a liar.
RUBBISH_LIMIT = 3
_HOPELESS = (-32601, -32021)


class Patience:
    """What has gone wrong lately with one task."""

    __slots__ = ("_failures", "_options", "_rubbish", "_since")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = self._rubbish = 0
        self._since = 0.0

    def restored(self) -> None:
        """A poll went well."""
        self._failures = self._rubbish = 0

    def after(self, error: ClientError, task_id: str, poll_interval: int | None) -> float | ClientError:
        """Seconds until the next try, or the error that ends the trying."""
        if isinstance(error, Unauthorized) or (isinstance(error, ServerError) and error.code in _HOPELESS):
            return error
        if isinstance(error, InvalidReply):
            self._rubbish += 1
            if self._rubbish >= RUBBISH_LIMIT:
                return error
        now, limit = clock.monotonic(), self._options.give_up_after
        self._since = self._since if self._failures else now
        self._failures += 1
        if now - self._since >= limit:
            return ServerUnreachable(task_id, f"no word about task {task_id} for {limit:g} s: {error}")
        interval = next_delay(poll_interval, self._options.default_poll_interval)
        wait = back_off(interval, self._failures, getattr(error, "retry_after", None))
        return min(wait, max(1.0, limit / 4))
