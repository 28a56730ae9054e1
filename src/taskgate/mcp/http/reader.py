"""Reads one HTTP reply after the other out of the bytes of a connection, within limits.

A synchronous object without sockets or clocks: bytes go in, `head`, `complete` and `stopped` change, a `ReplyProblem`
is raised. Bodies are collected, event streams are handed on event by event. The connection feeds it and decides what
follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import msgspec

from taskgate.mcp.failures import Stage
from taskgate.mcp.framing import SseEvent, SseOverflow, SseParser
from taskgate.mcp.turn_budget import SLICE_BYTES, TurnBudget


class HttpHead(msgspec.Struct, frozen=True):
    """Status and headers. Names are lower case; in `headers` the first value of a name wins, `header_list` has all."""

    status: int
    headers: dict[bytes, bytes]
    header_list: list[tuple[bytes, bytes]]


class HttpReply(msgspec.Struct, frozen=True):
    """A finished exchange. For an event stream `body` is empty and `stopped` says that the reader had heard enough.

    `request_sent` is False when the peer answered before the whole request had left, so it cannot have executed it.
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
"""Takes an event stream as it comes, for whoever passes it on. Given a future, nothing more is read until that is done."""

_HEAD_BYTES = 64 * 1024
_HEADER_COUNT = 256
_INTERIM_COUNT = 32


@dataclass(slots=True)
class ReplyLimits:
    """How much of a reply we are willing to hold. Shared by all connections of a client, which may change it."""

    max_response_bytes: int
    max_event_bytes: int

    def adopt(self, max_bytes: int) -> None:
        self.max_response_bytes = self.max_event_bytes = max_bytes


class ReplyProblem(Exception):
    """The reply cannot be used; the connection is not to be used again either."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


class ReplyReader:
    """`start` before each reply, then `feed`. A listener's own exception comes out of `feed` as it is."""

    __slots__ = (
        "_body", "_body_bytes", "_budget", "_ends", "_headers", "_interim", "_interim_count", "_is_passed_on", "_limits",
        "_on_chunk", "_on_event", "_on_head", "_parser", "_problem", "_quiet", "_sse", "_unparsed", "_until_close",
        "complete", "head", "held_up", "keep_alive", "stopped",
    )  # fmt: skip

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sse: SseParser | None = None
        self._problem: Exception | None = None
        self._budget = TurnBudget()
        self._unparsed: deque[bytes] = deque()
        """What has arrived beyond what one turn allows to be parsed."""
        self._ends = False
        """The reply has been parsed to its end, but not all of its events were handed on."""
        self.head: HttpHead | None = None
        self.start(None, None)

    def start(self, on_head: OnHead | None, on_event: OnEvent | None, on_chunk: OnChunk | None = None) -> None:
        """Forget the last reply and listen for the next."""
        self._on_head = on_head
        self._on_event = on_event
        self._on_chunk = on_chunk
        self._is_passed_on = False
        self.held_up: asyncio.Future[None] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = self._interim_count = self._quiet = 0
        self._interim = self._until_close = False
        self._sse = None
        self._budget.renew()
        self.head = None
        self.complete = self.stopped = self.keep_alive = False

    def take_held_up(self) -> asyncio.Future[None] | None:
        """What to wait for before more of the stream is read, if its taker asked for that."""
        held_up, self.held_up = self.held_up, None
        return held_up

    def adopt_limits(self) -> None:
        """The limits have changed: they hold for a stream that is open too."""
        if self._sse is not None:
            self._sse.adopt(self._limits.max_event_bytes)

    def tells(self, on_event: OnEvent) -> bool:
        return self._on_event == on_event

    def feed(self, data: bytes) -> None:
        """Read as much as this turn allows and keep the rest for `catch_up`. Raises ReplyProblem, or what a listener raised."""
        if len(data) <= SLICE_BYTES and not self._unparsed:
            self._parse(data)
        else:
            self.keep(data)
        self._read_on()

    def keep(self, data: bytes) -> None:
        """Take what arrives although this turn allows no more."""
        self._unparsed.extend(data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))

    @property
    def is_behind(self) -> bool:
        """Whether this turn's budget is spent: nothing more may be read, and `catch_up` is to be called in the next turn."""
        return bool(self._unparsed) or (self._sse is not None and self._sse.is_behind) or self._budget.spent

    def catch_up(self) -> None:
        """Everyone else has had a turn: read on. Raises as `feed` does."""
        self._budget.renew()
        self._read_on()

    def _read_on(self) -> None:
        while self._problem is None and not self._budget.spent:
            if self._sse is not None and self._sse.is_behind:
                self._next_event(self._sse)
            elif self._ends or self.complete:
                self._end()
                break
            elif self._unparsed:
                self._parse(self._unparsed.popleft())
            else:
                break
        if self._problem is not None:
            self._unparsed.clear()
            raise self._problem

    def _parse(self, data: bytes) -> None:
        self._quiet += len(data)
        self._budget.spend_bytes(len(data))
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # After a complete reply this is only garbage behind it, and no reason to lose the reply.
            self.keep_alive = False
            if not (self.complete or self._ends):
                self._refuse(Stage.MALFORMED, f"the reply is not HTTP: {error}")
        if self._quiet > _HEAD_BYTES and not (self.complete or self._ends):
            self._refuse(Stage.MALFORMED, f"the reply has a head or framing of more than {_HEAD_BYTES} bytes")

    def _end(self) -> None:
        """The reply is complete, and all of its events were handed on."""
        if self._unparsed:
            # Something follows the reply that was not asked for.
            self._unparsed.clear()
            self.keep_alive = False
        self._ends = False
        self.complete = True
        # An idle connection must not hold on to the objects of its last call.
        self._on_head = self._on_event = self._on_chunk = None

    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the proper end of this reply; if so it is complete now."""
        if self._until_close and self._problem is None:
            self.complete = True
            self.keep_alive = False
        return self.complete

    def take_body(self) -> bytes:
        """What was collected; empty for an event stream."""
        body, self._body = self._body, []
        return body[0] if len(body) == 1 else b"".join(body)

    def close(self) -> None:
        """Break the reference circle with the parser."""
        self._parser = self._on_head = self._on_event = self._on_chunk = None

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete or self._ends:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        # Bounded by `_quiet` and judged once the head is complete; what comes later is a trailer, which nobody reads.
        if self.head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        quiet, self._quiet = self._quiet, 0
        if self.complete or self._ends or self._problem is not None:
            return
        if len(self._headers) > _HEADER_COUNT or (quiet > _HEAD_BYTES and self._head_size() > _HEAD_BYTES):
            self._refuse(Stage.MALFORMED, "the reply has too many or too large headers")
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self._interim_count += 1
            if status == 101 or self._interim_count > _INTERIM_COUNT:
                self._refuse(Stage.MALFORMED, f"an unexpected interim reply with status {status}")
            return
        self.head = head = HttpHead(status, dict(reversed(self._headers)), self._headers)
        self._judge_head(head)
        if self._on_head is not None and self._problem is None:
            self._tell(self._on_head, head)

    def on_body(self, chunk: bytes) -> None:
        self._quiet = 0
        self._budget.spend_lines()
        if self.complete or self._ends or self.stopped or self._problem is not None:
            return
        if self._sse is not None:
            try:
                self._sse.push(chunk)
            except SseOverflow as error:
                self._refuse_event(error)
            return
        if self._is_passed_on and self._on_chunk is not None:
            self.held_up = self._tell(self._on_chunk, chunk) or self.held_up
            return
        self._body.append(chunk)
        self._body_bytes += len(chunk)
        if self._body_bytes > self._limits.max_response_bytes:
            self._refuse(Stage.TOO_LARGE, f"the reply is larger than {self._limits.max_response_bytes} bytes")

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            self._headers = []
        elif not (self.complete or self._ends):
            self.keep_alive = bool(self._parser.should_keep_alive())
            if self._sse is not None and self._sse.is_behind:
                self._ends = True
            else:
                self._end()

    # What a head and a body mean for us.

    def _head_size(self) -> int:
        return sum(len(name) + len(value) for name, value in self._headers)

    def _judge_head(self, head: HttpHead) -> None:
        headers = head.headers
        coding, packing = headers.get(b"transfer-encoding"), headers.get(b"content-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            self._refuse(Stage.MALFORMED, "the reply has a transfer coding other than chunked")
        elif packing is not None and packing.strip().lower() not in (b"identity", b""):
            self._refuse(Stage.MALFORMED, "the reply is compressed, although we did not ask for it")
        length = headers.get(b"content-length")
        self._until_close = coding is None and length is None and head.status not in (204, 304)
        kind = headers.get(b"content-type", b"application/json")
        is_stream = kind != b"application/json" and head.status < 300 and _is_event_stream(kind)
        if is_stream and self._on_chunk is not None:
            self._is_passed_on = True
        elif is_stream and self._on_event is not None:
            self._sse = SseParser(self._limits.max_event_bytes)
        elif length is not None and int(length) > self._limits.max_response_bytes:
            self._refuse(Stage.TOO_LARGE, f"the reply is larger than {self._limits.max_response_bytes} bytes")

    def _next_event(self, sse: SseParser) -> None:
        try:
            event = sse.next_event(self._budget)
        except SseOverflow as error:
            self._refuse_event(error)
            return
        if event is not None and self._on_event is not None and self._tell(self._on_event, event):
            # What else comes in this reply is only parsed, to find its end.
            self.stopped = True
            self._sse = None

    def _refuse_event(self, error: SseOverflow) -> None:
        self._body.append(error.begin)
        self._refuse(Stage.TOO_LARGE, str(error))

    def _tell(self, listener: Callable[[Any], Any], what: Any) -> Any:
        """Around one exchange: the parser would wrap a listener's exception beyond recognition, so it is kept."""
        try:
            return listener(what)
        except Exception as error:  # kept, and raised where the exchange ends
            self._problem = error
            return None

    def _refuse(self, stage: Stage, message: str) -> None:
        if self._problem is None:
            self._problem = ReplyProblem(stage, message)


def _is_event_stream(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"
