"""Parse consecutive HTTP replies from the bytes of a connection, within limits.

`ReplyReader` is synchronous and uses neither sockets nor clocks: bytes go in, `head`, `complete` and `stopped` change, and
`ReplyProblem` is raised. Bodies are collected; event streams are delivered event by event. The connection decides what follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

from taskgate.mcp.failures import Stage
from taskgate.mcp.sse import SseEvent, SseOverflow, SseParser
from taskgate.mcp.turn_budget import SLICE_BYTES, TurnBudget


class HttpHead(msgspec.Struct, frozen=True):
    """Status and headers with lower-case names. `headers` has the first value of each name, `header_list` all of them."""

    status: int
    headers: dict[bytes, bytes]
    header_list: list[tuple[bytes, bytes]]


class HttpReply(msgspec.Struct, frozen=True):
    """A finished exchange. For an event stream `body` is empty, and `stopped` is set if the listener ended it.

    `request_sent` is False if the peer replied before the whole request was sent, so it cannot have executed it.
    """

    status: int
    headers: dict[bytes, bytes]
    header_list: list[tuple[bytes, bytes]]
    body: bytes
    stopped: bool
    request_sent: bool


OnHead = Callable[[HttpHead], None]
OnEvent = Callable[[SseEvent], bool | None]
OnChunk = Callable[[bytes], "asyncio.Future[None] | None"]
"""Receives an event stream unparsed. If it returns a Future, reading pauses until that is done."""

_HEAD_BYTES = 64 * 1024
_HEADER_COUNT = 256
_INTERIM_COUNT = 32


class ReplyLimits(msgspec.Struct):
    """Size limits of replies. Shared by all connections of a client, and changed on reload."""

    max_response_bytes: int
    max_event_bytes: int

    def set_max_bytes(self, max_bytes: int) -> None:
        self.max_response_bytes = self.max_event_bytes = max_bytes


class ReplyProblem(Exception):
    """The reply is unusable. The connection must not be reused."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


class ReplyReader:
    """A push parser of replies: `start` before each reply, then `feed`. Exceptions of listeners are raised by `feed`."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_budget",
        "_chunks",
        "_framing_bytes",
        "_headers",
        "_interim",
        "_interim_count",
        "_is_passthrough",
        "_is_used",
        "_limits",
        "_on_chunk",
        "_on_event",
        "_on_head",
        "_parsed_to_end",
        "_parser",
        "_problem",
        "_sse",
        "_unparsed",
        "_until_close",
        "backpressure",
        "complete",
        "head",
        "keep_alive",
        "stopped",
    )  # fmt: skip

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sse: SseParser | None = None
        self._problem: Exception | None = None
        self._budget = TurnBudget()
        self._chunks = 0
        """Body chunks in the data that is being parsed."""
        self._unparsed: deque[bytes] = deque()
        """Received data beyond the turn budget."""
        self._parsed_to_end = False
        """The reply is parsed completely, but some of its events are not delivered yet."""
        self.head: HttpHead | None = None
        self._reset()
        self._on_head: OnHead | None = None
        self._on_event: OnEvent | None = None
        self._on_chunk: OnChunk | None = None

    def start(self, on_head: OnHead | None, on_event: OnEvent | None, on_chunk: OnChunk | None = None) -> None:
        """Begin the next reply."""
        if self._is_used:
            self._reset()
        self._on_head, self._on_event, self._on_chunk = on_head, on_event, on_chunk

    def _reset(self) -> None:
        self._is_passthrough = False
        self.backpressure: asyncio.Future[None] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = self._interim_count = self._framing_bytes = 0
        self._interim = self._until_close = False
        self._is_used = False
        """The parser has read something of this reply, or received data is kept."""
        self._sse = None
        self._budget.renew()
        self.head = None
        self.complete = self.stopped = self.keep_alive = False

    def take_backpressure(self) -> asyncio.Future[None] | None:
        """Return the Future to wait for before reading more of the stream, if `on_chunk` returned one."""
        backpressure, self.backpressure = self.backpressure, None
        return backpressure

    def apply_limits(self) -> None:
        """Apply changed limits to an open stream."""
        if self._sse is not None:
            self._sse.set_limit(self._limits.max_event_bytes)

    def delivers_to(self, on_event: OnEvent) -> bool:
        return self._on_event == on_event

    def feed(self, data: bytes) -> None:
        """Parse data within the turn budget and keep the rest for `catch_up`. Raises ReplyProblem or a listener's exception."""
        self._is_used = True
        if len(data) <= SLICE_BYTES and not self._unparsed:
            self._parse(data)
            ended = self.complete and self._problem is None
        else:
            self.keep(data)
            ended = False
        if not ended:
            # Events are left, or data beyond one slice.
            self._read_within_budget()

    def keep(self, data: bytes) -> None:
        """Queue data that arrives after the budget is spent."""
        self._is_used = True
        self._unparsed.extend(data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))

    @property
    def has_unread(self) -> bool:
        """Whether reading must pause until `catch_up` is called in the next iteration."""
        return bool(self._unparsed) or (self._sse is not None and self._sse.has_unread) or self._budget.spent

    def catch_up(self) -> None:
        """Continue in a new iteration. Raises as `feed` does."""
        self._budget.renew()
        self._read_within_budget()

    def _read_within_budget(self) -> None:
        while self._problem is None and not self._budget.spent:
            if self._sse is not None and self._sse.has_unread:
                self._next_event(self._sse)
            elif self._parsed_to_end or self.complete:
                self._complete()
                break
            elif self._unparsed:
                self._parse(self._unparsed.popleft())
            else:
                break
        if self._problem is not None:
            self._unparsed.clear()
            raise self._problem

    def _parse(self, data: bytes) -> None:
        size = len(data)
        self._framing_bytes += size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # After a complete reply this is trailing garbage, which does not invalidate the reply.
            self.keep_alive = False
            if not (self.complete or self._parsed_to_end):
                self._fail(Stage.MALFORMED, f"the reply is not HTTP: {error}")
        chunks, self._chunks = self._chunks, 0
        if self.complete:
            # The next reply starts with a new budget.
            return
        self._budget.spend(size, chunks, 0)
        if self._framing_bytes > _HEAD_BYTES and not self._parsed_to_end:
            self._fail(Stage.MALFORMED, f"the reply has a head or framing of more than {_HEAD_BYTES} bytes")

    def _complete(self) -> None:
        """Mark the reply as complete after all of its events were delivered."""
        if self._unparsed:
            # Unrequested data follows the reply.
            self._unparsed.clear()
            self.keep_alive = False
        self._parsed_to_end = False
        self.complete = True
        # An idle connection must not keep references to the objects of its last call.
        self._on_head = self._on_event = self._on_chunk = None

    def ends_with_connection(self) -> bool:
        """Return whether the end of the connection ends this reply properly, and if so mark it as complete."""
        if self._until_close and self._problem is None:
            self.complete = True
            self.keep_alive = False
        return self.complete

    def take_body(self) -> bytes:
        """Return the collected body; empty for an event stream."""
        body, self._body = self._body, []
        return body[0] if len(body) == 1 else b"".join(body)

    def close(self) -> None:
        """Break the reference cycles with the parser, and with the traceback of a problem."""
        self._parser = self._on_head = self._on_event = self._on_chunk = self._problem = None

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete or self._parsed_to_end:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        # Limited by `_framing_bytes` and checked once the head is complete. Later headers are trailers, which are ignored.
        if self.head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        quiet, self._framing_bytes = self._framing_bytes, 0
        if self.complete or self._parsed_to_end or self._problem is not None:
            return
        if len(self._headers) > _HEADER_COUNT or (quiet > _HEAD_BYTES and self._head_size() > _HEAD_BYTES):
            self._fail(Stage.MALFORMED, "the reply has too many or too large headers")
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self._interim_count += 1
            if status == 101 or self._interim_count > _INTERIM_COUNT:
                self._fail(Stage.MALFORMED, f"an unexpected interim reply with status {status}")
            return
        self.head = head = HttpHead(status, dict(reversed(self._headers)), self._headers)
        self._check_head(head)
        if self._on_head is not None and self._problem is None:
            self._call(self._on_head, head)

    def on_body(self, chunk: bytes) -> None:
        self._framing_bytes = 0
        self._chunks += 1
        if self.complete or self._parsed_to_end or self.stopped or self._problem is not None:
            return
        if self._sse is not None:
            try:
                self._sse.push(chunk)
            except SseOverflow as error:
                self._fail_event(error)
            return
        if self._is_passthrough and self._on_chunk is not None:
            self.backpressure = self._call(self._on_chunk, chunk) or self.backpressure
            return
        self._body.append(chunk)
        self._body_bytes += len(chunk)
        if self._body_bytes > self._limits.max_response_bytes:
            self._fail(Stage.TOO_LARGE, f"the reply is larger than {self._limits.max_response_bytes} bytes")

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            self._headers = []
        elif not (self.complete or self._parsed_to_end):
            self.keep_alive = bool(self._parser.should_keep_alive())
            if self._sse is not None and self._sse.has_unread:
                self._parsed_to_end = True
            else:
                self._complete()

    # Interpretation of head and body.

    def _head_size(self) -> int:
        return sum(len(name) + len(value) for name, value in self._headers)

    def _check_head(self, head: HttpHead) -> None:
        headers = head.headers
        coding, packing = headers.get(b"transfer-encoding"), headers.get(b"content-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            self._fail(Stage.MALFORMED, "the reply has a transfer coding other than chunked")
        elif packing is not None and packing.strip().lower() not in (b"identity", b""):
            self._fail(Stage.MALFORMED, "the reply is compressed, although no compression was requested")
        length = headers.get(b"content-length")
        self._until_close = coding is None and length is None and head.status not in (204, 304)
        kind = headers.get(b"content-type", b"application/json")
        is_stream = kind != b"application/json" and head.status < 300 and _is_event_stream(kind)
        if is_stream and self._on_chunk is not None:
            self._is_passthrough = True
        elif is_stream and self._on_event is not None:
            self._sse = SseParser(self._limits.max_event_bytes)
        elif length is not None and int(length) > self._limits.max_response_bytes:
            self._fail(Stage.TOO_LARGE, f"the reply is larger than {self._limits.max_response_bytes} bytes")

    def _next_event(self, sse: SseParser) -> None:
        try:
            event = sse.next_event(self._budget)
        except SseOverflow as error:
            self._fail_event(error)
            return
        if event is not None and self._on_event is not None and self._call(self._on_event, event):
            # The rest of the reply is parsed only to find its end.
            self.stopped = True
            self._sse = None

    def _fail_event(self, error: SseOverflow) -> None:
        self._body.append(error.begin)
        self._fail(Stage.TOO_LARGE, str(error))

    def _call(self, listener: Callable[[Any], Any], what: Any) -> Any:
        """Call a listener and keep its exception, which the parser would otherwise replace with its own."""
        try:
            return listener(what)
        except Exception as error:  # raised when the exchange ends
            self._problem = error
            return None

    def _fail(self, stage: Stage, message: str) -> None:
        if self._problem is None:
            self._problem = ReplyProblem(stage, message)


def _is_event_stream(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"
