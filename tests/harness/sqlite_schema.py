"""The schema of an SQLite store as a copy of one that was migrated once in this process.

All migrations take most of the time in which an empty store is opened. The migrations themselves are tested in `tests/store/`.
"""

from __future__ import annotations

import sqlite3
from functools import cache

from taskgate.store.sqlite.connection import migrate


@cache
def _migrated_schema() -> tuple[sqlite3.Connection, int]:
    schema = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    return schema, migrate(schema)


def migrate_by_copy(connection: sqlite3.Connection) -> int:
    """Replaces `migrate`. A store with anything in it gets the migrations that it lacks."""
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        schema, number = _migrated_schema()
        schema.backup(connection)
        return number
    return migrate(connection)
