"""How long requests wait in their sockets while the event loop works on others.

A request is answered soon after it is read, so its own times do not show an overload. But the loop reads all sockets once in
each iteration, and a timer that is due in the middle of a long iteration fires at its end. While requests arrive, such a timer
is always set; by how much it is late is how long a request may have waited before its task began (`core.lateness`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate import clock

PROBE_S: Final = 0.01
SLACK_S: Final = 0.002
"""Event loops round timers to milliseconds."""


class LoopLag:
    """Measures one event loop. Shared by all connections."""

    __slots__ = ("_due", "_lag_s", "_loop", "_requested")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: float | None = None
        """When the timer is due; None if it is not set, because no requests arrive."""
        self._lag_s = 0.0
        self._requested = False
        """Whether a request began since the timer was set."""

    def arrival(self) -> float:
        """Return when a request whose task begins now may have arrived."""
        now = clock.monotonic()
        self._requested = True
        if self._due is None:
            self._set_timer(now)
        return now - self._lag_s

    def _set_timer(self, now: float) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._due, self._requested = now + PROBE_S, False
        self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        assert self._due is not None
        now = clock.monotonic()
        lag_s = now - self._due
        self._lag_s = lag_s if lag_s > SLACK_S else 0.0
        if self._requested or self._lag_s:
            self._set_timer(now)
        else:
            self._due = None
