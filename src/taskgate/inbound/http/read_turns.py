"""When a request that is read now may have arrived.

A request waits in its socket while the event loop works on others. If the loop has worked since it read requests the last
time, then what it reads now may have arrived since then, and the wait counts from there. So an overload is visible although
every request is answered as soon as it is read (`core.lateness`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate import clock

AT_ONCE_S: Final = 0.001
"""After a shorter time there was no pause that matters."""
WORKING_SHARE: Final = 0.25
"""The loop has worked if its thread used the processor for this share of the time; other programs may have used it too."""


class ReadTurns:
    """The iterations of the event loop in which requests are read. Shared by all connections."""

    __slots__ = ("_arrival", "_began", "_cpu", "_cpu_at", "_is_new", "_loop")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_new = True
        """No request was read in this iteration."""
        self._began = self._arrival = 0.0
        """When the first request of an iteration was read, last, and when it may have arrived."""
        self._cpu = self._cpu_at = 0.0
        """The CPU time of the thread, and when it was read."""

    def arrival(self) -> float:
        """Return the earliest time at which a request that is read now may have arrived."""
        if self._is_new:
            self._begin()
        return self._arrival

    def _begin(self) -> None:
        now, before = clock.monotonic(), self._began
        if now - before < AT_ONCE_S:
            self._arrival = before
        else:
            cpu = clock.thread_cpu()
            # What was worked since then at least: before that, it may have worked all the time.
            worked = cpu - self._cpu - (before - self._cpu_at)
            self._arrival = before if worked >= WORKING_SHARE * (now - before) else now
            self._cpu, self._cpu_at = cpu, now
        self._began, self._is_new = now, False
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        """Called in the next iteration, before it reads."""
        self._is_new = True
