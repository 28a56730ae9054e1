"""One timer for all calls with the same maximum wait.

Calls with the same wait become due in the order of their arrival, so only the first one of a queue needs a timer. A timer per
call would cost more than most other work for the call.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Final, Protocol

from taskgate import clock

EARLY_S: Final = 0.002
"""Event loops round timers to a millisecond, so an entry that is due this soon is due now."""


class TimedEntry(Protocol):
    def due(self) -> None:
        """Called once, when the wait is over and the entry was not removed."""
        ...


class TimerQueue:
    """Entries with the same wait, oldest first."""

    __slots__ = ("_loop", "_scheduled", "_waiting", "wait_s")

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[TimedEntry, float] = {}
        """When each entry is due."""
        self._scheduled = False

    def join(self, entry: TimedEntry, now: float) -> None:
        self._waiting[entry] = now + self.wait_s
        if not self._scheduled:
            self._scheduled = True
            # A context of its own: it would inherit the trace of the request that happens to be the first.
            self._loop.call_later(self.wait_s, self._fire, context=Context())

    def leave(self, entry: TimedEntry) -> None:
        self._waiting.pop(entry, None)

    def _fire(self) -> None:
        now = clock.monotonic() + EARLY_S
        while self._waiting:
            entry, at = next(iter(self._waiting.items()))
            if at > now:
                self._loop.call_at(at, self._fire)
                return
            del self._waiting[entry]
            entry.due()
        self._scheduled = False


class SharedTimers:
    """One queue for each wait; there are as many as delivery modes."""

    def __init__(self) -> None:
        self._queues: dict[float, TimerQueue] = {}

    def queue(self, wait_s: float) -> TimerQueue:
        queue = self._queues.get(wait_s)
        if queue is None:
            queue = self._queues[wait_s] = TimerQueue(wait_s)
        return queue
