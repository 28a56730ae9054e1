"""Cooperative scheduling of work on large messages.

Scanning or copying fifteen megabytes takes some milliseconds. Such steps do not run back to back: of all work on large messages
only one step runs in each iteration of the event loop. A peer that sends a hundred large messages at once delays only work of
this kind.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Final

LARGE_BYTES: Final = 256 * 1024
"""Smaller messages are processed in one step, in a few milliseconds at most."""
_SCAN_BYTES: Final = 1 << 20
PORTION: Final = 32
"""This many tools of a server are processed in one step; each takes up to a few tenths of a millisecond."""


class _WorkQueue:
    """The queue of large work on one event loop. One step runs in each iteration, in order of arrival."""

    __slots__ = ("_context", "_is_moving", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._context = contextvars.Context()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_moving = False

    def join(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_moving:
            self._is_moving = True
            loop.call_soon(self._move, context=self._context)
        return turn

    def _move(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        loop = self._loop()
        if self._waiting and loop is not None:
            loop.call_soon(self._move, context=self._context)
        else:
            self._is_moving = False


_lines: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _WorkQueue]] = weakref.WeakKeyDictionary()


async def let_others_run() -> None:
    """Continue in a later iteration, as the only step of large work in it. Not needed below `LARGE_BYTES`."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _WorkQueue(loop)
    await line.join(loop)


async def in_turns(steps: Iterable[None]) -> None:
    """Run a generator that yields where other work may run."""
    for _ in steps:
        await let_others_run()


async def contains(body: bytes, mark: bytes) -> bool:
    """`mark in body`, a megabyte at a time."""
    for begin in range(0, len(body), _SCAN_BYTES):
        if body.find(mark, begin, begin + _SCAN_BYTES + len(mark)) >= 0:
            return True
        await let_others_run()
    return False
