"""Connections to the database file, its schema, and its maintenance.

The write-ahead log is used with `synchronous=FULL`: a commit returns after the log has been synced. `NORMAL` would be faster but
would lose acknowledged work in a power failure.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskgate.core.errors import GatewayFault
from taskgate.store.sealing import KEY_RECORD, Sealing, key_needed, within_json
from taskgate.store.sql_files import read_migrations
from taskgate.store.sqlite.statements import run_named
from taskgate.store.sqlite.transaction import create_gathering_view


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)


SYNCHRONOUS = "FULL"
LOG_BYTES = 16 << 20
"""The log is truncated to this size when it restarts."""
_CACHE_KIB = 4_096
"""Each connection fills its cache once and keeps it. Tasks take the same CPU time with 16 MB, because the operating system caches
the pages as well."""
PAGES_PER_PORTION = 128
"""Half a megabyte: a write that arrives meanwhile waits a few milliseconds."""
_INCREMENTAL = 2
_OPENING_WAIT_MS = 10_000
_READER_WAIT_MS = 20
_LOG_TRIES = 100
_LOG_TRY_S = 0.05


def connect_writer(path: Path, *, synchronous: str = SYNCHRONOUS) -> sqlite3.Connection:
    """Open the writing connection. It waits for locks of other processes until `never_wait` is called."""
    connection = _connect(path, _OPENING_WAIT_MS)
    let_pages_be_given_back(connection)  # before the mode of the log, which writes the file
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    # The checkpointer does this instead.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    return connection


def never_wait(connection: sqlite3.Connection) -> None:
    """Make a lock held by another process an immediate error: this connection is used on the event loop."""
    connection.execute("PRAGMA busy_timeout=0")


def truncate_log(connection: sqlite3.Connection) -> None:
    """Checkpoint and truncate the log, which earlier processes may have left behind when they were killed."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        # The disk is full, or another process holds a lock. Nothing is lost; the checkpointer retries later.
        return


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection. It sees every commit at once and never waits for the writer."""
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
    """Apply all missing migrations in one transaction; return the resulting version."""
    known = migrations()
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(known):
        raise GatewayFault(
            "store_unavailable",
            f"The store was written by a newer Taskgate (schema {version}, this version supports {len(known)}). "
            "Start the newer version, or point `store.url` at another file.",
        )
    missing = "".join(f"{text};\n" for _, text in known[version:])
    if missing:
        connection.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version={len(known)}; COMMIT;")
    return len(known)


def let_pages_be_given_back(connection: sqlite3.Connection) -> None:
    """Of a new file, and of one that is rewritten. It has no effect on others."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")


def gives_back_pages(connection: sqlite3.Connection) -> bool:
    """Return whether free pages can be given back to the file system: files of older versions must be rewritten first."""
    return bool(connection.execute("PRAGMA main.auto_vacuum").fetchone()[0] == _INCREMENTAL)


def free_pages(connection: sqlite3.Connection) -> int:
    pages: int = connection.execute("PRAGMA main.freelist_count").fetchone()[0]
    return pages


def give_back_pages(connection: sqlite3.Connection) -> None:
    """Give a portion of the free pages back. The file gets shorter when the log is copied into it."""
    # A row for each page: the statement stops when it is not read to its end.
    connection.execute(f"PRAGMA main.incremental_vacuum({PAGES_PER_PORTION})").fetchall()


def rewrite_file(connection: sqlite3.Connection, pause: threading.Event) -> str | None:
    """Rewrite the database and truncate its log, so that no deleted row is left in either; return the reason if that fails.

    Deleting leaves the bytes in free pages, in gaps of pages and in the log. The copy is made in a temporary file, not in memory.
    """
    try:
        connection.execute("PRAGMA temp_store=FILE")
        connection.execute("VACUUM")
        for _ in range(_LOG_TRIES):
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0:
                return None
            pause.wait(_LOG_TRY_S)
    except sqlite3.Error as error:
        return str(error)
    finally:
        connection.execute("PRAGMA temp_store=MEMORY")
        create_gathering_view(connection)  # changing temp_store drops the temporary view
    return "another process is reading the file"


def check_keys(connection: sqlite3.Connection, sealing: Sealing, path: Path) -> None:
    """Raises GatewayFault if rows need a key that is not configured. Changes nothing and also works on older schemas."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'keepsakes'").fetchone():
        return
    kept = connection.execute("SELECT name FROM keepsakes WHERE instr(name, ?) = 1", (KEY_RECORD,)).fetchall()
    for prefix in sealing.missing(name for (name,) in kept):
        asked = {"prefix": prefix, "length": len(prefix), "within": within_json(prefix)}
        if run_named(connection, "needs_key", asked).fetchone()[0] or _history_needs_key(connection, asked):
            raise key_needed(str(path))


def _history_needs_key(connection: sqlite3.Connection, asked: Mapping[str, Any]) -> bool:
    """Older schemas have no history."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'history_content'").fetchone()
    return found is not None and bool(run_named(connection, "history_needs_key", asked).fetchone()[0])
