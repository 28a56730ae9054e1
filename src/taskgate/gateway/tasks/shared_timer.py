"""How long callers have waited: one timer for all calls that may wait equally long.

Calls that get the same time run out of it in the order in which they came, so only the first of a line needs watching. A timer
for each call would cost more than most of what is done for it, and almost none would ever ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from taskgate import clock

EARLY_S: Final = 0.002
"""Event loops round timers to a millisecond; what is due that soon is due now."""


class TimerQueue:
    """Those who may wait equally long, oldest first."""

    __slots__ = ("_loop", "_ringing", "_waiting", "wait_s")

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        self._ringing = False

    def join(self, who: object, due: Callable[[], None]) -> None:
        self._waiting[who] = (clock.monotonic() + self.wait_s, due)
        if not self._ringing:
            self._ringing = True
            self._loop.call_later(self.wait_s, self._ring)

    def leave(self, who: object) -> None:
        self._waiting.pop(who, None)

    def _ring(self) -> None:
        now = clock.monotonic() + EARLY_S
        while self._waiting:
            who, (at, due) = next(iter(self._waiting.items()))
            if at > now:
                self._loop.call_at(at, self._ring)
                return
            del self._waiting[who]
            due()
        self._ringing = False


class SharedTimers:
    """A line for each time that callers are given; there are as many as there are rungs of the parts."""

    def __init__(self) -> None:
        self._lines: dict[float, TimerQueue] = {}

    def queue(self, wait_s: float) -> TimerQueue:
        line = self._lines.get(wait_s)
        if line is None:
            line = self._lines[wait_s] = TimerQueue(wait_s)
        return line
