"""The HTTP server's connection object, with what uvicorn leaves out: a short way for calls, deadlines for slow callers, and news
of a lost peer.

Headers and bodies have their time (`limits.header_timeout`, `limits.body_timeout`), and a body may not come slower than a kilobyte
a second. A sweep over all
connections once a second enforces it, because a timer for each request would cost every honest caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.open_stream import CONNECTION
from taskgate.gateway.plan import Limits, Live, Plan
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.post import Answering, Post
from taskgate.mcp.turn_budget import TurnBudget

PARSED_AT_ONCE: Final = 16 * 1024
"""Some 250 of the smallest requests, or 2,700 of the smallest pieces of a body. The parser cannot be stopped between them."""
SLOW_AFTER_S: Final = 10.0
LEAST_BYTES_PER_S: Final = 1024
LAST_REQUEST_S: Final = 1.0
"""How long a gateway that ends waits for the request of somebody who has just connected."""
_ASKING: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})


def plain_answer(status: int, text: str, *headers: bytes) -> bytes:
    """A whole answer for a connection that ends with it."""
    phrase = HTTPStatus(status).phrase.encode("ascii")
    body = b'{"error":"%b"}' % text.encode("ascii")
    lines = b"".join(b"%b\r\n" % header for header in headers)
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
    return head % (status, phrase, len(body), lines) + body


class HeadersRefused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


ONCE: Final = frozenset(
    {b"host", b"origin", b"authorization", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
)


def check_head(url: bytes, headers: Headers, limits: Limits) -> None:
    """A request has so many headers, so many bytes of them, and each that says who asks for what once: a proxy and the
    gateway could take different ones. Raises HeadersRefused. For heads that are not obviously short and without a name
    that comes twice.
    """
    if len(headers) > limits.header_count:
        raise HeadersRefused(431, f"A request may have at most {limits.header_count} headers.")
    size = len(url)
    already: set[bytes] = set()
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name in already:
            raise HeadersRefused(400, f"A request has one {name.decode().title()} header.")
        if name in ONCE:
            already.add(name)
    if size > limits.header_bytes:
        check_head_bytes(size, limits)


def check_head_bytes(size: int, limits: Limits) -> None:
    if size > limits.header_bytes:
        raise HeadersRefused(431, f"The headers of a request may have at most {limits.header_bytes} bytes.")


_NO_ROOM: Final = plain_answer(503, "Too many connections are open; try again in a few seconds.", b"retry-after: 5")


class OneWrite:
    """A transport that keeps the head of a response back until its body comes, so that both leave in one system call.

    Sending is the most expensive thing a small answer does. A head whose body does not follow at once (an event stream)
    leaves with the next turn of the loop.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None and not self._transport.is_closing():
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ReadingFlow(FlowControl):
    """What may be read from a caller. Reading rests while uvicorn has asked for that (a body that is not taken yet, a request
    behind one that is being answered) and while the connection is `behind`: then bytes have arrived that were not parsed yet.
    """

    def __init__(self, transport: Any, catch_up: Callable[[], None]) -> None:
        super().__init__(transport)
        self.behind = False
        self._catch_up = catch_up

    def pause_reading(self) -> None:
        self.read_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if self.behind:
                self._catch_up()
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    def rest(self) -> None:
        """Read nothing until `caught_up`."""
        self.behind = True
        self._transport.pause_reading()

    def caught_up(self) -> None:
        if self.behind:
            self.behind = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()


class CallerConnection(HttpToolsProtocol):
    """Lives as long as one TCP connection. Posts to `/mcp` are answered by `answer`; everything else is uvicorn's."""

    def __init__(
        self,
        answer: Answering,
        plan: Live[Plan],
        arrive: Callable[[Any], Arrival],
        open_connections: OpenConnections,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.on_lost: Callable[[], None] | None = None
        self.raw: Any = None
        """The transport itself, for answers that leave in one write anyway."""
        self.arrival = Arrival("", False, False)
        """Where it came from; known once it is open."""
        self._arrive = arrive
        self._open_connections = open_connections
        self._counted = False
        self._answer = answer
        self.plan = plan
        """The plan in force; its limits hold from the next request on."""
        self._read_bytes = 0
        """What came with the latest read."""
        self._head_reads = 0
        self._head_bytes = 0
        """What was read of an unfinished head, without the read that began it: that one may hold the end of a body."""
        self._framing_bytes = 0
        """What came in a body without being body: chunk sizes, their extensions, trailers."""
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
        """The gateway ends: what is being asked now is still answered, and nothing after it."""
        self._first: bytes | None = None
        """What another worker had read when it gave us this connection (see `handover`)."""
        self._budget = TurnBudget()
        self._unparsed: deque[bytes] = deque()
        """What has arrived beyond what one turn of the loop allows to be parsed."""
        self._next_turn: asyncio.Handle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.raw = transport
        self.arrival = self._arrive(transport)
        self.transport = OneWrite(transport, self.loop)  # type: ignore[assignment]
        self.flow: ReadingFlow = ReadingFlow(transport, self._catch_up_later)
        self._waiting_since = clock.monotonic()
        self._counted = self._open_connections.enter(self.arrival, self.plan.value.limits)
        if not self._counted:
            transport.write(_NO_ROOM)
            transport.close()
        elif self._first is not None:
            self.data_received(self._first)

    def begin_with(self, request: bytes) -> None:
        """Another worker gives us the connection, and has read this request from it."""
        self._first = request

    def move(self, give: Callable[[int], bool]) -> bool:
        """Give the open socket to another worker, which answers the request that is being answered now and all after it.

        Nothing of a second request may have been read, nothing of an answer be waiting to be sent, and it moves once: a client that
        uses one connection for sessions of several workers would send it around. False: it stays, and nothing has changed.
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
        """Until uvicorn knows that nobody is here to get an answer: it would complain about a request without one."""
        lost = asyncio.Event()
        self.when_lost(lost.set)
        await lost.wait()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        if len(data) <= PARSED_AT_ONCE and not self._unparsed:
            self._parse(data)
        else:
            self._unparsed.extend(data[at : at + PARSED_AT_ONCE] for at in range(0, len(data), PARSED_AT_ONCE))
        if self._unparsed or self._budget.spent:
            self._parse_on()

    def _parse_on(self) -> None:
        """Parse what has arrived, as far as this turn and those who take the bodies allow."""
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
        """Everyone else has had a turn."""
        self._next_turn = None
        self._budget.renew()
        self._parse_on()

    def _parse(self, data: bytes) -> None:
        before = self._received
        size = self._read_bytes = len(data)
        self._budget.spend_bytes(size)
        try:
            self.parser.feed_data(data)
            if self._waiting_since is not None:
                self._check_unfinished_head(size)
            elif self._body_since is not None:
                self._check_framing(size, self._received - before)
        except httptools.HttpParserUpgrade as asked:
            self._read_as_it_is(data[asked.args[0] :])
        except HeadersRefused as refused:
            self._refuse_head(refused)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadersRefused):
                self._refuse_head(error.__context__)
            else:
                self.send_400_response("Invalid HTTP request received.")

    def _check_unfinished_head(self, size: int) -> None:
        """So many bytes came, and the head of the request is still not complete: the parser keeps them without a limit."""
        self._head_reads += 1
        if self._head_reads > 1:
            self._head_bytes += size
            check_head_bytes(self._head_bytes, self.plan.value.limits)

    def _check_framing(self, size: int, progress: int) -> None:
        """So many bytes came after the head, of which so many were body."""
        self._framing_bytes = 0 if progress else self._framing_bytes + size
        check_head_bytes(self._framing_bytes, self.plan.value.limits)

    def _refuse_head(self, refused: HeadersRefused) -> None:
        """The rest of what comes cannot be told apart from the next request, so the connection ends."""
        if not self.raw.is_closing():
            self.raw.write(plain_answer(refused.status, refused.text))
            self.raw.close()

    def _read_as_it_is(self, rest: bytes) -> None:
        """Someone asks for another protocol (Java's HTTP client does, for HTTP/2, on each new connection). We have none to
        offer, so the request is read once more as if nothing had been asked; the parser would leave its body unread.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("There is no way through here.")
            return
        kept = [(name, value) for name, value in self.headers if name not in _ASKING]
        lines = b"".join(b"%b: %b\r\n" % header for header in kept)
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, lines, rest))

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._post = None
        self._head_reads = self._head_bytes = self._framing_bytes = 0
        if self._waiting_since is None:
            self._waiting_since = clock.monotonic()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._waiting_since is None:
            # A trailer: nothing that matters may come after the body.
            return
        self.headers.append((name.lower(), value))

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_headers_complete(self) -> None:
        self._budget.spend_message()
        limits = self.plan.value.limits
        fields = dict(self.headers)
        count = len(self.headers)
        # A head that began with this read is no longer than it; each header may count for one byte more than it has.
        if (
            len(fields) != count
            or count > limits.header_count
            or self._head_reads
            or self._read_bytes + count > limits.header_bytes
        ):
            check_head(self.url, self.headers, limits)
        if self.parser.should_upgrade():
            return
        if b"expect" in fields:
            self.expect_100_continue = fields[b"expect"].lower() == b"100-continue"
        self._body_since, self._waiting_since = clock.monotonic(), None
        self._received = 0
        self.on_lost = None
        url = self.url
        if not url.startswith(b"/"):
            url = self.url = _without_host(url)
        if self.parser.get_method() == b"POST" and (url == b"/mcp" or url.startswith((b"/mcp/", b"/mcp?"))):
            self._begin_post(fields, limits.request_bytes)
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

    def _begin_post(self, fields: dict[bytes, bytes], most_bytes: int) -> None:
        before: Any = self.cycle
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        first = before is None or before.response_complete
        post = self._post = Post(
            self,
            self.url,
            self.headers,
            fields,
            keep_alive=keep_alive,
            limit=most_bytes,
            is_first=first,
        )
        self.cycle = post  # type: ignore[assignment]
        if self.expect_100_continue and not post.too_large:
            self.raw.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not first:
            # Pipelined: it waits until those before it are answered.
            self.flow.pause_reading()
            self.pipeline.appendleft((post, self.app))  # type: ignore[arg-type]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Post):
            cycle.your_turn()
        else:
            super()._start_asgi_task(cycle, app)

    @property
    def current_post(self) -> Post | None:
        return self._current

    def begin(self, post: Post) -> asyncio.Task[None]:
        self._current = post
        work = self.loop.create_task(self._answer(post))
        self.tasks.add(work)
        work.add_done_callback(self.tasks.discard)
        return work

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        self._budget.spend_lines()
        if self._post is not None:
            self._post.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_since = None
        if self._post is not None:
            self._post.complete()
        elif not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn does it, but the sweep looks after idle connections: a timer for each answer costs too much."""
        if self.raw.is_closing():
            return
        following = self.pipeline.pop() if self.pipeline else None
        if not self.pipeline:
            # Those that wait here are answered before more are read: a caller that only asks cannot fill our memory.
            self.flow.resume_reading()
        if following is not None:
            self._start_asgi_task(*following)
        elif self._unparsed:
            self._idle_since = None
        else:
            self._idle_since = clock.monotonic()

    def when_lost(self, hook: Callable[[], None] | None) -> None:
        """Who is told when the peer hangs up during the request that is being answered."""
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

    def shutdown(self) -> None:
        """The gateway ends. Who has just connected, or is just asking, cannot know that, and is answered once more."""
        if self._waiting_since is None:
            super().shutdown()
            return
        self._last_request = True
        self.loop.call_later(LAST_REQUEST_S, self._end_unasked)

    def _end_unasked(self) -> None:
        if self._waiting_since is not None and not self.raw.is_closing():
            self.transport.close()

    def too_slow(self, now: float, limits: Limits) -> bool:
        if self.raw is not None and self.raw.get_write_buffer_size():
            return self._leaves_unread(now) > limits.body_timeout_s
        self._unread = 0
        if self._idle_since is not None:
            return now - max(self._idle_since, self._unread_since) > self.timeout_keep_alive
        if self._waiting_since is not None:
            return now - self._waiting_since > limits.header_timeout_s
        if self._body_since is None:
            return False
        spent = now - self._body_since
        starved = spent > SLOW_AFTER_S and self._received < spent * LEAST_BYTES_PER_S
        return spent > limits.body_timeout_s or starved

    def _leaves_unread(self, now: float) -> float:
        """For how long nothing of an answer was taken. Who reads slowly may take its time, who stops may not."""
        left = self.raw.get_write_buffer_size()
        if left != self._unread:
            self._unread, self._unread_since = left, now
        return now - self._unread_since

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _without_host(url: bytes) -> bytes:
    """`POST http://host/mcp` is as good as `POST /mcp` (RFC 9112, 3.2.2). Raises for an address that is none."""
    parsed = httptools.parse_url(url)
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")


def replies_in_progress(connections: Any) -> list[Post]:
    """The posts that are being answered."""
    return [
        peer.current_post
        for peer in list(connections)
        if isinstance(peer, CallerConnection) and peer.current_post is not None
    ]


def drop_slow(connections: Any, now: float, limits: Limits) -> int:
    """Drop every connection that takes too long to say what it wants."""
    slow = [peer for peer in list(connections) if isinstance(peer, CallerConnection) and peer.too_slow(now, limits)]
    for peer in slow:
        peer.drop()
    return len(slow)
