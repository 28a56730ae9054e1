"""Everyone else's turn between two steps of work on something large: many bytes, or all objects of the process.

A look through fifteen megabytes, or a copy of them, takes some milliseconds. Steps of that size are not taken one after the other,
and of all work on large things only one step is taken in a turn of the event loop: a peer that sends a hundred large messages
at once delays large messages, and nothing else. Nothing here depends on what the bytes mean. A look of Python's garbage collector
at everything takes longer still (250 ms with 10,000 open tasks) and cannot be divided, so `Collector` chooses its moment.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Final

from taskgate import clock

LARGE_BYTES: Final = 256 * 1024
"""What is smaller is read in a few milliseconds at most, and in one go."""
_LOOK_BYTES: Final = 1 << 20
PORTION: Final = 32
"""So many tools of a server are looked at in one go; each takes up to a few tenths of a millisecond."""


class _Line:
    """Those who work on something large on one event loop. One of them goes on in each turn, in the order in which they came."""

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


_lines: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]] = weakref.WeakKeyDictionary()


async def let_others_run() -> None:
    """Go on in a later turn of the loop, alone of all who work on something large. For work on less than `LARGE_BYTES` it is not
    called.
    """
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line(loop)
    await line.join(loop)


async def in_turns(steps: Iterable[None]) -> None:
    """Do the work of a generator, which yields where others may have their turn."""
    for _ in steps:
        await let_others_run()


async def contains(body: bytes, mark: bytes) -> bool:
    """`mark in body`, a megabyte at a time."""
    for begin in range(0, len(body), _LOOK_BYTES):
        if body.find(mark, begin, begin + _LOOK_BYTES + len(mark)) >= 0:
            return True
        await let_others_run()
    return False


_YOUNG_OBJECTS: Final = 1_500
"""A look at as many takes about 0.7 ms. Those that survive are not looked at a second time: it would take 1 to 3 ms, twenty times a
second where every call leaves a task behind, and finds next to nothing."""
_NEVER: Final = 1_000_000_000
_GROWTH: Final = 2.0
_LEAST_GROWTH_BLOCKS: Final = 1_500_000
"""Some 150 MB of small objects: what circles may hold before they are looked for while callers wait. 15,000 open tasks are less."""
_GROWTH_WHEN_IDLE: Final = 1.1
_IDLE_SHARE: Final = 0.1
_IDLE_LOOKS: Final = 30
"""So many seconds in a row hardly anything was asked; a few without work are what many callers leave between two bursts."""


class Collector:
    """Looks at young objects once and briefly, and at all of them only when nobody waits or memory has doubled.

    What is there at the start stays and is never looked at. A call leaves few circles behind, and most of them are young. Python's
    own rule looks at everything whenever a quarter has come, also if all of it is alive: with thousands of open tasks every
    caller would wait for that, again and again.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        # From 3.14 on the old ones are looked at in parts, as many as the second number says.
        gc.set_threshold(_YOUNG_OBJECTS, 10 if sys.version_info >= (3, 14) else _NEVER, _NEVER)
        self._at, self._spent = clock.monotonic(), time.process_time()
        self._blocks = sys.getallocatedblocks()
        self._idle_looks = 0

    def tend(self) -> None:
        """From time to time; once a second is enough."""
        blocks, now, spent = sys.getallocatedblocks(), clock.monotonic(), time.process_time()
        self._idle_looks = self._idle_looks + 1 if spent - self._spent < _IDLE_SHARE * (now - self._at) else 0
        self._at, self._spent = now, spent
        if blocks > max(self._blocks * _GROWTH, self._blocks + _LEAST_GROWTH_BLOCKS) or (
            self._idle_looks >= _IDLE_LOOKS and blocks > self._blocks * _GROWTH_WHEN_IDLE
        ):
            gc.collect()
            self._blocks = sys.getallocatedblocks()
