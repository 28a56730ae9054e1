"""Opens connections to the database file and brings its schema up to date.

Write-ahead log with `synchronous=FULL`: a commit returns after the log has been synced. `NORMAL` would be faster and
would lose acknowledged work in a power cut.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from taskgate.core.errors import GatewayFault
from taskgate.store.sqlite.named_queries import migrations

SYNCHRONOUS = "FULL"
_CACHE_KIB = 16_384


def connect_writer(path: Path, *, synchronous: str = SYNCHRONOUS) -> sqlite3.Connection:
    """The one connection that writes."""
    connection = _connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    # The checkpointer does this in its own time.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. It sees every commit at once and never waits for the writer."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only=1")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    # The connection moves between threads, but only ever has one user at a time.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=10)
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")
    return connection


def migrate(connection: sqlite3.Connection) -> int:
    """Apply what is missing, each migration in its own transaction; gives the version reached."""
    known = migrations()
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(known):
        raise GatewayFault(
            "store_unavailable",
            f"The store was written by a newer Taskgate (schema {version}, this one knows {len(known)}). "
            "Start the newer version, or point `store.url` at another file.",
        )
    for number, text in known[version:]:
        connection.executescript(f"BEGIN IMMEDIATE; {text}; PRAGMA user_version={number}; COMMIT;")
    return len(known)
