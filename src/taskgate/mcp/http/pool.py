"""The connections to one origin: idle ones, a count of all, and the exchanges that wait for a connection.

Idle connections are reused last in, first out, so that surplus ones expire after a quiet period. Exchanges that hold a
connection for a long time (task runs, listening streams) are counted separately, so that they cannot use up the
connections of ordinary calls.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from ssl import SSLContext

import msgspec

from taskgate import clock
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connect import open_connection
from taskgate.mcp.http.connection import HttpConnection
from taskgate.mcp.http.reader import OnEvent, ReplyLimits, ReplyReader
from taskgate.mcp.http.target import Origin


class PoolLimits(msgspec.Struct, frozen=True):
    """Limits of one origin: connections, waiting exchanges, connect timeout and idle time."""

    max_idle: int
    max_connections: int
    """Connections of exchanges that are not long-lived."""
    max_long_lived: int
    max_waiting: int
    connect_timeout_s: float
    idle_s: float


class OriginPool:
    """The pool of one origin. `on_empty` is called when no connection and no waiting exchange is left."""

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
        """Connections being opened, by whether they are long-lived."""
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
        """Return the most recently used idle connection that the peer has not closed, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def obtain(self, due: float, *, long_lived: bool) -> HttpConnection:
        """Return an idle connection, a new one, or the next that becomes free. Raises HttpFailure at `due`."""
        had_turn = False
        while True:
            if self._closed:
                raise HttpFailure(Stage.POOL_FULL, "the client is closed", Executed.NO)
            connection = self.take_idle() if not long_lived or self._has_room(long_lived=True) else None
            if connection is None and self._has_room(long_lived=long_lived):
                connection = await self._open(due, long_lived=long_lived)
            if connection is None:
                connection = await self._wait_for_connection(due, long_lived=long_lived, first=had_turn)
            if connection is not None and connection.is_usable():
                if long_lived:
                    self._long_lived.add(connection)
                return connection
            had_turn = True

    def _has_room(self, *, long_lived: bool) -> bool:
        used = len(self._long_lived) if long_lived else len(self._all) - len(self._long_lived)
        maximum = self._limits.max_long_lived if long_lived else self._limits.max_connections
        return used + self._opening[long_lived] < maximum

    def mark_long_lived(self, on_event: OnEvent) -> None:
        """Stop counting the connection of this exchange among those of ordinary calls."""
        for connection in self._all:
            if connection.delivers_to(on_event):
                self._long_lived.add(connection)
                self._wake_next(long_lived=False)
                return

    def apply_limits(self) -> None:
        for connection in self._all:
            connection.apply_limits()

    def abort_exchange(self, on_event: OnEvent) -> None:
        for connection in tuple(self._all):
            if connection.delivers_to(on_event):
                connection.abort()

    async def close(self, within_s: float) -> None:
        """Close all connections and wait until the event loop has released their sockets."""
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
                raise HttpFailure(Stage.CONNECT, "the connection was closed as soon as it was opened", Executed.NO)
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
            on_lost=self._remove,
        )

    def _put_back(self, connection: HttpConnection) -> None:
        limits = self._limits
        if (
            len(self._idle) < limits.max_idle
            and len(self._all) <= limits.max_connections
            and not (self._long_lived or self._closed or self._waiting[False] or self._waiting[True])
        ):
            # The common case: no limit is reached and no exchange waits.
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

    def _remove(self, connection: HttpConnection) -> None:
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

    async def _wait_for_connection(self, due: float, *, long_lived: bool, first: bool) -> HttpConnection | None:
        """Return a connection that became free, or None if a new one may be opened or the pool closes."""
        waiting = self._waiting[long_lived]
        if len(waiting) >= self._limits.max_waiting:
            raise HttpFailure(Stage.POOL_FULL, "too many exchanges are waiting for a connection", Executed.NO)
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
            raise HttpFailure(Stage.POOL_FULL, "no connection became free before the deadline", Executed.NO) from None
        finally:
            if not taken:
                self._leave_queue(turn, long_lived=long_lived)

    def _leave_queue(self, turn: asyncio.Future[HttpConnection | None], *, long_lived: bool) -> None:
        """Leave the queue. A connection that was assigned at the same moment goes to the next exchange."""
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
