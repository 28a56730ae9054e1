"""The SQLite store as the gateway sees it: all of `ports.store.Store` over one file.

Writes go through the `Writer` thread and return when they are synced; reads run in place on a connection of their
own. There is one process per file: `open_store` takes a kernel lock, which the kernel gives back however the process
ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.store.operations.transaction import KeptEvents, Transaction
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.connection import (
    SQL,
    SYNCHRONOUS,
    check_keys,
    connect_reader,
    connect_writer,
    migrate,
    never_wait,
    start_log_over,
)
from taskgate.store.sqlite.engine import SqliteEngine
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.spill_files import SpillFiles
from taskgate.store.sqlite.writer import Writer
from taskgate.store.views.approvals import ApprovalView
from taskgate.store.views.catalogs import CatalogView
from taskgate.store.views.logs import LogView
from taskgate.store.views.scopes import ScopeView
from taskgate.store.views.tasks import TaskView
from taskgate.store.views.usage import UsageView

DEFAULT_OWNER = "taskgate"


def system_clock() -> int:
    return clock.wall_ms()


class SqliteStore(TaskView, ApprovalView, LogView, CatalogView, ScopeView, UsageView):
    """One open store. Made by `open_store`, ended by `close`."""

    def __init__(self, engine: SqliteEngine, lock: FileLock | None) -> None:
        super().__init__(engine)
        self.engine = engine
        self._lock = lock

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written just now: the disk refuses, or the store belongs to somebody else."""
        return self.engine.trouble

    @property
    def wakeups(self) -> None:
        """Nobody else has this store open."""
        return None

    @property
    def revisions(self) -> None:
        """Nobody else changes what is kept in memory."""
        return None

    @property
    def shared_servers(self) -> None:
        return None

    @property
    def shared_questions(self) -> None:
        return None

    @property
    def lease_ms(self) -> int:
        return 0

    def reconfigured(self, digest: str) -> None:
        """Nobody else is there to see it."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return ()

    @property
    def sessions(self) -> None:
        """Nobody else could go on with them."""
        return None

    @property
    def is_restored(self) -> bool:
        """The database is older than what this installation last wrote: it was put back from a backup."""
        return self.engine.last_known.is_ahead

    async def accept_restored(self) -> None:
        def last_row(tx: Transaction) -> int:
            found = tx.run("last_audit").fetchone()
            return found[0] if found is not None else 0

        self.engine.last_known.start_over(await self._write_or_fault(last_row))

    @property
    def is_committing(self) -> bool:
        """Whether a commit is on its way to the disk."""
        return self.engine.writer.is_committing

    def audit_head(self) -> tuple[int, str]:
        return self.engine.reader.audit_head()

    async def close(self) -> None:
        """Write what waits, then let go of the file."""
        await self.engine.close()
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
    keys: Sequence[str] = (),
) -> SqliteStore:
    """Open or create the store in this file.

    Blocks for some milliseconds; call it before serving. `locked=False` and another `synchronous` exist only to let tests show
    that fencing and syncing are needed. `keys` encrypt what is written, see `store.sealing`; a store that needs one is not opened
    without it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sealing = Sealing(keys)
    lock = FileLock(path) if locked else None
    try:
        writing, checkpointing, reading = _connect_all(path, synchronous, sealing)
        fence = writing.execute(SQL["take_fence"], {"owner": owner, "now_ms": clock()}).fetchone()[0]
        if sealing.used is not None:
            writing.execute(SQL["keep"], {"name": sealing.used, "value": b""})
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
    writer = Writer(writing, checkpointer, clock, ownership, kept, last_known, sealing)
    engine = SqliteEngine(writer, reading, SpillFiles(path), clock, ownership, kept, last_known, sealing)
    writer.start()
    return SqliteStore(engine, lock)


def _connect_all(
    path: Path, synchronous: str, sealing: Sealing
) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    """The connections that write, checkpoint and read."""
    writing = connect_writer(path, synchronous=synchronous)
    try:
        check_keys(writing, sealing, path)
        start_log_over(writing)
        migrate(writing)
        return writing, connect_writer(path, synchronous=synchronous), connect_reader(path)
    except BaseException:
        writing.close()
        raise
