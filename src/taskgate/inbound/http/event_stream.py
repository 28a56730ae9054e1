"""One server-sent event stream with a short memory, so that a caller whose connection broke can take it up again.

Messages are numbered. What every connection that follows has taken is kept up to a limit (`limits.stream_buffer_events`,
`limits.stream_buffer_bytes`); what one of them has yet to take is kept for longer, because a burst of messages can arrive between
two turns of the writer although its peer reads all the time. A session's stream whose peer leaves too much unread is dropped; the
answer to a call loses notifications instead, never its result. Streams of stateless callers have no memory to resume from:
there the numbers are not shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, Protocol

from taskgate.gateway.plan import Limits, Live, Plan
from taskgate.gateway.requests.session import Session
from taskgate.inbound.http.asgi import Headers
from taskgate.mcp.sse import PING, format_event

PING_S: Final = 15.0
RETRY_MS: Final = 1000
UNREAD_FACTOR: Final = 8
"""A peer may leave this many times `limits.stream_buffer_bytes` unread before it counts as one that does not read."""
_EVENT_BYTES: Final = 100
"""What an event costs besides its message."""
_NOTIFICATION: Final = b'{"jsonrpc":"2.0","method":'


class _Follower:
    """One connection that reads the stream, and how far it has come."""

    __slots__ = ("dropped", "seen", "writing")

    def __init__(self, seen: int, dropped: Callable[[], None] | None) -> None:
        self.seen = seen
        self.writing = False
        """It has a frame in hand that its peer has not made room for."""
        self.dropped = dropped

    def give_up(self) -> None:
        """Too much is unread, and it does not even take what it has: its peer does not read."""
        if self.writing and self.dropped is not None:
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
        self._trim()
        if self._overflows():
            for follower in tuple(self._followers):
                follower.give_up()
            if message.startswith(_NOTIFICATION):
                # Questions and results are never left out for want of room: there are few of them, and somebody waits.
                return
        self._events.append((self._next, message))
        self._next += 1
        self._bytes += len(message) + _EVENT_BYTES
        self._wake()

    def _overflows(self) -> bool:
        return self._bytes > UNREAD_FACTOR * max(self._limits().stream_buffer_bytes, _EVENT_BYTES)

    def _trim(self) -> None:
        """Forget the oldest events beyond the limits, but none that a connection is still to be given."""
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

    def nudge(self) -> None:
        """Let whoever follows look up, although nothing was said."""
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def follow(self, after: int = 0, dropped: Callable[[], None] | None = None) -> AsyncGenerator[bytes]:
        """Frames from just after the given number, live until the stream is closed or this reader is too slow.

        `dropped` is called when it leaves so much unread that its peer can only have stopped reading.
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


class StreamBuffers:
    """The streams of one session that may still be resumed, newest last, within a limit."""

    def __init__(self, limits: Callable[[], Limits], era: str = "", most: int = 32) -> None:
        """`era`: what tells the streams of this gateway from those of others that held the session before."""
        self._limits = limits
        self._era = era
        self._most = most
        self._streams: dict[str, EventStream] = {}
        self._count = 0

    def new(self) -> EventStream:
        self._count += 1
        stream = EventStream(f"s{self._era}{self._count}", True, self._limits)
        self._streams[stream.name] = stream
        if len(self._streams) > self._most:
            finished = next((name for name, old in self._streams.items() if old.closed), next(iter(self._streams)))
            del self._streams[finished]
        return stream

    def find(self, event_id: str) -> tuple[EventStream, int] | None:
        name, _, number = event_id.rpartition(".")
        stream = self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit()) or len(number) > 15:
            return None
        return stream, int(number)

    def adopt(self, stream: EventStream) -> None:
        self._streams[stream.name] = stream


class SessionStreams:
    """The streams of all sessions that came by HTTP."""

    def __init__(self, plan: Live[Plan]) -> None:
        self._plan = plan
        self.buffers: dict[str, StreamBuffers] = {}
        """Of each session that may still resume one."""

    def attach(self, session: Session) -> None:
        """Give a session its own stream. One that another gateway held before gets names that were not in use there."""
        era = f"{session.moves}-" if session.moves else ""
        stream = EventStream(f"g{era}", resumable=True, limits=self._limits)
        session.attach(stream)
        buffers = self.buffers[session.id] = StreamBuffers(self._limits, era)
        buffers.adopt(stream)

    def _limits(self) -> Limits:
        return self._plan.value.limits

    def forget(self, session: Session) -> None:
        self.buffers.pop(session.id, None)
        if isinstance(session.outlet, EventStream):
            session.outlet.close()


# The answer to a POST as an event stream: for a call that says something before its result, or is held.
#
# The pump that writes the stream is the one task that exists beside a call, and only then.


class Framed(Protocol):
    """The POST that is answered, as its stream sees it: whoever writes the frames."""

    stream_buffers: StreamBuffers | None
    primed: bool

    @property
    def limits(self) -> Callable[[], Limits]: ...

    def begin_stream(self, headers: Headers) -> None: ...

    async def write(self, frame: bytes) -> None: ...

    def end_stream(self) -> None: ...


class StreamedReply:
    __slots__ = ("_headers", "_paused", "_post", "_pump", "_retry_ms", "_stream")

    def __init__(self, post: Framed, headers: Headers, retry_ms: int | None) -> None:
        self._post = post
        self._headers = headers
        self._retry_ms = retry_ms
        self._paused = False
        self._stream = (
            post.stream_buffers.new() if post.stream_buffers is not None else EventStream("", False, post.limits)
        )
        self._pump = asyncio.get_running_loop().create_task(self._write())

    def send(self, message: bytes) -> None:
        self._stream.send(message)

    @property
    def followed(self) -> bool:
        """Whether the caller reads it, on this connection or on another that has taken it up again."""
        return self._stream.followed

    def pause(self) -> None:
        """Nobody reads it here any more: write no further, and ping no more. It may be resumed elsewhere."""
        self._paused = True
        self._stream.nudge()

    async def finish(self, last: bytes | None) -> None:
        """The result, and the end; or the end alone."""
        if last is not None:
            self._stream.send(last)
        self._stream.close()
        await self._pump

    async def _write(self) -> None:
        self._post.begin_stream(self._headers)
        if self._post.primed:
            await self._post.write(self._stream.priming_frame(self._retry_ms))
        async with aclosing(self._stream.follow()) as frames:
            async for frame in frames:
                if self._paused:
                    break
                await self._post.write(frame)
        self._post.end_stream()
