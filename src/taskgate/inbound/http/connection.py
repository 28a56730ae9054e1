"""A caller's HTTP connection: uvicorn's protocol plus a direct path for POST to `/mcp`, timeouts for slow callers, and
disconnect hooks.

Headers and bodies have timeouts (`limits.header_timeout`, `limits.body_timeout`), and a body must arrive at one
kilobyte per second or faster. A sweep over all connections once a second enforces this, because a timer per request
would cost every caller.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.guard import host_alone
from taskgate.access.open_stream import CONNECTION
from taskgate.core.settings.limits import Limits
from taskgate.gateway.plan import Live, Plan
from taskgate.inbound.http.coalescing_transport import CoalescingTransport
from taskgate.inbound.http.loop_lag import LoopLag
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.post_head import PostHead
from taskgate.inbound.http.post_request import Answering, Post
from taskgate.inbound.http.reading_flow import ReadingFlow
from taskgate.inbound.http.request_head import HeadersRefused, check_head, check_head_bytes
from taskgate.inbound.http.request_lines import RequestLines, declared_size
from taskgate.mcp.turn_budget import TurnBudget

PARSE_BYTES: Final = 16 * 1024
"""About 250 minimal requests or 2,700 minimal body chunks. The parser cannot be interrupted between them."""
SLOW_AFTER_S: Final = 10.0
MIN_BYTES_PER_S: Final = 1024
LAST_REQUEST_S: Final = 1.0
"""How long a stopping gateway waits for the first request of a new connection."""
_NOT_OPEN: Final = Arrival("", False, False)
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})


_VERSIONS: Final = frozenset({"1.0", "1.1"})
_AFTER_AUTHORITY: Final = re.compile(rb"[/?#]")


def error_response(status: int, text: str, *headers: bytes) -> bytes:
    """Return a complete response that closes its connection."""
    phrase = HTTPStatus(status).phrase.encode("ascii")
    body = b'{"error":"%b"}' % text.encode("ascii")
    lines = b"".join(b"%b\r\n" % header for header in headers)
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
    return head % (status, phrase, len(body), lines) + body


_TOO_MANY_CONNECTIONS: Final = error_response(
    503, "Too many connections are open; try again in a few seconds.", b"retry-after: 5"
)


class CallerConnection(HttpToolsProtocol):
    """One TCP connection. POST requests to `/mcp` are answered by `answer`; all others go through uvicorn's ASGI path."""

    def __init__(
        self,
        answer: Answering,
        plan: Live[Plan],
        arrive: Callable[[Any], Arrival],
        open_connections: OpenConnections,
        lag: LoopLag,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.on_lost: Callable[[], None] | None = None
        self.raw: Any = None
        """The underlying transport, for responses that are a single write anyway."""
        self.arrival = _NOT_OPEN
        """Origin of the connection; set once it is open."""
        self._arrive = arrive
        self._open_connections = open_connections
        self.lag = lag
        self._counted = False
        self._answer = answer
        self.plan = plan
        """The current plan; its limits apply from the next request on."""
        self._read_bytes = 0
        """Size of the latest read."""
        self._head_reads = 0
        self._head_bytes = 0
        """Bytes of an incomplete head, without its first read, which may contain the end of a body."""
        self._framing_bytes = 0
        """Bytes of framing within a body: chunk sizes, their extensions, trailers."""
        self._post: Post | None = None
        """The post whose body is being read."""
        self._current: Post | None = None
        """The post that is being answered."""
        self._waiting_since: float | None = None
        self._body_since: float | None = None
        self._idle_since: float | None = None
        self._received = 0
        self._unread = 0
        self._unread_since = 0.0
        self._last_request = False
        """The gateway is stopping: the current request is answered, and none after it."""
        self._first: bytes | None = None
        """The request that another worker had read when it handed over this connection (see `handover`)."""
        self._budget = TurnBudget()
        self._parsed_chunks = self._parsed_messages = 0
        """Body chunks and heads in the data that is being parsed."""
        self._unparsed: deque[bytes] = deque()
        """Received data beyond the turn budget."""
        self._next_turn: asyncio.Handle | None = None
        self._between_requests = True
        """The parser has read nothing of the next request."""
        self._lines = RequestLines()
        self._body_size: int | None = 0
        """The declared size of the body that is being read; None if it is chunked."""
        self._refusal: bytes | None = None
        """The last response of this connection, after input that is no request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._context = copy_context()
        self.raw = transport
        self.arrival = self._arrive(transport)
        self.transport = CoalescingTransport(transport, self.loop)  # type: ignore[assignment]
        self.flow: ReadingFlow = ReadingFlow(transport, self._catch_up_later)
        self._waiting_since = clock.monotonic()
        self._counted = self._open_connections.enter(self.arrival, self.plan.value.limits)
        if not self._counted:
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
        elif self._first is not None:
            self.data_received(self._first)

    def set_first_request(self, request: bytes) -> None:
        """Set the request that another worker has read from this connection."""
        self._first = request

    def move(self, give: Callable[[int], bool]) -> bool:
        """Give the open socket to another worker, which answers the current request and all after it.

        Not possible if a second request was read, part of a response is unsent, or the connection has moved before: a
        client that uses one connection for sessions of several workers would move it back and forth. Returns False if
        nothing has changed.
        """
        raw = self.raw
        if (
            self._first is not None
            or self._last_request
            or self.arrival.by_proxy
            or self._waiting_since is not None
            or self._body_since is not None
            or self.pipeline
            or self._unparsed
            or self._refusal is not None
            or raw.is_closing()
            or raw.get_extra_info("sslcontext") is not None
            or raw.get_write_buffer_size()
        ):
            return False
        if not give(raw.get_extra_info("socket").fileno()):
            return False
        raw.abort()
        return True

    async def ended(self) -> None:
        """Wait until uvicorn has processed the disconnect: it would log a request without a response."""
        lost = asyncio.Event()
        self.when_lost(lost.set)
        await lost.wait()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        if len(data) <= PARSE_BYTES and not self._unparsed:
            self._parse(data)
        else:
            self._unparsed.extend(data[at : at + PARSE_BYTES] for at in range(0, len(data), PARSE_BYTES))
        if self._unparsed or self._budget.spent:
            self._parse_within_budget()

    def _parse_within_budget(self) -> None:
        """Parse received data within the turn budget and the flow control of bodies."""
        while self._unparsed and not self._budget.spent and not self.flow.read_paused and not self.raw.is_closing():
            self._parse(self._unparsed.popleft())
        if self.raw.is_closing():
            self._unparsed.clear()
        elif self._unparsed or self._budget.spent:
            self.flow.rest()
            self._catch_up_later()
        else:
            self.flow.caught_up()

    def _catch_up_later(self) -> None:
        if self._next_turn is None and not self.flow.read_paused:
            self._next_turn = self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Continue in a new iteration of the event loop."""
        self._next_turn = None
        self._budget.renew()
        self._parse_within_budget()

    def _parse(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        before = self._received
        self._keep_head(data)
        size = self._read_bytes = len(data)
        try:
            self.parser.feed_data(data)
            if self._waiting_since is not None:
                self._check_unfinished_head(size)
            elif self._body_since is not None:
                self._check_framing(size, self._received - before)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except HeadersRefused as refused:
            self._refuse(refused.status, refused.text)
        except httptools.HttpParserError as error:
            refused_head = error.__context__
            if isinstance(refused_head, HeadersRefused):
                self._refuse(refused_head.status, refused_head.text)
            else:
                self._refuse(400, "Invalid HTTP request received.")
        self._parsed(size)

    def _keep_head(self, data: bytes) -> None:
        if self._between_requests:
            self._lines.begin(data, 0)
        elif self._waiting_since is None:
            self._lines.begin(data, None if self._body_size is None else self._body_size - self._received)
        else:
            self._lines.more(data)

    def _parsed(self, size: int) -> None:
        self._budget.spend(size, self._parsed_chunks, self._parsed_messages)
        self._parsed_chunks = self._parsed_messages = 0
        if self._waiting_since is None:
            self._lines.forget()

    def _check_request_line(self, fields: dict[bytes, bytes]) -> None:
        """Raise HeadersRefused for what the parser accepts, but not every proxy or server reads in the same way."""
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise HeadersRefused(505, "HTTP/1.1 and HTTP/1.0 are supported.")
        self._body_size = declared_size(fields)
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version.encode("ascii"))
        self._lines.check(line, self._body_size)

    def _check_unfinished_head(self, size: int) -> None:
        """Limit an incomplete head, which the parser would buffer without a limit."""
        self._head_reads += 1
        if self._head_reads > 1:
            self._head_bytes += size
            check_head_bytes(self._head_bytes, self.plan.value.limits)

    def _check_framing(self, size: int, progress: int) -> None:
        """Limit framing bytes without body progress."""
        self._framing_bytes = 0 if progress else self._framing_bytes + size
        check_head_bytes(self._framing_bytes, self.plan.value.limits)

    def _refuse(self, status: int, text: str) -> None:
        """Respond and close: the rest of the input cannot be distinguished from the next request.

        The requests before it are answered first, because a client takes the responses in the order of its requests.
        """
        self._between_requests = False
        self._refusal = error_response(status, text)
        if self._body_since is None:
            before: Any = self.cycle
            is_first = before is None or before.response_complete
        else:
            # The last request is refused itself. It is in the pipeline unless it is the only one.
            is_first = not self.pipeline
            if self.pipeline:
                self.pipeline.popleft()
        self._waiting_since = self._body_since = None
        if is_first:
            self._close_with_refusal()

    def _close_with_refusal(self) -> None:
        if self._refusal is not None and not self.raw.is_closing():
            self.transport.write(self._refusal)
            self.transport.close()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request for a protocol upgrade as an ordinary request.

        Java's HTTP client requests HTTP/2 on each new connection. The parser would leave the body of such a request unread.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "CONNECT is not supported.")
            return
        kept = [_without_upgrade(name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS]
        lines = b"".join(b"%b: %b\r\n" % header for header in kept)
        version = self.parser.get_http_version().encode("ascii")
        self.parser = httptools.HttpRequestParser(self)
        self._between_requests = True
        self._parse(b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self.url, version, lines, rest))

    def on_message_begin(self) -> None:
        self._between_requests = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._post = None
        self._head_reads = self._head_bytes = self._framing_bytes = 0
        if self._waiting_since is None:
            self._waiting_since = clock.monotonic()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._waiting_since is None:
            # Trailers are ignored.
            return
        # The parser leaves the space after a value, which does not belong to it (RFC 9110, 5.5).
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_headers_complete(self) -> None:
        self._parsed_messages += 1
        limits = self.plan.value.limits
        fields = dict(self.headers)
        count = len(self.headers)
        # A head that started with this read is not longer than it. `check_head` counts up to one byte more per header.
        if (
            len(fields) != count
            or count > limits.header_count
            or self._head_reads
            or self._read_bytes + count > limits.header_bytes
        ):
            check_head(self.url, self.headers, limits)
        self._check_request_line(fields)
        if self.parser.should_upgrade():
            return
        if b"expect" in fields:
            self.expect_100_continue = fields[b"expect"].lower() == b"100-continue"
        url = self.url
        if not url.startswith(b"/"):
            url = self.url = _without_host(url, fields.get(b"host", b""))
        self._body_since, self._waiting_since = clock.monotonic(), None
        self._received = 0
        self.on_lost = None
        if self.parser.get_method() == b"POST" and (url == b"/mcp" or url.startswith((b"/mcp/", b"/mcp?"))):
            keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            self._begin_post(PostHead(url, self.headers, fields, keep_alive=keep_alive), limits.request_bytes)
        else:
            self._begin_asgi()
        if self._last_request:
            super().shutdown()

    def _begin_asgi(self) -> None:
        url, headers, expected = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expected
        self.headers.extend(headers)
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def _begin_post(self, head: PostHead, max_bytes: int) -> None:
        before: Any = self.cycle
        first = before is None or before.response_complete
        post = Post(
            connection=self,
            head=head,
            headers=head.headers,
            arrival=self.arrival,
            keep_alive=head.keep_alive,
            limit=max_bytes,
            turn=first,
        )
        self._post = post
        self.cycle = post  # type: ignore[assignment]
        post.check_declared_length()
        if self.expect_100_continue and not post.too_large:
            self.raw.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not first:
            # Pipelined: it waits until the requests before it are answered.
            self.flow.pause_reading()
            self.pipeline.appendleft((post, self.app))  # type: ignore[arg-type]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Post):
            cycle.previous_answered()
        else:
            super()._start_asgi_task(cycle, app)

    @property
    def current_post(self) -> Post | None:
        return self._current

    def begin(self, post: Post) -> asyncio.Task[None]:
        """Start the task that answers a complete request. uvicorn waits for it at shutdown, and cancels it after the drain
        timeout."""
        self._current = post
        # Not in the context of a request before it, which may belong to another trace.
        task = self.loop.create_task(self._answer(post), context=self._context.copy())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        self._parsed_chunks += 1
        if self._post is not None:
            self._post.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_since = None
        self._between_requests = True
        if self._post is not None:
            self._post.complete()
        elif not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """As in uvicorn, except that the sweep closes idle connections: a timer per response costs too much."""
        if self.raw.is_closing():
            return
        following = self.pipeline.pop() if self.pipeline else None
        if not self.pipeline and self.flow.read_paused:
            # Pipelined requests are answered before more are read, which bounds memory.
            self.flow.resume_reading()
        if following is not None:
            self._start_asgi_task(*following)
        elif self._refusal is not None:
            self._close_with_refusal()
        elif self._unparsed:
            self._idle_since = None
        else:
            self._idle_since = clock.monotonic()

    def when_lost(self, hook: Callable[[], None] | None) -> None:
        """Set the function to call if the peer disconnects during the current request."""
        self.on_lost = hook

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unparsed.clear()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._counted:
            self._counted = False
            self._open_connections.leave(self.arrival)
        if self._current is not None:
            self._current.lost()
        if self.on_lost is not None:
            self.on_lost()
        # Requests refer to their connection. Without these references the last one is released as soon as it has ended.
        self.cycle = self._post = self._current = None  # type: ignore[assignment]
        self.scope = {}  # type: ignore[typeddict-item]
        self.on_lost = None
        self.flow.end()

    def shutdown(self) -> None:
        """Stop after the current request. A new connection or a partial request is still answered once."""
        if self._waiting_since is None:
            super().shutdown()
            return
        self._last_request = True
        self.loop.call_later(LAST_REQUEST_S, self._close_idle)

    def _close_idle(self) -> None:
        if self._waiting_since is not None and not self.raw.is_closing():
            self.transport.close()

    def too_slow(self, now: float, limits: Limits) -> bool:
        if self.raw is not None and self.raw.get_write_buffer_size():
            return self._unread_for(now) > limits.body_timeout
        self._unread = 0
        if self._idle_since is not None:
            return now - max(self._idle_since, self._unread_since) > self.timeout_keep_alive
        if self._waiting_since is not None:
            return now - self._waiting_since > limits.header_timeout
        if self._body_since is None:
            return False
        spent = now - self._body_since
        too_slow = spent > SLOW_AFTER_S and self._received < spent * MIN_BYTES_PER_S
        return spent > limits.body_timeout or too_slow

    def _unread_for(self, now: float) -> float:
        """Return for how long the caller has read nothing of a response. Slow readers are fine; stopped readers are not."""
        left = self.raw.get_write_buffer_size()
        if left != self._unread:
            self._unread, self._unread_since = left, now
        return now - self._unread_since

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _without_upgrade(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return a header; of `Connection` all options but those for the upgrade, so that `close` stays."""
    if name != b"connection":
        return name, value
    options = (option.strip() for option in value.split(b","))
    return name, b", ".join(option for option in options if option.lower() not in _UPGRADE_HEADERS)


def _without_host(url: bytes, host: bytes) -> bytes:
    """Reduce an absolute request target to its path and query (RFC 9112, 3.2.2).

    Raises for an invalid URL, and HeadersRefused if it names another host than the Host header, by which it is admitted.
    """
    parsed = httptools.parse_url(url)
    authority = _AFTER_AUTHORITY.split(url.partition(b"://")[2], 1)[0]
    if _host_name(authority) != _host_name(host) or not url.lower().startswith((b"http://", b"https://")):
        raise HeadersRefused(400, "The target of the request is an address of another host than its Host header.")
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")


def _host_name(host: bytes) -> str:
    return host_alone(host.decode("latin-1").lower())


def replies_in_progress(connections: Any) -> list[Post]:
    """Return the POST requests in progress."""
    return [
        peer.current_post
        for peer in list(connections)
        if isinstance(peer, CallerConnection) and peer.current_post is not None
    ]


def drop_slow(connections: Any, now: float, limits: Limits) -> int:
    """Close every connection that exceeds a timeout, and return how many there were."""
    slow = [peer for peer in list(connections) if isinstance(peer, CallerConnection) and peer.too_slow(now, limits)]
    for peer in slow:
        peer.drop()
    return len(slow)
