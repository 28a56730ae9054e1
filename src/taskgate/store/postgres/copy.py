"""Copies a SQLite store into an empty PostgreSQL store, all of it or nothing. Neither may be in use; the source is not changed.

What was open stays open: its owner has no lease here, so the first gateway that starts takes it over, as after a restart.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from taskgate.core.errors import GatewayFault
from taskgate.store.postgres.chunks import CHUNK
from taskgate.store.postgres.connection import Connection, check, connect, look, migrate, reason, refused, shown_url
from taskgate.store.sqlite.connection import migrate as migrate_sqlite
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.spill_files import SpillFiles

CHAIN: Final = "sqlite"
"""The name of the audit chain that is copied; it ends here, and each gateway begins its own."""
AS_THEY_ARE: Final = (
    "task_calls",
    "attempts",
    "questions",
    "idempotency_keys",
    "grants",
    "pins",
    "channel_receipts",
    "event_streams",
    "events",
    "keepsakes",
    "catalogs",
    "temporary_scopes",
    "usage",
    "recorded_calls",
    "identity_records",
)


def copy_store(source: Path, url: str, said: Callable[[str, int], None]) -> None:
    """`said` is told of each table with its rows. Raises GatewayFault."""
    if not source.is_file():
        raise GatewayFault("store_unavailable", f"There is no store at {source}.")
    lock = FileLock(source)
    reading = sqlite3.connect(source, isolation_level=None)
    try:
        migrate_sqlite(reading)
        with connect(url, "taskgate copy", statement_ms=600_000) as writing:
            check(look(writing))
            migrate(writing)
            with writing.transaction():
                _copy_all(reading, SpillFiles(source), writing, said)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
    except sqlite3.Error as error:
        raise GatewayFault("store_unavailable", f"The store {source} cannot be read: {error}.") from error
    finally:
        reading.close()
        lock.release()


def _copy_all(
    reading: sqlite3.Connection, files: SpillFiles, writing: Connection, said: Callable[[str, int], None]
) -> None:
    writing.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
    row = writing.execute("SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM audit)").fetchone()
    if row is None or row[0]:
        raise refused("it holds tasks or audit rows already; copy into an empty database.")
    said("owners", _put(writing, "owners", _owners(reading)))
    said("tasks", _put(writing, "tasks", _with_principal(reading, "tasks", "principal")))
    said("approvals", _put(writing, "approvals", _with_principal(reading, "approvals", "binding", "principal")))
    for table in AS_THEY_ARE:
        said(table, _put(writing, table, _rows(reading, table)))
    said("task_outcomes", _put(writing, "task_outcomes", _rows(reading, "task_outcomes")))
    said("result_chunks", _put(writing, "result_chunks", _chunks(reading, files)))
    said("audit", _put(writing, "audit", ({**row, "chain": CHAIN} for row in _rows(reading, "audit"))))
    writing.execute(
        "SELECT setval(pg_get_serial_sequence('recorded_calls', 'number'),"
        " (SELECT greatest(max(number), 1) FROM recorded_calls))"
    )
    writing.execute("SELECT setval('fences', (SELECT greatest(max(fence), 1) FROM owners))")


def _rows(reading: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    found = reading.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))


def _owners(reading: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    for row in _rows(reading, "owners"):
        yield {"owner": row["owner"], "fence": row["fence"], "started_ms": row["started_ms"], "retired": True}


def _with_principal(reading: sqlite3.Connection, table: str, *path: str) -> Iterator[dict[str, Any]]:
    """Rows here also have a column for what SQLite keeps inside the document."""
    for row in _rows(reading, table):
        value: Any = json.loads(row["doc"])
        for member in path:
            value = value.get(member, "") if isinstance(value, dict) else ""
        yield {**row, "principal": value}


def _chunks(reading: sqlite3.Connection, files: SpillFiles) -> Iterator[dict[str, Any]]:
    """Long results, which SQLite keeps as files beside the database."""
    for (name,) in reading.execute("SELECT spill FROM task_outcomes WHERE spill IS NOT NULL"):
        body = files.read(name)
        for number, start in enumerate(range(0, len(body), CHUNK)):
            yield {"name": name, "number": number, "created_ms": 0, "bytes": body[start : start + CHUNK]}


def _put(writing: Connection, table: str, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    with writing.cursor() as cursor:
        for row in rows:
            query = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join(sql.Placeholder() * len(row)),
            )
            cursor.execute(query, list(row.values()))
            count += 1
    return count
