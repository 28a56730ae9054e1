"""The SQLite store as the gateway sees it: all of `ports.store.Store` over one file.

Writes go through the `Writer` thread and return when they are synced; reads run in place on a connection of their
own. There is one process per file: `open_store` takes a kernel lock, which the kernel gives back however the process
ends.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DeferredWrite, Operation, Revert, unavailable
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.restored import RESTORED, RestoreState
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.connection import (
    SYNCHRONOUS,
    check_keys,
    connect_reader,
    connect_writer,
    migrate,
    never_wait,
    truncate_log,
)
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.last_known import FIRST_SCHEMA_WITH_MARK, LastKnown, LifeMark
from taskgate.store.sqlite.result_files import SpillFiles
from taskgate.store.sqlite.statements import run_named
from taskgate.store.sqlite.store_files import StoreFiles
from taskgate.store.sqlite.transaction import create_gathering_view
from taskgate.store.sqlite.writer import Writer
from taskgate.store.transaction import KeptEvents, Locks
from taskgate.store.views.base import LogView
from taskgate.store.views.records import ApprovalView, CatalogView, ScopeView, UsageView
from taskgate.store.views.restored import RestoredView
from taskgate.store.views.tasks import TaskView

# How the SQLite store writes, reads and keeps time, for the views that every store shares.
#
# There is one writer for the whole file, so the locks that operations name are of no interest here. Point reads take
# some tens of microseconds, less than a hop to a thread would, so they run in place; long results are files, read and
# written in a thread.

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
        *,
        clock: Callable[[], int],
        ownership: Ownership,
        kept_events: KeptEvents,
        last_known: LastKnown,
        files: StoreFiles,
        sealing: Sealing,
        restore: RestoreState,
    ) -> None:
        self.sealing = sealing
        self.files = files
        self.restore = restore
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
        return self.files.lost() or self.writer.trouble

    async def write(self, operation: Operation[T], locks: Locks, revert: Revert | None = None) -> T:
        return await self.writer.write(operation, revert)

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
            return run_named(connection, name, values)
        except sqlite3.OperationalError as error:
            # Readers wait for nobody in ordinary life; where they would, the event loop must not.
            raise GatewayFault("store_unavailable", f"The store cannot be read: {error}. Try again soon.") from error

    return run


DEFAULT_OWNER = "taskgate"


def system_clock() -> int:
    return clock.wall_ms()


class SqliteStore(TaskView, ApprovalView, LogView, CatalogView, ScopeView, UsageView, RestoredView):
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
    def lost(self) -> str | None:
        """Why this process can never write to the store again: its files are gone."""
        return self.engine.files.lost()

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
        (writing, checkpointing, reading), schema = _connect_all(path, synchronous, sealing)
        fence = run_named(writing, "take_fence", {"owner": owner, "now_ms": clock()}).fetchone()[0]
        if sealing.used is not None:
            run_named(writing, "keep", {"name": sealing.used, "value": b""})
        last = run_named(writing, "last_audit", {}).fetchone()
        before = LifeMark(last[0] if last is not None else 0, fence - 1)
        last_known = LastKnown(path, before, expected=schema >= FIRST_SCHEMA_WITH_MARK)
        if last_known.is_ahead:
            # In the database first: a start that ends between the two finds it there.
            run_named(writing, "keep", {"name": RESTORED, "value": b""})
        restore = RestoreState(run_named(writing, "kept", {"name": RESTORED}).fetchone() is not None)
        last_known.begin(fence)
        never_wait(writing)
        files = StoreFiles(path)
    except (sqlite3.Error, OSError, GatewayFault) as error:
        if lock is not None:
            lock.release()
        if isinstance(error, GatewayFault):
            raise
        raise GatewayFault("store_unavailable", f"The store {path} cannot be opened: {error}.") from error
    ownership = Ownership(owner, fence)
    kept = KeptEvents()
    sync = lock.sync_database if lock is not None else lambda: None
    checkpointer = Checkpointer(checkpointing, path.with_name(path.name + "-wal"), sync)
    writer = Writer(
        writing,
        checkpointer,
        clock=clock,
        ownership=ownership,
        kept_events=kept,
        last_known=last_known,
        files=files,
        sealing=sealing,
    )
    engine = SqliteEngine(
        writer,
        reading,
        SpillFiles(path),
        clock=clock,
        ownership=ownership,
        kept_events=kept,
        last_known=last_known,
        files=files,
        sealing=sealing,
        restore=restore,
    )
    writer.start()
    return SqliteStore(engine, lock)


def _connect_all(
    path: Path, synchronous: str, sealing: Sealing
) -> tuple[tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection], int]:
    """The connections that write, checkpoint and read, and the schema that was found."""
    writing = connect_writer(path, synchronous=synchronous)
    try:
        check_keys(writing, sealing, path)
        truncate_log(writing)
        schema: int = writing.execute("PRAGMA user_version").fetchone()[0]
        migrate(writing)
        create_gathering_view(writing)
        return (writing, connect_writer(path, synchronous=synchronous), connect_reader(path)), schema
    except BaseException:
        writing.close()
        raise
