"""One server-sent event stream with a short memory, so that a caller whose connection broke can take it up again.

Messages are numbered and kept up to a limit. Any number of connections may follow; one that falls behind the memory is dropped,
never the process. Streams of stateless callers have no memory to resume from: there the numbers are not shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from taskgate.core.sse import PING, format_event

MAX_EVENTS: Final = 256
MAX_BYTES: Final = 1024 * 1024
PING_S: Final = 15.0
RETRY_MS: Final = 1000


class EventStream:
    __slots__ = ("_bytes", "_closed", "_events", "_followers", "_next", "_waiters", "name", "resumable")

    def __init__(self, name: str, resumable: bool) -> None:
        self.name = name
        self.resumable = resumable
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._next = 1
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._followers = 0

    @property
    def followed(self) -> bool:
        """Whether anybody reads it just now."""
        return self._followers > 0

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: bytes) -> None:
        if self._closed:
            return
        self._events.append((self._next, message))
        self._next += 1
        self._bytes += len(message)
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES):
            self._bytes -= len(self._events.popleft()[1])
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

    async def follow(self, after: int = 0) -> AsyncIterator[bytes]:
        """Frames from just after the given number, live until the stream is closed or this reader is too slow."""
        self._followers += 1
        try:
            async for frame in self._frames(after):
                yield frame
        finally:
            self._followers -= 1

    async def _frames(self, after: int) -> AsyncIterator[bytes]:
        seen = after
        while True:
            oldest = self._events[0][0] if self._events else self._next
            if oldest > seen + 1:
                if seen:
                    return
                seen = oldest - 1
            for number, message in [event for event in self._events if event[0] > seen]:
                yield self._frame(number, message)
                seen = number
            if self._closed and seen + 1 >= self._next:
                return
            if seen + 1 < self._next:
                continue
            if not await self._something_new() or (seen + 1 >= self._next and not self._closed):
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

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._streams: dict[str, EventStream] = {}
        self._count = 0

    def new(self) -> EventStream:
        self._count += 1
        stream = EventStream(f"s{self._count}", resumable=True)
        self._streams[stream.name] = stream
        if len(self._streams) > self._limit:
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
