"""The SQLite store as the gateway sees it: all of `ports.store.Store` over one file.

Writes go through the `Writer` thread and return when they are synced; reads run in place on a connection of their
own. There is one process per file: `open_store` takes a kernel lock, which the kernel gives back however the process
ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.sqlite.approval_side import ApprovalSide
from taskgate.store.sqlite.catalog_side import CatalogSide
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.connection import (
    SYNCHRONOUS,
    connect_reader,
    connect_writer,
    migrate,
    never_wait,
    start_log_over,
)
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.kept_events import KeptEvents
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.log_side import LogSide
from taskgate.store.sqlite.named_queries import SQL
from taskgate.store.sqlite.reader import Reader
from taskgate.store.sqlite.scope_side import ScopeSide
from taskgate.store.sqlite.spill_files import SpillFiles
from taskgate.store.sqlite.task_side import TaskSide
from taskgate.store.sqlite.transaction import Transaction
from taskgate.store.sqlite.writer import Writer

DEFAULT_OWNER = "taskgate"


def system_clock() -> int:
    return clock.wall_ms()


class SqliteStore(TaskSide, ApprovalSide, LogSide, CatalogSide, ScopeSide):
    """One open store. Made by `open_store`, ended by `close`."""

    _lock: FileLock | None = None

    async def keep(self, name: str, value: bytes) -> bytes:
        def operation(tx: Transaction) -> bytes:
            tx.run("keep", name=name, value=value)
            kept: bytes = tx.run("kept", name=name).fetchone()[0]
            return kept

        return await self._write_or_fault(operation)

    async def close(self) -> None:
        """Write what waits, then let go of the file."""
        await self._writer.stop()
        self._last_known.close()
        self._reader.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def open_store(
    path: Path,
    *,
    owner: str = DEFAULT_OWNER,
    clock: Callable[[], int] = system_clock,
    locked: bool = True,
    synchronous: str = SYNCHRONOUS,
) -> SqliteStore:
    """Open or create the store in this file.

    Blocks for some milliseconds; call it before serving. `locked=False` and another `synchronous` exist only to let tests show
    that fencing and syncing are needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(path) if locked else None
    try:
        writing, checkpointing, reading = _connect_all(path, synchronous)
        fence = writing.execute(SQL["take_fence"], {"owner": owner, "now_ms": clock()}).fetchone()[0]
        never_wait(writing)
        last = writing.execute(SQL["last_audit"]).fetchone()
        last_known = LastKnown(path, last[0] if last is not None else 0)
    except (sqlite3.Error, OSError, GatewayFault) as error:
        if lock is not None:
            lock.release()
        if isinstance(error, GatewayFault):
            raise
        raise GatewayFault("store_unavailable", f"The store {path} cannot be opened: {error}.") from error
    ownership = Ownership(owner, fence)
    kept = KeptEvents()
    checkpointer = Checkpointer(checkpointing, path.with_name(path.name + "-wal"))
    writer = Writer(writing, checkpointer, clock, ownership, kept, last_known)
    store = SqliteStore(writer, Reader(reading, kept), SpillFiles(path), clock, ownership, kept, last_known)
    store._lock = lock
    writer.start()
    return store


def _connect_all(path: Path, synchronous: str) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    """The connections that write, checkpoint and read."""
    writing = connect_writer(path, synchronous=synchronous)
    try:
        start_log_over(writing)
        migrate(writing)
        return writing, connect_writer(path, synchronous=synchronous), connect_reader(path)
    except BaseException:
        writing.close()
        raise
