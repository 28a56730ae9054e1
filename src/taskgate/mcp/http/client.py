"""A pooled HTTP/1.1 client for MCP servers and for other gateways.

It reports what general-purpose clients do not: whether the last byte of the request had been handed to the kernel when
an exchange failed, and therefore whether the call may have been executed. It omits what a tool call must not have:
automatic retries, redirects, proxies, cookies and compression. Webhooks and other requests that are not tool calls use
a general-purpose client. One instance serves the whole process. docs/decisions/own-http-client.md explains why this
client exists.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Sequence

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import HttpConnection
from taskgate.mcp.http.pool import OriginPool, PoolLimits
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnEvent, OnHead, ReplyLimits
from taskgate.mcp.http.target import Origin, Target
from taskgate.mcp.http.trust_store import default_context

_MIB = 1024 * 1024
_CLOSE_S = 2.0


class HttpClient:
    """An HTTP client for one event loop, shared by all upstreams.

    The default `idle_s` is below the five seconds after which common servers close idle connections: a request written
    to a closing connection cannot be distinguished from one that was executed.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 10.0,
        idle_s: float = 4.0,
        max_idle_per_origin: int = 128,
        max_connections_per_origin: int = 1024,
        max_long_lived_per_origin: int = 16_384,
        max_waiting_per_origin: int = 1024,
        max_response_bytes: int = 16 * _MIB,
        max_event_bytes: int = 16 * _MIB,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._pool_limits = PoolLimits(
            max_idle=max_idle_per_origin,
            max_connections=max_connections_per_origin,
            max_long_lived=max_long_lived_per_origin,
            max_waiting=max_waiting_per_origin,
            connect_timeout_s=connect_timeout_s,
            idle_s=idle_s,
        )
        self._limits = ReplyLimits(max_response_bytes, max_event_bytes)
        self._ssl_context = ssl_context
        self._pools: dict[Origin, OriginPool] = {}
        self._closed = False

    async def exchange(
        self,
        target: Target,
        method: bytes = b"POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        deadline_s: float | None,
        idle_s: float | None = None,
        on_head: OnHead | None = None,
        on_event: OnEvent | None = None,
        on_chunk: OnChunk | None = None,
        due: float | None = None,
        long_lived: bool = False,
        on_sending: Callable[[], None] | None = None,
    ) -> HttpReply:
        """Send one request and return its reply. Raises HttpFailure.

        `deadline_s` limits the whole exchange, including the wait for a connection; `due` is the same deadline on the
        loop's clock, if the caller has computed it. `idle_s` limits the time between two reads, for streams without a
        deadline. `on_head` and `on_event` run synchronously as data arrives; an `on_event` that returns True ends the
        exchange. `on_chunk` receives an event stream unparsed. A `long_lived` exchange does not count towards the
        connections for ordinary calls; its caller must limit how many there are. Cancellation closes the connection at
        once. `on_sending` runs right before the first byte is written: without it, nothing was sent.
        """
        if due is None:
            due = math.inf if deadline_s is None else clock.monotonic() + deadline_s
        request = target.render(method, headers, body)
        if deadline_s is not None and deadline_s <= 0:
            raise HttpFailure(Stage.DEADLINE, "the deadline had passed before the request was sent", Executed.NO)
        pool = self._pools.get(target.origin) or await self._add_pool(target.origin)
        if long_lived:
            connection = await pool.obtain(due, long_lived=True)
        else:
            connection = pool.take_idle() or await pool.obtain(due, long_lived=False)
        if on_sending is not None:
            on_sending()
        future = connection.begin(request, due, on_event, idle_s=idle_s, on_head=on_head, on_chunk=on_chunk)
        try:
            return await future
        except asyncio.CancelledError:
            connection.abandon(future)
            raise
        finally:
            # It has the failure, whose traceback refers to this frame: a cycle.
            del future

    def take_idle(self, target: Target) -> HttpConnection | None:
        """Return an idle connection for an exchange that begins at once: the caller calls `begin`, awaits the Future, and passes
        it to `abandon` if it is cancelled. None if `exchange` must open a connection or wait for one."""
        pool = self._pools.get(target.origin)
        return pool.take_idle() if pool is not None else None

    def set_max_reply_bytes(self, max_bytes: int) -> None:
        """Change the maximum size of replies and events, after a reload of the configuration."""
        self._limits.set_max_bytes(max_bytes)
        for pool in self._pools.values():
            pool.apply_limits()

    def mark_long_lived(self, target: Target, on_event: OnEvent) -> None:
        """Count the exchange of this listener as `long_lived` from now on."""
        pool = self._pools.get(target.origin)
        if pool is not None:
            pool.mark_long_lived(on_event)

    def abort_exchange(self, target: Target, on_event: OnEvent) -> None:
        """Abort the exchange of this listener, because its reply arrived elsewhere. It fails like a broken connection."""
        pool = self._pools.get(target.origin)
        if pool is not None:
            pool.abort_exchange(on_event)

    async def close(self) -> None:
        """Close all connections. Exchanges in progress fail."""
        self._closed = True
        await asyncio.gather(*(pool.close(_CLOSE_S) for pool in tuple(self._pools.values())))
        self._pools.clear()

    def open_connections(self, origin: Origin) -> int:
        """Return the number of open connections to this origin."""
        pool = self._pools.get(origin)
        return pool.open_count if pool is not None else 0

    def idle_connections(self, origin: Origin) -> int:
        """Return the number of idle connections to this origin."""
        pool = self._pools.get(origin)
        return pool.idle_count if pool is not None else 0

    async def _add_pool(self, origin: Origin) -> OriginPool:
        context = (self._ssl_context or await default_context()) if origin.tls else None
        if self._closed:
            raise HttpFailure(Stage.POOL_FULL, "the client is closed", Executed.NO)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = OriginPool(origin, self._pool_limits, self._limits, context, self._drop_pool)
        return pool

    def _drop_pool(self, pool: OriginPool) -> None:
        if self._pools.get(pool.origin) is pool:
            del self._pools[pool.origin]
