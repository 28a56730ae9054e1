"""Queue replies to a server's own requests: responses to pings, and rejections of unsupported requests.

A server may send such requests faster than replies can be sent; over HTTP each reply is one POST. Only a few are sent
at once, the others wait in a queue, and replies beyond its limit are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

AT_ONCE: Final = 4
MAX_WAITING: Final = 256


class ReplyQueue:
    """A bounded queue of replies. `send` must not raise. `spawn` runs a task that the link cancels when it closes."""

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], spawn: Callable[[Awaitable[None]], asyncio.Task[None]]
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._waiting: deque[bytes] = deque()
        self._senders = 0

    def reply(self, body: bytes) -> bool:
        """Queue a reply. Return False if the queue is full and the reply was dropped."""
        if len(self._waiting) >= MAX_WAITING:
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
