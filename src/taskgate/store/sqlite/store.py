"""The SQLite store: implements `ports.store.Store` over one file.

Writes go through the `Writer` and return when they are synced; reads run in place on their own connection. Only one process uses a
file: `open_store` takes a lock, which the kernel releases however the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.store.open_store import OpenStore
from taskgate.store.operations.restored import RESTORED
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
from taskgate.store.sqlite.engine import SqliteEngine
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.last_known import FIRST_SCHEMA_WITH_MARK, LastKnown, StoreMark
from taskgate.store.sqlite.result_files import SpillFiles
from taskgate.store.sqlite.statements import run_named
from taskgate.store.sqlite.store_files import StoreFiles
from taskgate.store.sqlite.transaction import create_gathering_view
from taskgate.store.sqlite.writer import Writer
from taskgate.store.state import RestoreState, StoreState

DEFAULT_OWNER = "taskgate"


def system_clock() -> int:
    return clock.wall_ms()


class SqliteStore(OpenStore):
    """An open store, from `open_store` until `close`."""

    def __init__(self, engine: SqliteEngine, lock: FileLock | None) -> None:
        super().__init__(engine)
        self.engine = engine
        self._lock = lock

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now: the disk fails, or another process has taken over the store."""
        return self.engine.problem

    @property
    def lost(self) -> str | None:
        """Why this process can never write to the store again: its files are gone."""
        return self.engine.files.lost()

    @property
    def wakeups(self) -> None:
        """None: no other gateway has this store open."""
        return None

    @property
    def revisions(self) -> None:
        """None: no other gateway changes what this one caches."""
        return None

    @property
    def lease_ms(self) -> int:
        return 0

    def reconfigured(self, digest: str, interpreter: str) -> None:
        """Nothing to do: no other gateway would read it."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return ()

    @property
    def shared(self) -> None:
        return None

    @property
    def audit_chain(self) -> str:
        """Empty: one chain continues over all starts."""
        return ""

    async def drop_old_days(self, keep_ms: int) -> None:
        """Nothing to do: history is one table."""

    @property
    def is_committing(self) -> bool:
        """Whether a commit is in progress."""
        return self.engine.writer.is_committing

    def audit_head(self) -> tuple[int, str]:
        return self.engine.audit_head()

    async def close(self) -> None:
        """Write what is queued, then release the file."""
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

    Blocks for some milliseconds; call it before serving. `locked=False` and another `synchronous` exist only for tests, to show
    that fencing and syncing are needed. `keys` encrypt what is written (`store.sealing`); a store that needs a key is not opened
    without it. Raises GatewayFault.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sealing = Sealing(keys)
    lock = FileLock(path) if locked else None
    try:
        (writing, checkpointing, reading, searching), schema = _connect_all(path, synchronous, sealing)
        fence = run_named(writing, "take_fence", {"owner": owner, "now_ms": clock()}).fetchone()[0]
        if sealing.used is not None:
            run_named(writing, "keep", {"name": sealing.used, "value": b""})
        last = run_named(writing, "last_audit", {}).fetchone()
        before = StoreMark(last[0] if last is not None else 0, fence - 1)
        last_known = LastKnown(path, before, expected=schema >= FIRST_SCHEMA_WITH_MARK)
        if last_known.is_ahead:
            # In the database first: if this process ends in between, the next start finds it there.
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
    state = StoreState(restore)
    sync = lock.sync_database if lock is not None else lambda: None
    checkpointer = Checkpointer(checkpointing, path.with_name(path.name + "-wal"), sync)
    writer = Writer(
        writing,
        checkpointer,
        clock=clock,
        ownership=ownership,
        state=state,
        last_known=last_known,
        files=files,
        sealing=sealing,
    )
    engine = SqliteEngine(
        writer,
        reading,
        searching,
        SpillFiles(path),
        clock=clock,
        ownership=ownership,
        state=state,
        last_known=last_known,
        files=files,
        sealing=sealing,
    )
    writer.start()
    return SqliteStore(engine, lock)


def _connect_all(
    path: Path, synchronous: str, sealing: Sealing
) -> tuple[tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection, sqlite3.Connection], int]:
    """Return the connections that write, checkpoint, read and search, and the schema version that was found."""
    writing = connect_writer(path, synchronous=synchronous)
    try:
        check_keys(writing, sealing, path)
        truncate_log(writing)
        schema: int = writing.execute("PRAGMA user_version").fetchone()[0]
        migrate(writing)
        create_gathering_view(writing)
        checkpointing = connect_writer(path, synchronous=synchronous)
        return (writing, checkpointing, connect_reader(path), connect_reader(path)), schema
    except BaseException:
        writing.close()
        raise
