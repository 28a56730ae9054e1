"""A small pooled HTTP/1.1 client for talking to upstreams.

It knows one thing that no library tells: whether the last byte of a request had left when an exchange failed. In return
it does without everything a tool call must not have: automatic retries, redirects, proxies, cookies, compression.
Anything that is not a tool call (webhooks, OAuth, keys) uses a general client. One object serves the whole process.

The connections to one origin form a pool: a stack of idle ones, a count of all, and queues of exchanges that wait for a
turn. Last in, first out, so that a quiet period lets the surplus grow old and go. Exchanges that hold a connection for long
(runs of tasks, streams that only listen) are counted apart, so that they cannot take the connections of plain calls.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import HttpConnection
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnEvent, OnHead, ReplyLimits, ReplyReader
from taskgate.mcp.http.target import Origin, Target, open_connection
from taskgate.mcp.http.tls import default_context


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many connections and waiters one origin may have, how long opening may take and an unused one is kept."""

    max_idle: int
    max_connections: int
    """Of exchanges that are answered soon."""
    max_long_lived: int
    max_waiting: int
    connect_timeout_s: float
    idle_s: float


class OriginPool:
    """See the module. `on_empty` tells the client that nothing is left to remember."""

    def __init__(
        self,
        origin: Origin,
        limits: PoolLimits,
        reply_limits: ReplyLimits,
        context: SSLContext | None,
        on_empty: Callable[[OriginPool], None],
    ) -> None:
        self.origin = origin
        self._limits = limits
        self._reply_limits = reply_limits
        self._context = context
        self._on_empty = on_empty
        self._idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._long_lived: set[HttpConnection] = set()
        self._opening = {False: 0, True: 0}
        """How many are being opened, by whether they are for something long-lived."""
        self._waiting: dict[bool, deque[asyncio.Future[HttpConnection | None]]] = {False: deque(), True: deque()}
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    @property
    def open_count(self) -> int:
        return len(self._all)

    def take_idle(self) -> HttpConnection | None:
        """The idle connection used last, unless the peer has closed it meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def obtain(self, due: float, *, long_lived: bool) -> HttpConnection:
        """An idle connection, a new one, or the next that comes free; all before `due` or an HttpFailure."""
        had_turn = False
        while True:
            if self._closed:
                raise HttpFailure(Stage.POOL_FULL, "the client is closed", Executed.NO)
            connection = self.take_idle() if not long_lived or self._has_room(long_lived=True) else None
            if connection is None and self._has_room(long_lived=long_lived):
                connection = await self._open(due, long_lived=long_lived)
            if connection is None:
                connection = await self._wait_turn(due, long_lived=long_lived, first=had_turn)
            if connection is not None and connection.is_usable():
                if long_lived:
                    self._long_lived.add(connection)
                return connection
            had_turn = True

    def _has_room(self, *, long_lived: bool) -> bool:
        used = len(self._long_lived) if long_lived else len(self._all) - len(self._long_lived)
        most = self._limits.max_long_lived if long_lived else self._limits.max_connections
        return used + self._opening[long_lived] < most

    def outlives_its_call(self, on_event: OnEvent) -> None:
        """What this exchange carries goes on for long: its connection no longer counts among those of plain calls."""
        for connection in self._all:
            if connection.tells(on_event):
                self._long_lived.add(connection)
                self._wake_next(long_lived=False)
                return

    def adopt_limits(self) -> None:
        for connection in self._all:
            connection.adopt_limits()

    def cut_short(self, on_event: OnEvent) -> None:
        for connection in tuple(self._all):
            if connection.tells(on_event):
                connection.abort()

    async def close(self, within_s: float) -> None:
        """Hang up on everyone and wait until the event loop has let go of the sockets."""
        self._closed = True
        for connection in tuple(self._all):
            connection.abort()
        for waiter in (*self._waiting[False], *self._waiting[True]):
            if not waiter.done():
                waiter.set_result(None)
        if self._all:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=within_s)

    async def _open(self, due: float, *, long_lived: bool) -> HttpConnection:
        until = min(due, clock.monotonic() + self._limits.connect_timeout_s)
        self._opening[long_lived] += 1
        try:
            connection = await open_connection(self.origin, self._make, context=self._context, until=until)
            if self._closed or not connection.is_usable():
                connection.abort()
                raise HttpFailure(Stage.CONNECT, "the connection was closed as soon as it was open", Executed.NO)
            self._all.add(connection)
            if long_lived:
                self._long_lived.add(connection)
        except HttpFailure as failure:
            if clock.monotonic() >= due:
                text = f"{failure.stage}: {failure.message}"
                raise HttpFailure(Stage.DEADLINE, text, Executed.NO, reason=failure.reason) from failure
            raise
        finally:
            self._opening[long_lived] -= 1
            self._wake_next(long_lived=long_lived)
        return connection

    def _make(self) -> HttpConnection:
        return HttpConnection(
            ReplyReader(self._reply_limits),
            tls=self.origin.tls,
            keep_s=self._limits.idle_s,
            on_free=self._put_back,
            on_lost=self._forget,
        )

    def _put_back(self, connection: HttpConnection) -> None:
        limits = self._limits
        if (
            len(self._idle) < limits.max_idle
            and len(self._all) <= limits.max_connections
            and not (self._long_lived or self._closed or self._waiting[False] or self._waiting[True])
        ):
            # Nothing is short, and nobody waits.
            self._idle.append(connection)
            return
        was_long_lived = connection in self._long_lived
        self._long_lived.discard(connection)
        too_many = len(self._all) - len(self._long_lived) > self._limits.max_connections
        if self._closed or too_many or len(self._idle) >= self._limits.max_idle:
            connection.abort()
        elif not (self._waiting[False] or self._waiting[True]) or not (
            self._wake_next(connection, long_lived=was_long_lived)
            or self._wake_next(connection, long_lived=not was_long_lived)
        ):
            self._idle.append(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        self._long_lived.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        for long_lived in (False, True):
            if self._has_room(long_lived=long_lived):
                self._wake_next(long_lived=long_lived)
        if not self._all and not any(self._opening.values()) and not any(self._waiting.values()):
            if self._emptied is not None and not self._emptied.done():
                self._emptied.set_result(None)
            self._on_empty(self)

    async def _wait_turn(self, due: float, *, long_lived: bool, first: bool) -> HttpConnection | None:
        """A connection that came free, or None when there is room for a new one or the pool closes."""
        waiting = self._waiting[long_lived]
        if len(waiting) >= self._limits.max_waiting:
            raise HttpFailure(Stage.POOL_FULL, "too many exchanges already wait for a connection", Executed.NO)
        turn: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        if first:
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
        taken = False
        try:
            async with asyncio.timeout_at(due if due < math.inf else None):
                connection = await turn
            taken = True
            return connection
        except TimeoutError:
            raise HttpFailure(Stage.POOL_FULL, "no connection came free before the deadline", Executed.NO) from None
        finally:
            if not taken:
                self._give_up(turn, long_lived=long_lived)

    def _give_up(self, turn: asyncio.Future[HttpConnection | None], *, long_lived: bool) -> None:
        """Leave the queue; if the turn had come at that very moment, the next one has it."""
        if turn in self._waiting[long_lived]:
            self._waiting[long_lived].remove(turn)
        elif turn.done() and not turn.cancelled():
            handed = turn.result()
            if handed is None:
                self._wake_next(long_lived=long_lived)
            else:
                self._put_back(handed)

    def _wake_next(self, connection: HttpConnection | None = None, *, long_lived: bool) -> bool:
        waiting = self._waiting[long_lived]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                if connection is not None and long_lived:
                    self._long_lived.add(connection)
                turn.set_result(connection)
                return True
        return False


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
        on_chunk: OnChunk | None = None,
        due: float | None = None,
        long_lived: bool = False,
        on_sending: Callable[[], None] | None = None,
    ) -> HttpReply:
        """One request and its reply, or an HttpFailure.

        `deadline_s` bounds everything from here to the answer, waiting for a connection included; `idle_s` bounds the
        silence between bytes and is meant for long-lived streams without a deadline. `on_head` and `on_event` run
        synchronously in the event loop as bytes arrive; an `on_event` that returns True ends the exchange there and
        then; `on_chunk` takes an event stream unread, to pass it on. `due` is the deadline on the loop's clock, for who
        has worked it out already. `long_lived`: it takes none of the connections that are kept for what is answered soon;
        whoever says so bounds how many there are. Cancelling the caller closes the connection at once; `on_sending` runs
        right before the first byte leaves, so whoever is cancelled earlier knows that nothing was sent.
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
        future = connection.begin(
            request, due=due, idle_s=idle_s, on_head=on_head, on_event=on_event, on_chunk=on_chunk
        )
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
