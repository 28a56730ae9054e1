"""One POST to `/mcp`: what was asked, and the ways to answer it.

This is the hot path, so it does without ASGI: the connection collects the body, one task answers, and a plain JSON answer leaves
in one write. Only if something comes before the result does the answer become an event stream (see `streamed_reply`).
Towards uvicorn's protocol object a post stands where its own request cycle would stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, Protocol

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.authorize import Authorized
from taskgate.access.open_responses import REPLY_AFTER_S, Ended, Hold, OpenResponses
from taskgate.gateway.plan import Limits, Live, Plan
from taskgate.inbound.http.asgi import SSE_HEADERS, Headers
from taskgate.inbound.http.event_stream import StreamBuffers, StreamedReply
from taskgate.inbound.http.handover import request_bytes
from taskgate.ports.outlet import CancelNote
from taskgate.turns import LARGE_BYTES, let_others_run


class PostConnection(Protocol):
    """The connection that a post came in on, as far as the post needs it."""

    loop: asyncio.AbstractEventLoop
    raw: Any
    """The transport itself."""
    transport: Any
    """The transport, where the head of an answer waits for what follows it."""
    flow: Any
    plan: Live[Plan]
    arrival: Arrival

    def begin(self, post: Post) -> asyncio.Task[None]: ...

    def on_response_complete(self) -> None: ...

    def move(self, give: Callable[[int], bool]) -> bool: ...


Answering = Callable[["Post"], Coroutine[Any, Any, None]]

_SLICE_BYTES: Final = 256 * 1024
_JSON_HEADS: Final = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status.value, status.phrase.encode("ascii"))
    for status in HTTPStatus
}
_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"


class _Nobody:
    """Nobody waits for the parts of a body: a post begins when it is complete."""

    def set(self) -> None:
        return None


class Post:
    __slots__ = (
        "_connection", "_parts", "_ready", "_replying", "_size", "_started", "_streamed", "_turn", "arrival",
        "arrived", "authorized", "body", "disconnected",
        "every_header", "forwarded", "headers", "hold", "keep_alive", "limit", "lost_is_cancel", "path", "primed", "query",
        "response_complete", "stream_buffers", "too_large", "withdrawn", "work",
    )  # fmt: skip

    message_event: Final = _Nobody()

    def __init__(
        self,
        connection: PostConnection,
        url: bytes,
        every_header: Headers,
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool,
        limit: int,
        is_first: bool,
    ) -> None:
        self.arrival = connection.arrival
        self.authorized: Authorized | None = None
        """Set once it is authorized."""
        self.forwarded = False
        """Whether another gateway has authorized it and sent it here."""
        self.hold: Hold | None = None
        """What binds it to its credential, once it takes long."""
        self.withdrawn: Ended | None = None
        """Why it was ended before it was answered: its credential is not good any more."""
        self.path, _, self.query = url.partition(b"?")
        self.every_header = every_header
        self.headers = headers
        """The last of each name."""
        self.keep_alive = keep_alive
        self.limit = limit
        self.body = b""
        self.arrived = 0.0
        """When all of it was here and it was its turn."""
        self.work: asyncio.Task[None] | None = None
        """The task that answers."""
        self.lost_is_cancel = False
        """In the stateless generation a closed connection cancels the request."""
        self.stream_buffers: StreamBuffers | None = None
        """Where the stream is kept that this answer may become, so that it can be resumed."""
        self.primed = False
        self.disconnected = False
        self.response_complete = False
        declared = headers.get(b"content-length")
        self.too_large = declared is not None and (not declared.isdigit() or int(declared) > limit)
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._ready = self.too_large
        self._turn = is_first
        """Every request before it on the same connection has been answered."""
        self._started = False
        self._streamed: StreamedReply | None = None
        self._replying = False
        """The reply is going out, or has gone."""
        if self.too_large:
            self.complete()

    # How it comes in

    def take(self, part: bytes) -> None:
        """Another part of the body. What is too long is not kept, and is answered without waiting for the rest."""
        self._size += len(part)
        if self._size > self.limit:
            self.too_large = True
            self._parts.clear()
            self.complete()
        else:
            self._parts.append(part)

    def your_turn(self) -> None:
        """Every request before this one on the same connection has been answered."""
        self._turn = True
        if self._ready:
            self.complete()

    def complete(self) -> None:
        """The body is all there, or as much of it as we want: it is answered as soon as it is its turn."""
        self._ready = True
        if self._turn and not self._started and not self.disconnected:
            self._started = True
            self.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            # The loop's own time: when this turn of it began, so that waiting behind others in the same turn counts.
            self.arrived = clock.monotonic()
            self.work = self._connection.begin(self)

    def admit(self, authorized: Authorized) -> None:
        self.authorized = authorized

    def came_forwarded(self, authorized: Authorized) -> None:
        """It came from another gateway, which has authorized it."""
        self.authorized, self.forwarded = authorized, True

    def watch(self, responses: OpenResponses, now: float) -> None:
        """Bind a reply that takes long to the credential of its request: it may end after that has expired, but not after it was
        revoked."""
        if (
            self.hold is None
            and self.authorized is not None
            and now - self.arrived >= REPLY_AFTER_S
            and not self.answered
        ):
            self.bind(responses, survives_expiry=True)

    def bind(self, responses: OpenResponses, *, survives_expiry: bool) -> None:
        assert self.authorized is not None
        self.hold = responses.hold(self.authorized, self._withdraw, survives_expiry=survives_expiry)

    def _withdraw(self, ended: Ended) -> None:
        self.withdrawn = ended
        if self.work is not None:
            self.work.cancel(CancelNote(ended.text))

    def waited_since(self, began: float) -> None:
        """It had to wait for something other than us, which does not count against it."""
        self.arrived += clock.monotonic() - began

    def resumable_from(self, stream_buffers: StreamBuffers | None, *, primed: bool) -> None:
        """Where the stream is kept that the answer may become; `primed` gives the caller a point to resume from at once."""
        self.stream_buffers, self.primed = stream_buffers, primed

    def moved(self, give: Callable[[int, bytes], bool]) -> bool:
        """Whether another worker has taken the connection, with this request, and answers it. False: it is still ours to answer."""
        url = self.path + b"?" + self.query if self.query else self.path
        request = request_bytes(b"POST", url, self.every_header, self.body) if self.keep_alive else None
        if request is None or not self._connection.move(lambda descriptor: give(descriptor, request)):
            return False
        self.disconnected = True
        return True

    def cancel_when_lost(self) -> None:
        """Hanging up cancels the request, until its answer goes out."""
        self.lost_is_cancel = True

    def lost(self) -> None:
        """The caller hung up."""
        self.disconnected = not self.response_complete
        if self.disconnected and self._streamed is not None:
            self._streamed.pause()
        if self.lost_is_cancel and self.disconnected and self.work is not None:
            self.work.cancel()

    @property
    def limits(self) -> Callable[[], Limits]:
        """Those in force whenever it is asked, for what may live longer than this post."""
        plan = self._connection.plan
        return lambda: plan.value.limits

    @property
    def answered(self) -> bool:
        """Whether an answer was written, or nobody is left to get one."""
        return self.response_complete or self.disconnected

    @property
    def can_send(self) -> bool:
        """Nothing goes out once the reply does: it would stand where the next reply on this connection begins."""
        resumable = self._streamed is not None
        return not self._replying and not self.response_complete and (resumable or not self.disconnected)

    @property
    def still_there(self) -> bool:
        """Whether the caller's connection is open."""
        return not self._connection.raw.is_closing()

    @property
    def is_read(self) -> bool:
        return self.still_there or (self._streamed is not None and self._streamed.followed)

    # How it is answered

    def respond(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        """One whole JSON answer."""
        if self.disconnected or self.response_complete:
            return
        more = b"".join(b"%b: %b\r\n" % header for header in headers) if headers else b""
        if not self.keep_alive:
            more += b"connection: close\r\n"
        self._connection.raw.write(b"%b%d\r\n%b\r\n%b" % (_JSON_HEADS[status], len(body), more, body))
        self._finished()

    async def _respond_in_slices(self, status: int, body: bytes, headers: Headers | None) -> None:
        """A large answer: each slice is copied and sent in a turn of its own, as fast as the caller reads."""
        closing = [] if self.keep_alive else [(b"connection", b"close")]
        more = b"".join(b"%b: %b\r\n" % header for header in (*(headers or ()), *closing))
        flow, raw = self._connection.flow, self._connection.raw
        raw.write(b"%b%d\r\n%b\r\n" % (_JSON_HEADS[status], len(body), more))
        for begin in range(0, len(body), _SLICE_BYTES):
            if flow.write_paused and self.still_there:
                await flow.drain()
            if not self.still_there:
                return
            raw.write(body[begin : begin + _SLICE_BYTES])
            await let_others_run()
        self._finished()

    async def finish(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """The result: alone, or as the end of the stream that came before it. Who hangs up now cancels nothing any more."""
        self.lost_is_cancel = False
        self._replying = True
        # A caller that names event streams before JSON, or alone, gets its answers as streams.
        streams = status == 200 and self.headers.get(b"accept", b"").lstrip().startswith(b"text/event-stream")
        if self._streamed is None and not streams:
            if len(body) < LARGE_BYTES or self.disconnected or self.response_complete:
                self.respond(status, body, headers)
            else:
                await self._respond_in_slices(status, body, headers)
        else:
            await self._stream(headers).finish(body)

    async def respond_whole(self, status: int, body: bytes, headers: Headers) -> None:
        """An answer that another gateway has given."""
        self.lost_is_cancel = False
        self._replying = True
        if len(body) < LARGE_BYTES:
            self.respond(status, body, headers)
        else:
            await self._respond_in_slices(status, body, headers)

    def pass_on(self, chunk: bytes) -> asyncio.Future[None] | None:
        """A piece of another gateway's event stream, of any length; where it must wait for room, that is given back."""
        connection = self._connection
        if not self.disconnected:
            connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not connection.flow.write_paused or self.disconnected:
            return None
        room: asyncio.Future[None] = asyncio.ensure_future(connection.flow.drain())
        return room

    def cut(self) -> None:
        """The stream cannot be ended properly any more."""
        self._connection.raw.abort()

    async def abandon(self) -> None:
        """The request was cancelled: end without a response, as the specification wants.

        A request is answered by JSON or by an event stream (transports: sending messages), so it is a stream without events.
        Its ids are not shown, so that nobody tries to resume it.
        """
        self._replying = True
        if self._streamed is None:
            self.begin_stream([])
            self.end_stream()
        else:
            await self._streamed.finish(None)

    # As an outlet for what comes before the result

    def send(self, message: bytes) -> None:
        if self.can_send:
            self._stream().send(message)

    def hold_open(self) -> None:
        """The answer becomes an event stream now, whose pings keep proxies and clients from giving up on it."""
        if self.can_send:
            self._stream()

    def prime(self, retry_ms: int | None) -> None:
        """The upstream gave its stream a point to resume from: so do we, with the same pause between attempts."""
        if self.primed and self._streamed is None and self.can_send:
            self._stream(retry_ms=retry_ms)

    def pause(self) -> None:
        """The upstream hung up for now and will be asked again: so will we. The stream stays, to be resumed."""
        if self.primed and self._streamed is not None:
            self._streamed.pause()

    def _stream(self, headers: Headers | None = None, retry_ms: int | None = None) -> StreamedReply:
        if self._streamed is None:
            self._streamed = StreamedReply(self, headers or [], retry_ms)
        return self._streamed

    # The frame around an event stream

    def begin_stream(self, headers: Headers) -> None:
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        lines = b"".join(b"%b: %b\r\n" % header for header in (*SSE_HEADERS, *headers))
        if not self.disconnected:
            self._connection.transport.write(b"%b%b%b\r\n" % (_STREAM_HEAD, lines, closing))

    async def write(self, frame: bytes) -> None:
        """Waits while the caller reads more slowly than we write."""
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if len(frame) >= LARGE_BYTES:
            await self._write_in_slices(frame)
        elif not self.disconnected:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    async def _write_in_slices(self, frame: bytes) -> None:
        flow, transport = self._connection.flow, self._connection.transport
        transport.write(b"%x\r\n" % len(frame))
        for begin in range(0, len(frame), _SLICE_BYTES):
            if flow.write_paused and self.still_there:
                await flow.drain()
            if not self.still_there:
                return
            transport.write(frame[begin : begin + _SLICE_BYTES])
            await let_others_run()
        transport.write(b"\r\n")

    def end_stream(self) -> None:
        if not self.disconnected:
            self._connection.transport.write(b"0\r\n\r\n")
            self._finished()

    def _finished(self) -> None:
        self.response_complete = True
        # The connection may now lie idle for long, and with it this object.
        self.body = b""
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()
