"""One server-sent event stream with a short memory, so that a caller whose connection broke can take it up again.

Messages are numbered and kept up to a limit (`limits.stream_buffer_events`, `limits.stream_buffer_bytes`). Any number of
connections may follow; one that falls behind the memory is dropped, never the process. Streams of stateless callers have no memory
to resume from: there the numbers are not shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from taskgate.core.sse import PING, format_event
from taskgate.gateway.plan import Limits

PING_S: Final = 15.0
RETRY_MS: Final = 1000


class _Follower:
    """One connection that reads the stream, and how far it has come."""

    __slots__ = ("dropped", "seen", "writing")

    def __init__(self, seen: int, dropped: Callable[[], None] | None) -> None:
        self.seen = seen
        self.writing = False
        """It has a frame in hand that its peer has not made room for."""
        self.dropped = dropped

    def give_up_if_behind(self, oldest: int) -> None:
        """What it would need next is gone, and it does not even take what it has: its peer does not read."""
        if self.writing and self.seen + 1 < oldest and self.dropped is not None:
            self.dropped()


class EventStream:
    __slots__ = ("_bytes", "_closed", "_events", "_followers", "_limits", "_next", "_waiters", "name", "resumable")

    def __init__(self, name: str, resumable: bool, limits: Callable[[], Limits]) -> None:
        self.name = name
        self._limits = limits
        self.resumable = resumable
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._next = 1
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._followers: list[_Follower] = []

    @property
    def followed(self) -> bool:
        """Whether anybody reads it just now."""
        return bool(self._followers)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: bytes) -> None:
        if self._closed:
            return
        self._events.append((self._next, message))
        self._next += 1
        self._bytes += len(message)
        limits = self._limits()
        while len(self._events) > 1 and (len(self._events) > limits.stream_events or self._bytes > limits.stream_bytes):
            self._bytes -= len(self._events.popleft()[1])
        for follower in self._followers:
            follower.give_up_if_behind(self._events[0][0])
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def nudge(self) -> None:
        """Let whoever follows look up, although nothing was said."""
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def follow(self, after: int = 0, dropped: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
        """Frames from just after the given number, live until the stream is closed or this reader is too slow.

        `dropped` is called when it is so slow that it does not even take the frame it was given.
        """
        follower = _Follower(after, dropped)
        self._followers.append(follower)
        try:
            async for frame in self._frames(follower):
                follower.writing = True
                yield frame
                follower.writing = False
        finally:
            self._followers.remove(follower)

    async def _frames(self, follower: _Follower) -> AsyncIterator[bytes]:
        while True:
            oldest = self._events[0][0] if self._events else self._next
            if oldest > follower.seen + 1:
                if follower.seen:
                    return
                follower.seen = oldest - 1
            if follower.seen + 1 < self._next:
                number, message = self._events[follower.seen + 1 - oldest]
                follower.seen = number
                yield self._frame(number, message)
            elif self._closed:
                return
            elif not await self._something_new() or (follower.seen + 1 >= self._next and not self._closed):
                yield PING

    async def _something_new(self) -> bool:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(PING_S):
                await waiter
        except TimeoutError:
            return False
        return True

    def _frame(self, number: int, message: bytes) -> bytes:
        return format_event(message, id=f"{self.name}.{number}" if self.resumable else None)

    def priming_frame(self, retry_ms: int | None = None) -> bytes:
        """An event without content that gives a caller an id to resume from before anything was said."""
        retry_ms = RETRY_MS if retry_ms is None else retry_ms
        return format_event(b"", id=f"{self.name}.0", event=None, retry=retry_ms)


class StreamShelf:
    """The streams of one session that may still be resumed, newest last, within a limit."""

    def __init__(self, limits: Callable[[], Limits], most: int = 32) -> None:
        self._limits = limits
        self._most = most
        self._streams: dict[str, EventStream] = {}
        self._count = 0

    def new(self) -> EventStream:
        self._count += 1
        stream = EventStream(f"s{self._count}", True, self._limits)
        self._streams[stream.name] = stream
        if len(self._streams) > self._most:
            finished = next((name for name, old in self._streams.items() if old.closed), next(iter(self._streams)))
            del self._streams[finished]
        return stream

    def find(self, event_id: str) -> tuple[EventStream, int] | None:
        name, _, number = event_id.rpartition(".")
        stream = self._streams.get(name)
        if stream is None or not number.isdigit():
            return None
        return stream, int(number)

    def adopt(self, stream: EventStream) -> None:
        self._streams[stream.name] = stream
