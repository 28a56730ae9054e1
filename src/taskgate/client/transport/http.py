"""A small HTTP/1.1 client: pooled keep-alive connections to one origin, whole replies or streams, nothing more.

It sends each request once and never repeats one by itself: only the caller knows what is safe to repeat. No
redirects, no proxies, no compression, no knowledge of MCP. Used by `transport.streamable`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from math import inf
from typing import Any

from taskgate import clock
from taskgate.client.errors import CannotConnect, DeadlineExceeded, SessionClosed
from taskgate.client.transport.connection import Connection, HttpReply, Stream

# Common servers drop idle connections after 5 s; one that is about to be dropped must not carry a tool call.
IDLE_SECONDS = 4.0


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
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_due = inf

    async def send(self, data: bytes, stream: Stream | None, timeout: float, *, pooled: bool = True) -> HttpReply:
        """Write one request and wait for its reply, or until its stream has had enough."""
        deadline = clock.monotonic() + timeout
        connection = self._take_idle() if pooled else None
        if connection is None:
            connection = await self._open(pooled, deadline)
        assert connection.transport is not None
        waiter = connection.begin(stream, pooled, deadline)
        connection.transport.write(data)
        if deadline < self._sweep_due:
            self._sweep_at(deadline)
        try:
            return await waiter
        except BaseException:
            connection.abort()
            raise

    def release(self, connection: Connection) -> None:
        if self._closed or not connection.pooled:
            connection.abort()
        if not connection.is_open:
            return
        connection.idle_since = clock.monotonic()
        self._idle.append(connection)
        self._wake_one()

    def forget(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            if connection.pooled:
                self._room += 1
                self._wake_one()
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.abort()
        for future in self._waiting:
            if not future.done():
                future.set_exception(SessionClosed("the session was closed"))
        await clock.sleep(0)

    def _sweep_at(self, moment: float) -> None:
        """One timer watches over all deadlines: most requests end long before theirs and never touch it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_due = moment
        self._sweeper = self.loop.call_later(max(0.0, moment - clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        self._sweeper, self._sweep_due = None, inf
        now, waiting = clock.monotonic(), [connection for connection in self._all if connection.waiter is not None]
        for connection in waiting:
            if connection.deadline <= now:
                connection.expire()
        left = [connection.deadline for connection in waiting if connection.deadline > now]
        if left:
            self._sweep_at(min(left))

    def _take_idle(self) -> Connection | None:
        oldest = clock.monotonic() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _open(self, pooled: bool, deadline: float) -> Connection:
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

    async def _dial(self, deadline: float) -> Connection:
        host, port = self._address
        arguments: dict[str, Any] = {"ssl": self._tls} if self._tls else {}
        budget = min(self._connect_timeout, max(0.001, deadline - clock.monotonic()))
        try:
            async with asyncio.timeout(budget):
                _, connection = await self.loop.create_connection(lambda: Connection(self), host, port, **arguments)
        except TimeoutError as error:
            raise CannotConnect(f"no connection to {host}:{port} within {budget:.0f} s") from error
        except OSError as error:
            raise CannotConnect(f"cannot connect to {host}:{port}: {error}") from error
        return connection

    async def _wait_for_room(self, deadline: float) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(max(0.001, deadline - clock.monotonic())):
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
