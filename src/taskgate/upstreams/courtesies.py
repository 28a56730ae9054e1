"""Replies that a server gets for what it sends on its own: answers to pings, and refusals of requests that we do not support.

A server may send such requests much faster than replies can leave, over HTTP one POST each. So only a few are on their way at once,
the others wait in line, and what finds no place there is not answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

AT_ONCE: Final = 4
MOST_WAITING: Final = 256


class Courtesies:
    """`send` may not raise. `spawn` runs work beside the link, which cancels it when it closes."""

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], spawn: Callable[[Awaitable[None]], asyncio.Task[None]]
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._waiting: deque[bytes] = deque()
        self._senders = 0

    def reply(self, body: bytes) -> bool:
        """Send a reply in its turn. False if too many wait already: then it is dropped."""
        if len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting.append(body)
        if self._senders < AT_ONCE:
            self._senders += 1
            self._spawn(self._send_on())
        return True

    async def _send_on(self) -> None:
        try:
            while self._waiting:
                await self._send(self._waiting.popleft())
        finally:
            self._senders -= 1
