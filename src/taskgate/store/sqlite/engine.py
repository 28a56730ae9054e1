"""How the SQLite store writes, reads and measures time, for `store.open_store`.

The file has one writer, so the locks that operations declare are not needed here. Point reads take some tens of microseconds, less
than a switch to a thread, so they run in place; long results are files, read and written in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DeferredWrite, Revert, Write, unavailable
from taskgate.store.locks import Locks
from taskgate.store.operations.audit import last_audit
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.result_files import SpillFiles
from taskgate.store.sqlite.statements import run_named
from taskgate.store.sqlite.store_files import StoreFiles
from taskgate.store.sqlite.writer import Writer
from taskgate.store.state import StoreState
from taskgate.store.transaction import Statements

T = TypeVar("T")


class ResultFiles:
    """Implements `engine.LargeResults` with files beside the database."""

    def __init__(self, files: SpillFiles, run: Statements) -> None:
        self._files, self._run = files, run

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
        named = {row[0] for row in self._run("spill_names")}
        return await asyncio.to_thread(self._files.remove_orphans, named, clock.wall())


class SqliteEngine:
    """Built by `open_store`."""

    def __init__(
        self,
        writer: Writer,
        reading: sqlite3.Connection,
        searching: sqlite3.Connection,
        spill_files: SpillFiles,
        *,
        clock: Callable[[], int],
        ownership: Ownership,
        state: StoreState,
        last_known: LastKnown,
        files: StoreFiles,
        sealing: Sealing,
    ) -> None:
        self.sealing = sealing
        self.files = files
        self.writer = writer
        self.ownership = ownership
        self.state = state
        self.last_known = last_known
        about: dict[str, Any] = {"clock": clock, "ownership": ownership, "is_shared": False}
        self._reader = Reader(statements_of(reading), state, sealing, **about)
        self.large_results = ResultFiles(spill_files, self._reader.run)
        self._reading = reading
        self._searching = searching
        self._searcher = Reader(statements_of(searching), state, sealing, **about)
        self._search_thread = ThreadPoolExecutor(1, thread_name_prefix="taskgate-store-searches")
        self.now_ms = clock

    @property
    def can_rejoin(self) -> bool:
        return False

    def may_send(self) -> bool:
        """Always true: this process holds the lock on the file, so no other gateway can have taken over."""
        return True

    @property
    def problem(self) -> str | None:
        try:
            if not is_current(self._reader.run, self.ownership):
                return "another Taskgate has taken over this store; this one must stop"
        except GatewayFault as fault:
            return fault.message
        return self.files.lost() or self.writer.problem

    async def write(self, operation: Write[T], locks: Locks, revert: Revert | None = None) -> T:
        return await self.writer.write(operation, revert)

    async def read(self, query: Callable[[Reader], T]) -> T:
        return query(self._reader)

    async def read_in_thread(self, query: Callable[[Reader], T]) -> T:
        """On a connection and a thread of its own: one search at a time, so that many of them cannot occupy the machine."""
        return await asyncio.get_running_loop().run_in_executor(self._search_thread, query, self._searcher)

    def audit_head(self) -> tuple[int, str]:
        return last_audit(self._reader.run)

    def defer(self, write: DeferredWrite) -> None:
        self.writer.defer(write)

    async def overwrite_deleted(self) -> None:
        await self.writer.rewrite()

    async def close(self) -> None:
        await self.writer.stop()
        self.last_known.close()
        self._reading.close()
        await asyncio.to_thread(self._search_thread.shutdown, cancel_futures=True)
        self._searching.close()


def is_current(run: Statements, ours: Ownership) -> bool:
    """Return whether no other owner has taken over since the store was opened."""
    found = run("find_owner", owner=ours.owner).fetchone()
    return found is not None and found[0] == ours.fence and not found[1]


def statements_of(connection: sqlite3.Connection) -> Callable[..., sqlite3.Cursor]:
    """Return a function that runs named statements on a reading connection."""

    def run(name: str, /, **values: Any) -> sqlite3.Cursor:
        try:
            return run_named(connection, name, values)
        except sqlite3.OperationalError as error:
            # Readers normally wait for no lock; if they would have to, the event loop must not.
            raise GatewayFault("store_unavailable", f"The store cannot be read: {error}. Try again soon.") from error

    return run
