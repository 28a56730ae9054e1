"""Copies a SQLite store into an empty PostgreSQL store or back, in one transaction. Neither may be in use; the source is not
changed.

Open tasks stay open: their owner has ended, so the first gateway that starts takes them over, as after a restart. On the way back,
the audit chains of several gateways become one: all entries in the order of time, after an entry that names the ends of the former
chains. Records that only several gateways need (sessions, open questions, leases) are not copied, nor are accounts at servers,
which are not in the store file.
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from taskgate.atomic_files import sync_folder, temporary_name
from taskgate.core.audit.chain import GENESIS, AuditEntry, Head, Row, beginning
from taskgate.core.digest import digest_of_bytes
from taskgate.core.errors import GatewayFault
from taskgate.store.operations.audit import audit_content, audit_from
from taskgate.store.operations.restored import RESTORED
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.inspection import check, inspect, migrate
from taskgate.store.postgres.presence import LEASE_MS
from taskgate.store.postgres.result_chunks import CHUNK
from taskgate.store.postgres.statements import SQL
from taskgate.store.sqlite.connection import let_pages_be_given_back
from taskgate.store.sqlite.connection import migrate as migrate_sqlite
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.last_known import FIRST_SCHEMA_WITH_MARK, LastKnown, StoreMark
from taskgate.store.sqlite.result_files import SpillFiles

CHAIN: Final = "sqlite"
"""The name of the copied audit chain. It ends with the copy; each gateway begins its own."""
COPIED_UNCHANGED: Final = (
    "task_calls",
    "attempts",
    "questions",
    "scripts",
    "script_calls",
    "idempotency_keys",
    "grants",
    "pins",
    "earlier_pins",
    "channel_receipts",
    "event_streams",
    "events",
    "keepsakes",
    "catalogs",
    "temporary_scopes",
    "usage",
    "recorded_calls",
    "identity_records",
    "history",
    "history_content",
    "history_counts",
    "call_sums",
)


def copy_store(source: Path, url: str, report: Callable[[str, int], None]) -> None:
    """Copy a SQLite file into a database. `report` is called with each table and its number of rows. Raises GatewayFault."""
    if not source.is_file():
        raise GatewayFault("store_unavailable", f"There is no store at {source}.")
    lock = FileLock(source)
    reading = sqlite3.connect(source, isolation_level=None)
    try:
        schema = reading.execute("PRAGMA user_version").fetchone()[0]
        migrate_sqlite(reading)
        known = LastKnown(source, _mark_of(reading), expected=schema >= FIRST_SCHEMA_WITH_MARK)
        with connect(url, "taskgate copy", statement_ms=600_000) as writing:
            check(inspect(writing, url))
            migrate(writing)
            with writing.transaction():
                _copy_all(reading, SpillFiles(source), writing, report)
                if known.is_ahead:
                    writing.execute(SQL["keep"], {"name": RESTORED, "value": b""})
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
    except sqlite3.Error as error:
        raise GatewayFault("store_unavailable", f"The store {source} cannot be read: {error}.") from error
    finally:
        reading.close()
        lock.release()


def _copy_all(
    reading: sqlite3.Connection, files: SpillFiles, writing: Connection, report: Callable[[str, int], None]
) -> None:
    writing.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
    row = writing.execute("SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM audit)").fetchone()
    if row is None or row[0]:
        raise refused("it already contains tasks or audit rows; copy into an empty database.")
    report("owners", _put(writing, "owners", _owners(reading)))
    report("tasks", _put(writing, "tasks", _rows(reading, "tasks")))
    report("approvals", _put(writing, "approvals", _approvals(reading)))
    for table in COPIED_UNCHANGED:
        report(table, _put(writing, table, _rows(reading, table)))
    report("task_outcomes", _put(writing, "task_outcomes", _rows(reading, "task_outcomes")))
    report("result_chunks", _put(writing, "result_chunks", _chunks(reading, files)))
    report("audit", _put(writing, "audit", ({**row, "chain": CHAIN} for row in _rows(reading, "audit"))))
    for table in ("recorded_calls", "call_sums"):
        writing.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), (SELECT greatest(max(number), 1) FROM {table}))"
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


def _approvals(reading: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Yield the rows with a column for the principal, which SQLite has only inside the document."""
    for row in _rows(reading, "approvals"):
        yield {**row, "principal": json.loads(row["doc"]).get("binding", {}).get("principal", "")}


def _chunks(reading: sqlite3.Connection, files: SpillFiles) -> Iterator[dict[str, Any]]:
    """Yield the pieces of long results, which SQLite stores in files beside the database."""
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


def copy_back(url: str, target: Path, report: Callable[[str, int], None]) -> None:
    """Copy a database into a new SQLite file. If it raises GatewayFault, no file is left behind."""
    if target.exists():
        raise GatewayFault("store_unavailable", f"{target} exists already; use a new file name.")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Path(temporary_name(target))
    files = SpillFiles(target)
    written: list[str] = []
    try:
        with connect(url, "taskgate copy", statement_ms=600_000) as reading, closing(_new_file(made)) as writing:
            check(inspect(reading, url))
            with reading.transaction(), writing:
                reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                _refuse_used(reading)
                _copy_all_back(reading, writing, files, written, report)
            writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            mark = _mark_of(writing)
        os.link(made, target)  # fails if another process has created it meanwhile
        made.unlink()
        # Without this file the first start would treat the new store as restored from a backup.
        known = LastKnown(target, mark, expected=False)
        known.begin(mark.fence)
        known.close()
        sync_folder(target.parent)
    except (psycopg.Error, sqlite3.Error, OSError, GatewayFault) as error:
        made.unlink(missing_ok=True)
        files.remove(written)
        if isinstance(error, GatewayFault):
            raise
        why = reason(error) if isinstance(error, psycopg.Error) else str(error)
        raise GatewayFault("store_unavailable", f"{shown_url(url)} cannot be copied to {target}: {why}.") from error


def _mark_of(connection: sqlite3.Connection) -> StoreMark:
    """Return the last audit number and fence of a SQLite store."""
    number = connection.execute("SELECT coalesce(max(number), 0) FROM audit").fetchone()[0]
    fence = connection.execute("SELECT coalesce(max(fence), 0) FROM owners").fetchone()[0]
    return StoreMark(number, fence)


def _new_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    path.chmod(0o600)
    let_pages_be_given_back(connection)
    migrate_sqlite(connection)
    return connection


def _refuse_used(reading: Connection) -> None:
    alive = reading.execute(
        "SELECT count(*) FROM replicas WHERE seen_ms >= extract(epoch FROM clock_timestamp()) * 1000 - %s", [LEASE_MS]
    ).fetchone()
    if alive is not None and alive[0]:
        raise refused("gateways are using it. Stop them before copying.")


def _copy_all_back(
    reading: Connection,
    writing: sqlite3.Connection,
    files: SpillFiles,
    written: list[str],
    report: Callable[[str, int], None],
) -> None:
    def put(table: str, rows: Iterator[dict[str, Any]]) -> None:
        known = [column[1] for column in writing.execute(f"PRAGMA table_info({table})")]
        names = ", ".join(known)
        count = 0
        for row in rows:
            values = [row.get(name) for name in known]
            writing.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(known))})", values)
            count += 1
        report(table, count)

    put("owners", ({**row, "seen_ms": row["started_ms"], "retired": 0} for row in _shared_rows(reading, "owners")))
    for table in ("tasks", "approvals", *COPIED_UNCHANGED):
        put(table, _shared_rows(reading, table))
    put("task_outcomes", _outcomes(reading, files, written))
    put("audit", _one_chain(reading))


def _shared_rows(reading: Connection, table: str) -> Iterator[dict[str, Any]]:
    cursor = reading.cursor(binary=True).execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
    names = [column.name for column in cursor.description or ()]
    for row in cursor:
        values = (bytes(value) if isinstance(value, memoryview) else value for value in row)
        yield dict(zip(names, values, strict=True))


def _outcomes(reading: Connection, files: SpillFiles, written: list[str]) -> Iterator[dict[str, Any]]:
    """Yield outcomes whose long results have been written to files beside the database."""
    for row in _shared_rows(reading, "task_outcomes"):
        if row["spill"] is not None:
            query = "SELECT bytes FROM result_chunks WHERE name = %s ORDER BY number"
            chunks = reading.cursor(binary=True).execute(query, [row["spill"]]).fetchall()
            name = files.write(row["task_id"], b"".join(bytes(chunk) for (chunk,) in chunks))
            written.append(name)
            row = {**row, "spill": name}
        yield row


def _one_chain(reading: Connection) -> Iterator[dict[str, Any]]:
    """Yield all entries in the order of time. The order within each chain is preserved even if a clock went backwards."""
    names = [name for (name,) in reading.execute("SELECT DISTINCT chain FROM audit ORDER BY chain").fetchall()]
    chains = {name: _rows_of_chain(reading, name) for name in names}
    heads = [Head(name, rows[-1].number, rows[-1].hash) for name, rows in chains.items() if rows]
    merged = heapq.merge(*(_by_time(rows) for rows in chains.values()), key=lambda found: found[0])
    entries: list[AuditEntry] = [entry for _, entry in merged]
    at_ms = entries[0].at_ms if entries else 0
    previous = GENESIS
    began = [msgspec.structs.replace(beginning("copy", heads), at_ms=at_ms)] if heads else []
    for number, entry in enumerate([*began, *entries], 1):
        content = audit_content(number, previous, entry)
        previous = digest_of_bytes(content)
        yield {"number": number, "hash": previous, "content": content}


def _by_time(rows: list[Row]) -> Iterator[tuple[int, AuditEntry]]:
    latest = 0
    for row in rows:
        latest = max(latest, row.entry.at_ms)
        yield latest, row.entry


def _rows_of_chain(reading: Connection, chain: str) -> list[Row]:
    query = "SELECT number, hash, content FROM audit WHERE chain = %s ORDER BY number"
    return [audit_from(*row) for row in reading.cursor(binary=True).execute(query, [chain]).fetchall()]
