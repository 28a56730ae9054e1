"""The new handshake after a server has lost the session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from taskgate.core.errors import UpstreamError
from taskgate.ports.call_failure import never_sent


class SessionRenewal:
    """The handshake in progress, if any. Nothing can be sent until it is done."""

    __slots__ = ("_renew", "_server", "running")

    def __init__(self, server: str, renew: Callable[[], Awaitable[None]]) -> None:
        self._server = server
        self._renew = renew
        self.running: asyncio.Task[None] | None = None

    async def begin_or_join(self) -> None:
        """Wait for a new handshake, starting one if needed. Raises UpstreamError if it fails."""
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self._run())
            self.running.add_done_callback(_mark_retrieved)
        await asyncio.shield(self.running)

    async def over(self) -> None:
        """Wait until no handshake is in progress, before sending a message. Raises CallFailed if it failed."""
        try:
            while self.running is not None:
                await asyncio.shield(self.running)
        except UpstreamError as problem:
            raise never_sent(self._server, problem) from None

    async def _run(self) -> None:
        try:
            await self._renew()
        finally:
            self.running = None


def _mark_retrieved(done: asyncio.Task[None]) -> None:
    """Mark the exception as retrieved: the waiters received it, and there may be none left."""
    if not done.cancelled():
        done.exception()
