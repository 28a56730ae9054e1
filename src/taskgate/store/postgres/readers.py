"""Reads from PostgreSQL. They see the last commit and do not wait for the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import psycopg

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.postgres.connection import Connection, connect, reason
from taskgate.store.postgres.statements import PREPARED, SQL
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState

T = TypeVar("T")

READERS: Final = 4
READ_WITHIN_S: Final = 15.0


class _PerThread(threading.local):
    """The connection of a reading thread."""

    connection: Connection | None = None

    def keep(self, connection: Connection | None) -> None:
        self.connection = connection


class Readers:
    """A few threads, each with a connection of its own."""

    def __init__(
        self,
        url: str,
        state: StoreState,
        chain: str,
        share: Callable[[], tuple[int, int]],
        sealing: Sealing,
    ) -> None:
        """`share`: see `Presence.share`."""
        self._sealing = sealing
        self._share = share
        self._url = url
        self._state = state
        self._chain = chain
        self._own = _PerThread()
        self._open: set[Connection] = set()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="taskgate-store-reads")

    async def read(self, ask: Callable[[Reader], T], clock: Callable[[], int], ownership: Ownership) -> T:
        def on(connection: Connection) -> T:
            run = self._statements(connection)
            return ask(Reader(run, self._state, self._sealing, clock=clock, ownership=ownership, is_shared=True))

        return await self.on_connection(on)

    async def on_connection(self, ask: Callable[[Connection], T]) -> T:
        """Run a function on a connection. Raises GatewayFault if the database is unavailable."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._retry, ask)
        except TimeoutError:
            raise unreadable("the database did not answer in time") from None

    def _retry(self, ask: Callable[[Connection], T]) -> T:
        """Run it, once more on a new connection if the old one was lost since it was last used."""
        was_open = self._connection() is not None
        try:
            return ask(self._connected())
        except psycopg.OperationalError as error:
            self._disconnect()
            if not was_open or isinstance(error, psycopg.errors.QueryCanceled):
                raise unreadable(reason(error)) from error
        try:
            return ask(self._connected())
        except psycopg.OperationalError as error:
            self._disconnect()
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

    def _disconnect(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.close()
            self._open.discard(connection)
            self._own.keep(None)

    def _statements(self, connection: Connection) -> Callable[..., psycopg.Cursor[tuple[Any, ...]]]:
        def run(name: str, /, **values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
            values["chain"] = self._chain
            values["part"], values["parts"] = self._share()
            return connection.cursor(binary=True).execute(SQL[name], values, prepare=PREPARED.get(name))

        return run

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()


def unreadable(why: str) -> GatewayFault:
    return GatewayFault("store_unavailable", f"The store cannot be read: {why}. Try again shortly.")
