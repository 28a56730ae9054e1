"""How the SQLite store writes, reads and keeps time, for the views that every store shares.

There is one writer for the whole file, so the locks that operations name are of no interest here. Point reads take some tens of
microseconds, less than a hop to a thread would, so they run in place; long results are files, read and written in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import DeferredWrite, Operation, TakeBack, unavailable
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.transaction import KeptEvents, Locks
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.connection import SQL
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.spill_files import SpillFiles
from taskgate.store.sqlite.writer import Writer

T = TypeVar("T")


class ResultFiles:
    """`views.base.LargeResults` over files beside the database."""

    def __init__(self, files: SpillFiles, reader: Reader) -> None:
        self._files = files
        self._reader = reader

    async def write(self, task_id: str, body: bytes) -> str:
        try:
            return await asyncio.to_thread(self._files.write, task_id, body)
        except OSError as error:
            raise unavailable(error.strerror or "a result file could not be written") from error

    async def read(self, name: str) -> bytes:
        return await asyncio.to_thread(self._files.read, name)

    async def remove(self, names: list[str]) -> int:
        return await asyncio.to_thread(self._files.remove, names)

    async def remove_orphans(self) -> int:
        named = self._reader.spill_names()
        return await asyncio.to_thread(self._files.remove_orphans, named, clock.wall())


class SqliteEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        writer: Writer,
        reading: sqlite3.Connection,
        spill_files: SpillFiles,
        clock: Callable[[], int],
        ownership: Ownership,
        kept_events: KeptEvents,
        last_known: LastKnown,
        sealing: Sealing,
    ) -> None:
        self.sealing = sealing
        self.writer = writer
        self.ownership = ownership
        self.kept_events = kept_events
        self.last_known = last_known
        self.reader = Reader(statements_of(reading), kept_events, sealing)
        self.large_results = ResultFiles(spill_files, self.reader)
        self._reading = reading
        self._clock = clock

    @property
    def comes_back(self) -> bool:
        return False

    def now_ms(self) -> int:
        return self._clock()

    def may_send(self) -> bool:
        """Nobody else can have taken over: the kernel's lock on the file is ours as long as we live."""
        return True

    @property
    def trouble(self) -> str | None:
        try:
            if not self.reader.is_current(self.ownership):
                return "another Taskgate has taken over this store; this one must stop"
        except GatewayFault as fault:
            return fault.message
        return self.writer.trouble

    async def write(self, operation: Operation[T], locks: Locks, take_back: TakeBack | None = None) -> T:
        return await self.writer.write(operation, take_back)

    async def read(self, ask: Callable[[Reader], T]) -> T:
        return ask(self.reader)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        await self.writer.rewrite()

    async def close(self) -> None:
        await self.writer.stop()
        self.last_known.close()
        self._reading.close()


def statements_of(connection: sqlite3.Connection) -> Callable[..., sqlite3.Cursor]:
    """Named statements on a connection that reads."""

    def run(name: str, /, **values: Any) -> sqlite3.Cursor:
        try:
            return connection.execute(SQL[name], values)
        except sqlite3.OperationalError as error:
            # Readers wait for nobody in ordinary life; where they would, the event loop must not.
            raise GatewayFault("store_unavailable", f"The store cannot be read: {error}. Try again soon.") from error

    return run
