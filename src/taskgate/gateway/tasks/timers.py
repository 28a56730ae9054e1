"""How long callers have waited: one timer for all calls that may wait equally long.

Calls that get the same time run out of it in the order in which they came, so only the first of a queue needs watching. A timer
for each call would cost more than most of what is done for it, and almost none would ever ring.

Signs of life for a caller whose reply is held: progress that rises a little, and a sentence, every few seconds.

Progress may never fall, so a heartbeat only ever adds a thousandth to the last value the caller saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations import PROGRESS_TOKEN
from taskgate.gateway.requests.request import Request

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
    """A queue for each time that callers are given; there are as many as there are delivery modes."""

    def __init__(self) -> None:
        self._queues: dict[float, TimerQueue] = {}

    def queue(self, wait_s: float) -> TimerQueue:
        queue = self._queues.get(wait_s)
        if queue is None:
            queue = self._queues[wait_s] = TimerQueue(wait_s)
        return queue


class Heartbeat:
    def __init__(self, request: Request, interval_s: float, text: str) -> None:
        self._request = request
        self._interval_s = interval_s
        self._text = text
        self._started = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._request.progress_token is not None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        request = self._request
        token = request.progress_token
        if request.answered or token is None:
            return
        text = f"{self._text} ({clock.monotonic() - self._started:.0f} s)"
        request.pace.beat(
            text, lambda progress: wire.encode({PROGRESS_TOKEN: token, "progress": progress, "message": text})
        )
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)
