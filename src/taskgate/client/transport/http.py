"""A small HTTP/1.1 client: pooled keep-alive connections to one origin, whole replies or streams, nothing more.

It sends each request once and never repeats one by itself: only the caller knows what is safe to repeat. It can
tell whether any byte of a reply had come when a connection broke. No redirects, no proxies, no compression, no
knowledge of MCP. Used by `transport.streamable`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Any, Protocol

import httptools

from taskgate.client.errors import (
    CannotConnect,
    ConnectionLost,
    DeadlineExceeded,
    InvalidReply,
    ReplyTooLarge,
    SessionClosed,
)

# Common servers drop idle connections after 5 s; one that is about to be dropped must not carry a tool call.
IDLE_SECONDS = 4.0
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


class _Connection(asyncio.Protocol):
    __slots__ = (
        "body",
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
        "used",
        "waiter",
    )

    def __init__(self, pool: HttpPool) -> None:
        self.pool = pool
        self.limit = pool.max_reply_bytes
        self.parser = httptools.HttpResponseParser(self)
        self.waiter: asyncio.Future[HttpReply] | None = None
        self.reply = HttpReply()
        self.stream: Stream | None = None
        self.streaming = False
        self.body: list[bytes] = []
        self.size = 0
        self.used = False
        self.pooled = True
        self.idle_since = 0.0
        self.transport: asyncio.Transport | None = None

    def begin(self, stream: Stream | None, pooled: bool) -> asyncio.Future[HttpReply]:
        self.reply, self.stream, self.streaming = HttpReply(), stream, False
        self.body, self.size, self.pooled = [], 0, pooled
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


class HttpPool:
    """Connections to one origin. `pooled=False` requests (long streams) do not count against the limit."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        max_connections: int,
        max_reply_bytes: int,
        connect_timeout: float,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_reply_bytes = max_reply_bytes
        self._address = (host, port)
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._room = max_connections
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def send(self, data: bytes, stream: Stream | None, timeout: float, *, pooled: bool = True) -> HttpReply:
        """Write one request and wait for its reply, or until its stream has had enough."""
        deadline = time.monotonic() + timeout
        connection = self._take_idle() if pooled else None
        if connection is None:
            connection = await self._open(pooled, deadline)
        assert connection.transport is not None
        waiter = connection.begin(stream, pooled)
        connection.used = True
        connection.transport.write(data)
        timer = self.loop.call_later(max(0.0, deadline - time.monotonic()), _expire, waiter)
        try:
            return await waiter
        except BaseException:
            connection.abort()
            raise
        finally:
            timer.cancel()

    def release(self, connection: _Connection) -> None:
        if self._closed or not connection.pooled:
            connection.abort()
        if not connection.is_open:
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        self._wake_one()

    def forget(self, connection: _Connection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            if connection.pooled:
                self._room += 1
                self._wake_one()
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._all):
            connection.abort()
        for future in self._waiting:
            if not future.done():
                future.set_exception(SessionClosed("the session was closed"))
        await asyncio.sleep(0)

    def _take_idle(self) -> _Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _open(self, pooled: bool, deadline: float) -> _Connection:
        while pooled and self._room <= 0:
            await self._wait_for_room(deadline)
            connection = self._take_idle()
            if connection is not None:
                return connection
        if pooled:
            self._room -= 1
        try:
            connection = await self._dial(deadline)
        except BaseException:
            if pooled:
                self._room += 1
                self._wake_one()
            raise
        connection.pooled = pooled
        self._all.add(connection)
        return connection

    async def _dial(self, deadline: float) -> _Connection:
        host, port = self._address
        arguments: dict[str, Any] = {"ssl": self._tls} if self._tls else {}
        budget = min(self._connect_timeout, max(0.001, deadline - time.monotonic()))
        try:
            async with asyncio.timeout(budget):
                _, connection = await self.loop.create_connection(lambda: _Connection(self), host, port, **arguments)
        except TimeoutError as error:
            raise CannotConnect(f"no connection to {host}:{port} within {budget:.0f} s") from error
        except OSError as error:
            raise CannotConnect(f"cannot connect to {host}:{port}: {error}") from error
        return connection

    async def _wait_for_room(self, deadline: float) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                await future
        except TimeoutError as error:
            raise DeadlineExceeded("all connections to the server stayed busy") from error
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _wake_one(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return


def _expire(waiter: asyncio.Future[HttpReply]) -> None:
    if not waiter.done():
        waiter.set_exception(DeadlineExceeded("the server did not answer in time"))
