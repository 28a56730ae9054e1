"""A small pooled HTTP/1.1 client for talking to upstreams.

It knows one thing that no library tells: whether the last byte of a request had left when an exchange failed. In return
it does without everything a tool call must not have: automatic retries, redirects, proxies, cookies, compression.
Anything that is not a tool call (webhooks, OAuth, keys) uses a general client. One object serves the whole process.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Sequence

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.pool import OriginPool, PoolLimits
from taskgate.mcp.http.reader import HttpReply, OnEvent, OnHead, ReplyLimits
from taskgate.mcp.http.target import Origin, Target

_MIB = 1024 * 1024
_CLOSE_S = 2.0


class HttpClient:
    """Shared by all upstreams; used on one event loop.

    The default `idle_s` stays below the five seconds after which common servers hang up: a request written into a
    closing connection could not be told apart from one that was executed.
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
        due: float | None = None,
        long_lived: bool = False,
    ) -> HttpReply:
        """One request and its reply, or an HttpFailure.

        `deadline_s` bounds everything from here to the answer, waiting for a connection included; `idle_s` bounds the
        silence between bytes and is meant for long-lived streams without a deadline. `on_head` and `on_event` run
        synchronously in the event loop as bytes arrive; an `on_event` that returns True ends the exchange there and
        then. `due` is the deadline on the loop's clock, for who has worked it out already. `long_lived`: it takes none of
        the connections that are kept for what is answered soon; whoever says so bounds how many there are. Cancelling the
        caller closes the connection at once.
        """
        if due is None:
            due = math.inf if deadline_s is None else clock.monotonic() + deadline_s
        request = target.render(method, headers, body)
        if deadline_s is not None and deadline_s <= 0:
            raise HttpFailure(Stage.DEADLINE, "the deadline had passed before the request was sent", Executed.NO)
        pool = self._pools.get(target.origin) or self._add_pool(target.origin)
        if long_lived:
            connection = await pool.obtain(due, long_lived=True)
        else:
            connection = pool.take_idle() or await pool.obtain(due, long_lived=False)
        future = connection.begin(request, due=due, idle_s=idle_s, on_head=on_head, on_event=on_event)
        try:
            return await future
        except asyncio.CancelledError:
            connection.abandon(future)
            raise

    def adopt(self, max_bytes: int) -> None:
        """A reload: replies and events may be as long as this from now on."""
        self._limits.adopt(max_bytes)
        for pool in self._pools.values():
            pool.adopt_limits()

    def outlives_its_call(self, target: Target, on_event: OnEvent) -> None:
        """This exchange goes on for long: from now on it is counted as `long_lived`."""
        pool = self._pools.get(target.origin)
        if pool is not None:
            pool.outlives_its_call(on_event)

    def cut_short(self, target: Target, on_event: OnEvent) -> None:
        """What this exchange waits for came another way: hang up on it. It fails, as by a broken connection."""
        pool = self._pools.get(target.origin)
        if pool is not None:
            pool.cut_short(on_event)

    async def close(self) -> None:
        """Hang up on all peers. Exchanges under way fail."""
        self._closed = True
        await asyncio.gather(*(pool.close(_CLOSE_S) for pool in tuple(self._pools.values())))
        self._pools.clear()

    def open_connections(self, origin: Origin) -> int:
        """How many connections to this origin exist now; for health pages and tests."""
        pool = self._pools.get(origin)
        return pool.open_count if pool is not None else 0

    def idle_connections(self, origin: Origin) -> int:
        """How many of them are waiting to be used again."""
        pool = self._pools.get(origin)
        return pool.idle_count if pool is not None else 0

    def _add_pool(self, origin: Origin) -> OriginPool:
        if self._closed:
            raise HttpFailure(Stage.POOL_FULL, "the client is closed", Executed.NO)
        context = self._tls_context() if origin.tls else None
        pool = self._pools[origin] = OriginPool(origin, self._pool_limits, self._limits, context, self._drop_pool)
        return pool

    def _drop_pool(self, pool: OriginPool) -> None:
        if self._pools.get(pool.origin) is pool:
            del self._pools[pool.origin]

    def _tls_context(self) -> ssl.SSLContext:
        # Reading the trust store takes tens of milliseconds, so only who speaks TLS pays, once.
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context
