"""One HTTP/1.1 connection: reads a whole reply, or feeds a stream as its chunks arrive.

It sends nothing by itself and never repeats anything. It reports each way a reply can break off with its own
error. Owned by the pool.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from taskgate.client.errors import ConnectionLost, DeadlineExceeded, InvalidReply, ReplyTooLarge

# How long the rest of a stream may take once its answer is in, before the connection is given up.
TRAILER_SECONDS = 2.0


class HttpReply:
    """Status, headers (lower-case names) and, unless a stream took it, the body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    @property
    def content_type(self) -> bytes:
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


class Stream(Protocol):
    """Takes the chunks of an event-stream reply. `feed` returns True once nothing more is needed from it."""

    def opened(self) -> None:
        """The reply's head has come."""
        ...

    def feed(self, chunk: bytes) -> bool: ...


class Owner(Protocol):
    """Whoever lends connections out and takes them back."""

    loop: asyncio.AbstractEventLoop
    max_reply_bytes: int

    def release(self, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    __slots__ = (
        "body",
        "deadline",
        "idle_since",
        "limit",
        "parser",
        "pool",
        "pooled",
        "reply",
        "size",
        "stream",
        "streaming",
        "transport",
        "waiter",
    )

    def __init__(self, pool: Owner) -> None:
        self.pool = pool
        self.limit = pool.max_reply_bytes
        self.parser = httptools.HttpResponseParser(self)
        self.waiter: asyncio.Future[HttpReply] | None = None
        self.reply = HttpReply()
        self.stream: Stream | None = None
        self.streaming = False
        self.body: list[bytes] = []
        self.size = 0
        self.deadline = 0.0
        self.pooled = True
        self.idle_since = 0.0
        self.transport: asyncio.Transport | None = None

    def begin(self, stream: Stream | None, pooled: bool, deadline: float) -> asyncio.Future[HttpReply]:
        self.reply, self.stream, self.streaming = HttpReply(), stream, False
        self.body, self.size, self.pooled, self.deadline = [], 0, pooled, deadline
        self.waiter = self.pool.loop.create_future()
        return self.waiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            known = (
                cause if isinstance(cause, InvalidReply) else InvalidReply(f"the server does not speak HTTP: {error}")
            )
            self._fail(known)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        if self.size > 65_536:
            raise ReplyTooLarge("the reply's headers are larger than 64 KiB")
        self.reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.size = 0
        self.reply.status = self.parser.get_status_code()
        is_events = self.reply.content_type == b"text/event-stream"
        if self.stream is not None:
            self.streaming = is_events and self.reply.status == 200
            self.stream.opened()

    def on_body(self, chunk: bytes) -> None:
        if self.streaming and self.stream is not None:
            if self.stream.feed(chunk):
                self._settle()
                self.pool.loop.call_later(TRAILER_SECONDS, self._drop_unfinished, self.reply)
            return
        self.size += len(chunk)
        if self.size > self.limit:
            raise ReplyTooLarge(f"the reply is larger than {self.limit} bytes")
        self.body.append(chunk)

    def on_message_complete(self) -> None:
        if self.reply.status < 200:  # 1xx: the real reply follows
            return
        self.reply.body = b"".join(self.body) if len(self.body) != 1 else self.body[0]
        self._settle()
        self.body, self.stream = [], None
        if not self.parser.should_keep_alive() and self.transport is not None:
            self.transport.close()
        self.pool.release(self)

    def connection_lost(self, error: Exception | None) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            if self.streaming:
                waiter.set_result(self.reply)  # the stream's owner knows whether it got what it wanted
            elif self.reply.status and not self.reply.headers.keys() & {b"content-length", b"transfer-encoding"}:
                self.reply.body = b"".join(self.body)  # a body that ends with the connection
                waiter.set_result(self.reply)
            else:
                waiter.set_exception(ConnectionLost("the server closed the connection before it answered"))
        self.pool.forget(self)

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def expire(self) -> None:
        """The deadline has come and the reply has not."""
        self._fail(DeadlineExceeded("the server did not answer in time"))

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _settle(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(self.reply)

    def _fail(self, error: Exception) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        self.abort()

    def _drop_unfinished(self, reply: HttpReply) -> None:
        if self.reply is reply and self.stream is not None:
            self.abort()
