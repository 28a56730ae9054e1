"""Reconnect to a server after a failure or a crash, with backoff.

While the backoff lasts, calls fail immediately with the reason of the last failure. A background task keeps
reconnecting. A process that crashes repeatedly is not restarted for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from taskgate import clock
from taskgate.core.errors import TaskgateError, UpstreamError
from taskgate.core.events import EventKind
from taskgate.ports.link import LinkKey
from taskgate.upstreams.backoff import Backoff
from taskgate.upstreams.crash_loop import PAUSE_S, CrashLoop
from taskgate.upstreams.last_failure import LastFailure

Report = Callable[[EventKind, Mapping[str, Any], LinkKey | None], None]


class Reconnection:
    def __init__(self, connect: Callable[[], Awaitable[object]], report: Report) -> None:
        """`connect` opens a link or raises UpstreamError; `report` publishes events about the server."""
        self.backoff = Backoff()
        self.last_failure = LastFailure()
        self._connect = connect
        self._report = report
        self._crashes: dict[LinkKey, CrashLoop] = {}
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_progress(self) -> bool:
        return self._running is not None

    def wait_s(self, key: LinkKey) -> float:
        """Return how long no link with this key may be opened."""
        now = clock.monotonic()
        paused = self._crashes[key].paused_s(now) if key in self._crashes else 0.0
        return max(self.backoff.wait_s(now), paused)

    def succeeded(self) -> None:
        self.backoff.succeeded()
        self.last_failure.over()

    def failed(self, problem: UpstreamError) -> UpstreamError:
        """Record a failed handshake and return it. Several that fail together count as one."""
        now = clock.monotonic()
        if self.backoff.wait_s(now) <= 0:
            self.backoff.failed(now)
        self.last_failure.set(problem)
        self.start()
        return problem

    def lost(self, reason: TaskgateError) -> None:
        """Record the loss of a link."""
        self.last_failure.set(reason)

    def crashed(self, key: LinkKey, why: str, *, limit: int, within_s: float) -> None:
        """Record the crash of a process. Repeated crashes pause its restarts; those of one session affect no other."""
        now = clock.monotonic()
        self._report(EventKind.SERVER_PROCESS_CRASHED, {"reason": why}, key)
        loop = self._crashes.setdefault(key, CrashLoop(limit, within_s))
        if loop.crashed(now):
            if not key.session:
                self.backoff.pause_until(now + PAUSE_S)
            data = {"crashes": loop.limit, "next_retry_ms": int(PAUSE_S * 1000)}
            self._report(EventKind.SERVER_RESTART_FAILED, data, key)

    def forget_crashes(self, session: str | None = None) -> None:
        """Forget the crashes of one session, or all of them."""
        for key in [key for key in self._crashes if session is None or key.session == session]:
            del self._crashes[key]

    def start(self) -> None:
        if not self._closed and (self._running is None or self._running.done()):
            self._running = asyncio.get_running_loop().create_task(self._run())
            wait_ms = int(self.backoff.wait_s(clock.monotonic()) * 1000)
            data = {"attempt": max(1, self.backoff.attempt), "next_retry_ms": wait_ms}
            self._report(EventKind.SERVER_RECONNECTING, data, None)

    async def _run(self) -> None:
        while not self._closed:
            await clock.sleep(self.backoff.wait_s(clock.monotonic()))
            with contextlib.suppress(UpstreamError):
                await self._connect()
                self.last_failure.over()
                self._report(EventKind.SERVER_RECONNECTED, {}, None)
                self._running = None
                return

    async def close(self) -> None:
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
