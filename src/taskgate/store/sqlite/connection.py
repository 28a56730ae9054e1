"""The database file: opens connections to it, brings its schema up to date, and runs the adapter's SQL in a transaction.

Write-ahead log with `synchronous=FULL`: a commit returns after the log has been synced. `NORMAL` would be faster and
would lose acknowledged work in a power cut.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import KeptEvents, Transaction, read_migrations, read_queries
from taskgate.store.sealing import KEEPSAKE, Sealing, key_needed, within_json

SQL: Final = read_queries(__package__)


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)


SYNCHRONOUS = "FULL"
LOG_BYTES = 16 << 20
"""The log is cut back to this when it starts over."""
_CACHE_KIB = 16_384
_OPENING_WAIT_MS = 10_000
_READER_WAIT_MS = 20
_LOG_TRIES = 100
_LOG_TRY_S = 0.05


def connect_writer(path: Path, *, synchronous: str = SYNCHRONOUS) -> sqlite3.Connection:
    """The one connection that writes. Waits for other processes until it is told not to."""
    connection = _connect(path, _OPENING_WAIT_MS)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    # The checkpointer does this in its own time.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    return connection


def never_wait(connection: sqlite3.Connection) -> None:
    """From now on another process's lock is an error at once: this connection is used on the event loop."""
    connection.execute("PRAGMA busy_timeout=0")


def start_log_over(connection: sqlite3.Connection) -> None:
    """Move all of the log into the database and cut it to nothing: what lives that ended hard have left behind."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        # A full disk or a stranger's lock: nothing is lost, and the checkpointer will come to it.
        return


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. It sees every commit at once and never waits for the writer."""
    connection = _connect(path, _READER_WAIT_MS)
    connection.execute("PRAGMA query_only=1")
    return connection


def _connect(path: Path, wait_ms: int) -> sqlite3.Connection:
    # The connection moves between threads, but only ever has one user at a time.
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=wait_ms / 1000
    )
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")
    return connection


def migrate(connection: sqlite3.Connection) -> int:
    """Apply what is missing, all of it or nothing, in one wait for the disk; gives the version reached."""
    known = migrations()
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(known):
        raise GatewayFault(
            "store_unavailable",
            f"The store was written by a newer Taskgate (schema {version}, this one knows {len(known)}). "
            "Start the newer version, or point `store.url` at another file.",
        )
    missing = "".join(f"{text};\n" for _, text in known[version:])
    if missing:
        connection.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version={len(known)}; COMMIT;")
    return len(known)


def rewrite_file(connection: sqlite3.Connection, pause: threading.Event) -> str | None:
    """Write the database anew and cut its log to nothing, so that no deleted row is left in either; the reason if that fails.

    Deleting leaves the bytes in free pages, in gaps of pages and in the log. The copy is made in a temporary file, not in memory.
    """
    try:
        connection.execute("PRAGMA temp_store=FILE")
        connection.execute("VACUUM")
        connection.execute("PRAGMA temp_store=MEMORY")
        for _ in range(_LOG_TRIES):
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0:
                return None
            pause.wait(_LOG_TRY_S)
    except sqlite3.Error as error:
        return str(error)
    return "somebody else reads the file"


def check_keys(connection: sqlite3.Connection, sealing: Sealing, path: Path) -> None:
    """Raises GatewayFault if rows need a key that was not given. Changes nothing, also where the schema is an older one."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'keepsakes'").fetchone():
        return
    kept = connection.execute("SELECT name FROM keepsakes WHERE instr(name, ?) = 1", (KEEPSAKE,)).fetchall()
    for prefix in sealing.missing(name for (name,) in kept):
        if connection.execute(
            SQL["needs_key"], {"prefix": prefix, "length": len(prefix), "within": within_json(prefix)}
        ).fetchone()[0]:
            raise key_needed(str(path))


class SqliteTransaction(Transaction):
    __slots__ = ("_connection",)
    is_shared = False

    def __init__(
        self,
        connection: sqlite3.Connection,
        now_ms: int,
        ownership: Ownership,
        kept_events: KeptEvents,
        sealing: Sealing,
    ) -> None:
        super().__init__(now_ms, ownership, kept_events, sealing)
        self._connection = connection

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        return self._connection.execute(SQL[name], values)

    def announce(self, topic: str, name: str) -> None:
        """Nobody else has this store open, and this process hears of its own changes by itself."""


class WaitForLock:
    """A job for the thread: begin a transaction as soon as another process lets go of the database."""


class Rewrite(NamedTuple):
    """A job for the thread: write the whole file anew, so that nothing that was deleted is left in it or in its log."""

    done: asyncio.Future[None]
