"""One POST request to `/mcp`: its body, and the ways to respond.

This is the hot path, so it bypasses ASGI: the connection collects the body, one task answers, and a JSON response is
one write. Only if a message must be sent before the result does the response become an event stream (see
`streamed_reply`). uvicorn's protocol object uses a `Post` in place of its own request cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol

import msgspec

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.authorize import Authorized
from taskgate.access.open_responses import REPLY_AFTER_S, Ended, Hold, OpenResponses
from taskgate.core.settings.limits import Limits
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.inbound.http.asgi import SSE_HEADERS, Headers
from taskgate.inbound.http.handover import request_bytes
from taskgate.inbound.http.loop_lag import LoopLag
from taskgate.inbound.http.post_head import PostHead
from taskgate.inbound.http.session_streams import StreamBuffers
from taskgate.inbound.http.streamed_reply import StreamedReply
from taskgate.ports.cancel_note import CancelNote
from taskgate.turns import LARGE_BYTES, let_others_run


class PostConnection(Protocol):
    """The interface of the connection that a POST request uses."""

    loop: asyncio.AbstractEventLoop
    raw: Any
    """The underlying transport."""
    transport: Any
    """The transport that sends the head of a response together with its body."""
    flow: Any
    plan: Live[Plan]
    arrival: Arrival
    lag: LoopLag

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


class _NullEvent:
    """Replaces uvicorn's event for body parts, which is not used: answering starts when the body is complete."""

    def set(self) -> None:
        return None


class Post(msgspec.Struct, eq=False):
    """Built for every request, so it is a Struct: its attributes are set without a Python function."""

    connection: PostConnection
    head: PostHead
    headers: dict[bytes, bytes]
    """The last value of each name."""
    arrival: Arrival
    keep_alive: bool
    """uvicorn clears it at shutdown: then the connection is closed after the reply."""
    limit: int
    turn: bool
    """All earlier requests on the connection are answered."""
    ready: bool = False
    """The body is complete, or not needed."""
    started: bool = False
    body: bytes = b""
    authorized: Authorized | None = None
    """Set once the request is authorized."""
    forwarded: bool = False
    """Whether another gateway has authorized and forwarded the request."""
    hold: Hold | None = None
    """Ends the request with its credential; set once the request takes long."""
    access_ended: Ended | None = None
    """Why the request was ended early: its credential was revoked or has expired."""
    arrived: float = 0.0
    """When the request may have been complete; not before the ones before it were answered."""
    work: asyncio.Task[None] | None = None
    """The task that answers the request."""
    cancel_on_disconnect: bool = False
    """Whether a disconnect cancels the request, as in the stateless generation."""
    stream_buffers: StreamBuffers | None = None
    """Buffers for a streamed response, so that it can be resumed."""
    primed: bool = False
    disconnected: bool = False
    response_complete: bool = False
    too_large: bool = False
    _parts: list[bytes] | None = None
    """The parts of the body that were received so far."""
    _size: int = 0
    _streamed: StreamedReply | None = None
    _replying: bool = False
    """The reply is being sent or was sent."""
    message_event: ClassVar = _NullEvent()

    # Receiving

    def check_declared_length(self) -> None:
        """Answer without waiting for the body if its declared length exceeds the limit."""
        if self.head.declared_bytes > self.limit:
            self.too_large = True
            self.complete()

    def begin(self) -> None:
        """Start answering a request that was received whole."""
        self.work = self.connection.begin(self)

    def note_arrival(self) -> None:
        """Its task begins. It has waited since the iteration of the event loop that read it, which the lag includes."""
        self.arrived = self.connection.lag.arrival()

    def take(self, part: bytes) -> None:
        """Add a part of the body. A body over the limit is dropped and answered without waiting for the rest."""
        self._size += len(part)
        if self._size > self.limit:
            self.too_large = True
            self._parts = None
            self.complete()
        elif self._parts is None:
            self._parts = [part]
        else:
            self._parts.append(part)

    def previous_answered(self) -> None:
        """Start answering if the body is complete: all earlier requests on the connection are answered."""
        self.turn = True
        if self.ready:
            self.complete()

    def complete(self) -> None:
        """Start answering, now or when all earlier requests on the connection are answered."""
        self.ready = True
        if self.turn and not self.started and not self.disconnected:
            self.started = True
            parts, self._parts = self._parts or [], None
            self.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self.begin()

    @property
    def path(self) -> bytes:
        return self.head.path

    @property
    def query(self) -> bytes:
        return self.head.query

    @property
    def every_header(self) -> Headers:
        return self.head.every_header

    def admit(self, authorized: Authorized) -> None:
        self.authorized = authorized

    def admit_forwarded(self, authorized: Authorized) -> None:
        """Accept a request that another gateway has authorized."""
        self.authorized, self.forwarded = authorized, True

    def watch(self, responses: OpenResponses, now: float) -> None:
        """Bind a slow reply to the credential of its request: revocation ends it, expiry does not."""
        if (
            self.hold is None
            and self.authorized is not None
            and now - self.arrived >= REPLY_AFTER_S
            and not self.answered
        ):
            self.bind(responses, survives_expiry=True)

    def bind(self, responses: OpenResponses, *, survives_expiry: bool) -> None:
        assert self.authorized is not None
        self.hold = responses.hold(self.authorized, self._end_access, survives_expiry=survives_expiry)

    def release(self) -> None:
        """The request has ended. Its hold refers to it, so it is not kept."""
        hold, self.hold = self.hold, None
        if hold is not None:
            hold.release()

    def _end_access(self, ended: Ended) -> None:
        self.access_ended = ended
        if self.work is not None:
            self.work.cancel(CancelNote(ended.text))

    def exclude_wait_since(self, began: float) -> None:
        """Exclude the time since `began` from the waiting time of the request."""
        self.arrived += clock.monotonic() - began

    def set_stream_buffers(self, stream_buffers: StreamBuffers | None, *, primed: bool) -> None:
        """Make a streamed response resumable. `primed`: it starts with an event to resume from."""
        self.stream_buffers, self.primed = stream_buffers, primed

    def hand_over(self, give: Callable[[int, bytes], bool]) -> bool:
        """Give the connection with this request to another worker. Return False if it must be answered here."""
        request = request_bytes(b"POST", self.head.url, self.every_header, self.body) if self.keep_alive else None
        if request is None or not self.connection.move(lambda descriptor: give(descriptor, request)):
            return False
        self.disconnected = True
        return True

    def cancel_when_disconnected(self) -> None:
        """Cancel the request if the caller disconnects before its reply is sent."""
        self.cancel_on_disconnect = True

    def lost(self) -> None:
        """Handle the disconnect of the caller."""
        self.disconnected = not self.response_complete
        if self.disconnected and self._streamed is not None:
            self._streamed.pause()
        if self.cancel_on_disconnect and self.disconnected and self.work is not None:
            self.work.cancel()

    @property
    def limits(self) -> Callable[[], Limits]:
        """Return a function that returns the current limits; it may outlive this request."""
        plan = self.connection.plan
        return lambda: plan.value.limits

    @property
    def answered(self) -> bool:
        """Whether a response was written or the caller is gone."""
        return self.response_complete or self.disconnected

    @property
    def can_send(self) -> bool:
        """Whether messages may be sent. After the reply they would be read as the next reply on the connection."""
        resumable = self._streamed is not None
        return not self._replying and not self.response_complete and (resumable or not self.disconnected)

    @property
    def still_there(self) -> bool:
        """Whether the caller's connection is open."""
        return not self.connection.raw.is_closing()

    @property
    def is_read(self) -> bool:
        return self.still_there or (self._streamed is not None and self._streamed.followed)

    # Responding

    def respond(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        """Send a complete JSON response."""
        if self.disconnected or self.response_complete:
            return
        head = _JSON_HEADS[status]
        if headers or not self.keep_alive:
            closing = b"" if self.keep_alive else b"connection: close\r\n"
            lines = b"".join(b"%b: %b\r\n" % header for header in headers or ())
            response = b"%b%d\r\n%b%b\r\n%b" % (head, len(body), lines, closing, body)
        else:
            response = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        self.connection.raw.write(response)
        self._finished()

    async def _respond_in_slices(self, status: int, body: bytes, headers: Headers | None) -> None:
        """Send a large response in slices, one per iteration of the loop, as fast as the caller reads."""
        closing = [] if self.keep_alive else [(b"connection", b"close")]
        more = b"".join(b"%b: %b\r\n" % header for header in (*(headers or ()), *closing))
        flow, raw = self.connection.flow, self.connection.raw
        raw.write(b"%b%d\r\n%b\r\n" % (_JSON_HEADS[status], len(body), more))
        for begin in range(0, len(body), _SLICE_BYTES):
            if flow.write_paused and self.still_there:
                await flow.drain()
            if not self.still_there:
                return
            raw.write(body[begin : begin + _SLICE_BYTES])
            await let_others_run()
        self._finished()

    def finish_at_once(self, request: Request, status: int, body: bytes) -> bool:
        """Send the result as JSON, if that needs no waiting and nothing depends on whether it arrives. Otherwise return False,
        and it must be sent by `finish`."""
        if (
            self._streamed is not None
            or self.head.prefers_stream
            or len(body) >= LARGE_BYTES
            or request.delivery.on_delivered is not None
        ):
            return False
        self.cancel_on_disconnect = False
        self._replying = True
        self.respond(status, body)
        return True

    async def finish(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send the result, alone or as the last event of the stream. A disconnect no longer cancels the request."""
        self.cancel_on_disconnect = False
        self._replying = True
        if self._streamed is None and not (status == 200 and self.head.prefers_stream):
            if len(body) < LARGE_BYTES or self.disconnected or self.response_complete:
                self.respond(status, body, headers)
            else:
                await self._respond_in_slices(status, body, headers)
        else:
            await self._stream(headers).finish(body)

    async def respond_forwarded(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a response that another gateway returned."""
        self.cancel_on_disconnect = False
        self._replying = True
        if len(body) < LARGE_BYTES:
            self.respond(status, body, headers)
        else:
            await self._respond_in_slices(status, body, headers)

    def write_chunk(self, chunk: bytes) -> asyncio.Future[None] | None:
        """Write a chunk of another gateway's event stream. Return a Future to wait for if the write buffer is full."""
        connection = self.connection
        if not self.disconnected:
            connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not connection.flow.write_paused or self.disconnected:
            return None
        room: asyncio.Future[None] = asyncio.ensure_future(connection.flow.drain())
        return room

    def abort(self) -> None:
        """Close the connection, because the stream cannot be ended properly."""
        self.connection.raw.abort()

    async def abandon(self) -> None:
        """End a cancelled request without a response, as the specification requires.

        The HTTP response must be JSON or an event stream (transports: sending messages), so it is a stream without events.
        It has no ids, so that the client does not try to resume it.
        """
        self._replying = True
        if self._streamed is None:
            self.begin_stream([])
            self.end_stream()
        else:
            await self._streamed.finish(None)

    # Outlet for messages before the result

    def send(self, message: bytes) -> None:
        if self.can_send:
            self._stream().send(message)

    def hold_open(self) -> None:
        """Start an event stream now, whose pings prevent timeouts of proxies and clients."""
        if self.can_send:
            self._stream()

    def prime(self, retry_ms: int | None) -> None:
        """Start a resumable stream because the upstream did, with the same retry interval."""
        if self.primed and self._streamed is None and self.can_send:
            self._stream(retry_ms=retry_ms)

    def pause(self) -> None:
        """End the response because the upstream did, to be resumed later. The stream is kept."""
        if self.primed and self._streamed is not None:
            self._streamed.pause()

    def _stream(self, headers: Headers | None = None, retry_ms: int | None = None) -> StreamedReply:
        if self._streamed is None:
            self._streamed = StreamedReply(self, headers or [], retry_ms)
        return self._streamed

    # HTTP framing of an event stream

    def begin_stream(self, headers: Headers) -> None:
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        lines = b"".join(b"%b: %b\r\n" % header for header in (*SSE_HEADERS, *headers))
        if not self.disconnected:
            self.connection.transport.write(b"%b%b%b\r\n" % (_STREAM_HEAD, lines, closing))

    async def write(self, frame: bytes) -> None:
        """Write a frame, after waiting for a slow caller."""
        flow = self.connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if len(frame) >= LARGE_BYTES:
            await self._write_in_slices(frame)
        elif not self.disconnected:
            self.connection.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    async def _write_in_slices(self, frame: bytes) -> None:
        flow, transport = self.connection.flow, self.connection.transport
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
            self.connection.transport.write(b"0\r\n\r\n")
            self._finished()

    def _finished(self) -> None:
        self.response_complete = True
        # An idle connection keeps this object for long, so release the body.
        self.body = b""
        if not self.keep_alive:
            self.connection.transport.close()
        self.connection.on_response_complete()
