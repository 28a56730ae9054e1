"""A server-sent event stream with a buffer, so that a caller can resume it after a disconnect.

Messages are numbered. Messages that every following connection has received are kept up to a limit
(`limits.stream_buffer_events`, `limits.stream_buffer_bytes`). Messages that a connection has yet to receive are kept
longer, because a burst can arrive between two iterations of the writer although its peer reads continuously. If the
peer of a session's stream leaves too much unread, its connection is dropped; a streamed reply loses notifications
instead, never its result. Streams of stateless callers cannot be resumed, so their events have no ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import islice
from typing import Final

from taskgate.core.settings.limits import Limits
from taskgate.mcp.sse import PING, format_event

PING_S: Final = 15.0
RETRY_MS: Final = 1000
UNREAD_FACTOR: Final = 8
"""A peer that leaves more than this many times `limits.stream_buffer_bytes` unread is considered stalled."""
_EVENT_BYTES: Final = 100
"""Memory per event in addition to its message."""
_NOTIFICATION: Final = b'{"jsonrpc":"2.0","method":'
_COMPARED: Final = 16
"""How many of the newest events are compared with a message that needs to be sent only once."""


class _Follower:
    """A connection that reads the stream, and its position."""

    __slots__ = ("dropped", "seen", "writing")

    def __init__(self, seen: int, dropped: Callable[[], None] | None) -> None:
        self.seen = seen
        self.writing = False
        """A frame is being written and waits for the peer."""
        self.dropped = dropped

    def give_up(self) -> None:
        """Drop the connection if its peer is stalled."""
        if self.writing and self.dropped is not None:
            self.dropped()


class EventStream:
    __slots__ = (
        "_bytes",
        "_closed",
        "_delivered",
        "_events",
        "_followers",
        "_limits",
        "_next",
        "_waiters",
        "name",
        "resumable",
    )

    def __init__(self, name: str, resumable: bool, limits: Callable[[], Limits]) -> None:
        self.name = name
        self._limits = limits
        self.resumable = resumable
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._next = 1
        self._delivered = 0
        """The newest event that any connection has received."""
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._followers: list[_Follower] = []

    @property
    def followed(self) -> bool:
        """Whether a connection reads the stream now."""
        return bool(self._followers)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: bytes) -> None:
        if self._closed:
            return
        limits = self._limits()
        if len(self._events) > limits.stream_buffer_events or self._bytes > limits.stream_buffer_bytes:
            self._trim()
            if self._bytes > UNREAD_FACTOR * max(limits.stream_buffer_bytes, _EVENT_BYTES):
                for follower in tuple(self._followers):
                    follower.give_up()
                if message.startswith(_NOTIFICATION):
                    # Only notifications are dropped. Requests and results are few, and a peer waits for them.
                    return
        self._events.append((self._next, message))
        self._next += 1
        self._bytes += len(message) + _EVENT_BYTES
        self._wake()

    def send_once(self, message: bytes) -> None:
        """Send a message unless the same one is among the newest events and no connection has received it.

        For news without content, such as a changed list: a stream that is not read would collect one for each reload.
        """
        for number, waiting in islice(reversed(self._events), _COMPARED):
            if number <= self._delivered:
                break
            if waiting == message:
                return
        self.send(message)

    def _trim(self) -> None:
        """Drop the oldest events beyond the limits, except those that a connection has not received."""
        limits = self._limits()
        taken = min(follower.seen for follower in self._followers) if self._followers else self._next
        while len(self._events) > 1 and self._events[0][0] <= taken:
            kept = self._bytes - _EVENT_BYTES * len(self._events)
            if len(self._events) <= limits.stream_buffer_events and kept <= limits.stream_buffer_bytes:
                return
            self._bytes -= len(self._events.popleft()[1]) + _EVENT_BYTES

    def close(self) -> None:
        self._closed = True
        self._wake()

    def wake_readers(self) -> None:
        """Wake the readers without a new message."""
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def follow(self, after: int = 0, dropped: Callable[[], None] | None = None) -> AsyncGenerator[bytes]:
        """Yield frames after the given number until the stream is closed or this reader is too slow.

        `dropped` is called if the peer leaves so much unread that it must have stopped reading.
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
            self._trim()

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
                if number > self._delivered:
                    self._delivered = number
                yield self._frame(number, message)
            elif self._closed:
                return
            elif not await self._wait_for_event() or (follower.seen + 1 >= self._next and not self._closed):
                yield PING

    async def _wait_for_event(self) -> bool:
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
        """Return an event without data, whose id lets the caller resume before the first message."""
        retry_ms = RETRY_MS if retry_ms is None else retry_ms
        return format_event(b"", id=f"{self.name}.0", event=None, retry=retry_ms)
