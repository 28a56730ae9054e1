"""How the PostgreSQL store writes, reads and keeps time, for the views that every store shares."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import psycopg

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import DeferredWrite, KeptEvents, Locks, Operation, TakeBack
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.restored import RestoreState
from taskgate.store.postgres.commit import Committer
from taskgate.store.postgres.connection import SQL, Connection, connect, reason
from taskgate.store.postgres.presence import Presence, Wakeups
from taskgate.store.postgres.writer import Writer
from taskgate.store.sealing import Sealing

# Reads: a few threads, each with a connection of its own, because answers travel. Readers see the last commit.

T = TypeVar("T")

READERS: Final = 4
READ_WITHIN_S: Final = 15.0


class _OfThread(threading.local):
    """What each reading thread has for itself."""

    connection: Connection | None = None

    def keep(self, connection: Connection | None) -> None:
        self.connection = connection


class Readers:
    def __init__(
        self, url: str, kept_events: KeptEvents, chain: str, share: Callable[[], tuple[int, int]], sealing: Sealing
    ) -> None:
        """`share`: see `Presence.share`."""
        self._sealing = sealing
        self._share = share
        self._url = url
        self._kept_events = kept_events
        self._chain = chain
        self._own = _OfThread()
        self._open: set[Connection] = set()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="taskgate-store-reads")

    async def read(self, ask: Callable[[Reader], T]) -> T:
        return await self.on_connection(
            lambda connection: ask(Reader(self._statements(connection), self._kept_events, self._sealing))
        )

    async def on_connection(self, ask: Callable[[Connection], T]) -> T:
        """Raises GatewayFault if the database cannot be asked."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, ask)
        except TimeoutError:
            raise unreadable("the database did not answer in time") from None

    def _ask(self, ask: Callable[[Connection], T]) -> T:
        """Once more on a new connection, because the old one may have died unnoticed since it was last used."""
        was_open = self._connection() is not None
        try:
            return ask(self._connected())
        except psycopg.OperationalError as error:
            self._hang_up()
            if not was_open or isinstance(error, psycopg.errors.QueryCanceled):
                raise unreadable(reason(error)) from error
        try:
            return ask(self._connected())
        except psycopg.OperationalError as error:
            self._hang_up()
            raise unreadable(reason(error)) from error

    def _connection(self) -> Connection | None:
        return self._own.connection

    def _connected(self) -> Connection:
        connection = self._connection()
        if connection is None:
            connection = connect(self._url, "taskgate reader")
            self._own.keep(connection)
            self._open.add(connection)
        return connection

    def _hang_up(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.close()
            self._open.discard(connection)
            self._own.keep(None)

    def _statements(self, connection: Connection) -> Callable[..., psycopg.Cursor[tuple[Any, ...]]]:
        def run(name: str, /, **values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
            values["chain"] = self._chain
            values["part"], values["parts"] = self._share()
            return connection.cursor(binary=True).execute(SQL[name], values)

        return run

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()


def unreadable(why: str) -> GatewayFault:
    return GatewayFault("store_unavailable", f"The store cannot be read: {why}. Try again soon.")


# Results too long for one row: a table of pieces, written and committed before the commit that names them.

CHUNK: Final = 1 << 20
_ORPHAN_AGE_MS: Final = 600_000


class ResultChunks:
    """`views.base.LargeResults` over the table `result_chunks`."""

    def __init__(self, readers: Readers, now_ms: Callable[[], int]) -> None:
        self._connections = readers
        self._now_ms = now_ms

    async def write(self, task_id: str, body: bytes) -> str:
        name = f"{task_id}.{secrets.token_hex(8)}"
        at = self._now_ms()

        def put(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute("DELETE FROM result_chunks WHERE name = %s", [name])
                for number, start in enumerate(range(0, len(body), CHUNK)):
                    cursor.execute(
                        "INSERT INTO result_chunks (name, number, created_ms, bytes) VALUES (%s, %s, %s, %s)",
                        [name, number, at, body[start : start + CHUNK]],
                    )

        await self._connections.on_connection(put)
        return name

    async def read(self, name: str) -> bytes:
        def get(connection: Connection) -> bytes:
            query = "SELECT bytes FROM result_chunks WHERE name = %s ORDER BY number"
            return b"".join(row[0] for row in connection.cursor(binary=True).execute(query, [name]))

        return await self._connections.on_connection(get)

    async def remove(self, names: list[str]) -> int:
        if not names:
            return 0

        def drop(connection: Connection) -> int:
            connection.execute("DELETE FROM result_chunks WHERE name = ANY(%s)", [names])
            return len(names)

        return await self._connections.on_connection(drop)

    async def remove_orphans(self) -> int:
        before = self._now_ms() - _ORPHAN_AGE_MS
        found = await self._connections.on_connection(
            lambda connection: connection.execute(SQL["orphan_chunks"], {"before_ms": before}).fetchall()
        )
        return await self.remove([row[0] for row in found])


class PostgresEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        *,
        kept_events: KeptEvents,
        committer: Committer,
        readers: Readers,
        presence: Presence,
        wakeups: Wakeups,
        sealing: Sealing,
        restore: RestoreState,
    ) -> None:
        self.sealing = sealing
        self.restore = restore
        self.kept_events = kept_events
        self.presence = presence
        self.wakeups = wakeups
        self.committer = committer
        self.writer = Writer(committer)
        self.readers = readers
        self.large_results = ResultChunks(readers, presence.now_ms)

    @property
    def ownership(self) -> Ownership:
        return self.presence.ownership

    @property
    def comes_back(self) -> bool:
        return True

    def now_ms(self) -> int:
        return self.presence.now_ms()

    def may_send(self) -> bool:
        return self.presence.is_fresh

    @property
    def trouble(self) -> str | None:
        return self.writer.trouble or self.presence.trouble

    async def write(self, operation: Operation[T], locks: Locks, take_back: TakeBack | None = None) -> T:
        return await self.writer.write(operation, take_back, locks)

    async def read(self, ask: Callable[[Reader], T]) -> T:
        return await self.readers.read(ask)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        """The server keeps its files: its vacuum frees the pages, and its log and backups have their own times."""

    async def close(self) -> None:
        await self.writer.stop()
        self.restore.release()
        await asyncio.to_thread(self.presence.end)
        await asyncio.to_thread(self.readers.close)
