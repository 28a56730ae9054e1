"""Search a store for rows that the gateway cannot read, for `taskgate doctor`. Nothing is written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from taskgate.gateway.dynamic_servers import NewServer
from taskgate.gateway.governance.known_people import check_record
from taskgate.gateway.methods.temporary_scopes import TemporaryScope
from taskgate.store.operations.approval_rows import approval_from
from taskgate.store.operations.audit import audit_problem
from taskgate.store.operations.grants import grant_from
from taskgate.store.operations.pins import pin_from
from taskgate.store.operations.task_rows import check_task
from taskgate.store.sealing import MARK
from taskgate.telemetry.damaged_rows import UNREADABLE

MAX_LISTED: Final = 20


class DamagedRow(NamedTuple):
    table: str
    key: str
    why: str


class _Check(NamedTuple):
    """The statement returns the parts of the key first, then what `read` needs. It is valid for both databases."""

    table: str
    parts: int
    statement: str
    read: Callable[..., object]


def _json(body: bytes) -> None:
    if not bytes(body).startswith(MARK):
        msgspec.json.decode(body)


def _audit(now_ms: int, number: int, content: bytes) -> None:
    if (problem := audit_problem(number, content, now_ms)) is not None:
        raise ValueError(problem)


_CHECKS: Final = (
    _Check("tasks", 1, "SELECT id, doc FROM tasks", check_task),
    _Check("approvals", 1, "SELECT id, doc FROM approvals", approval_from),
    _Check("grants", 1, "SELECT id, doc FROM grants", grant_from),
    _Check("pins", 2, "SELECT server, tool, server, tool, doc, by, at_ms FROM pins", pin_from),
    _Check("earlier_pins", 2, "SELECT server, tool, server, tool, doc, by, at_ms FROM earlier_pins", pin_from),
    _Check("identity_records", 2, "SELECT kind, name, kind, body FROM identity_records", check_record),
    _Check(
        "temporary_scopes",
        1,
        "SELECT name, body FROM temporary_scopes",
        lambda body: msgspec.json.decode(body, type=TemporaryScope),
    ),
    _Check(
        "dynamic_servers",
        1,
        "SELECT name, body FROM dynamic_servers",
        lambda body: msgspec.json.decode(body, type=NewServer),
    ),
    _Check("open_questions", 1, "SELECT id, body FROM open_questions", _json),
    _Check("events", 2, "SELECT caller, number, data FROM events", _json),
    _Check("recorded_calls", 1, "SELECT number, body FROM recorded_calls", _json),
    _Check("call_sums", 1, "SELECT number, body FROM call_sums", _json),
    _Check("history", 1, "SELECT number, doc FROM history", _json),
)


def damaged_in_file(path: Path, now_ms: int) -> Iterator[DamagedRow]:
    """Raises `sqlite3.Error`. A gateway may have the file open."""
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        yield from _damaged(tables, database.execute, now_ms)
        for table in sorted(tables):
            yield from _wrong_types(database, table)


def damaged_in_database(url: str, now_ms: int) -> Iterator[DamagedRow]:
    """Raises GatewayFault."""
    import psycopg

    from taskgate.store.postgres.connection import reason, refused

    try:
        yield from _damaged_in_database(url, now_ms)
    except psycopg.Error as error:
        raise refused(reason(error)) from error


def _damaged_in_database(url: str, now_ms: int) -> Iterator[DamagedRow]:
    from taskgate.store.postgres.connection import connect

    with connect(url, "taskgate doctor") as connection:
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        tables = {row[0] for row in found}

        def rows(statement: str) -> Iterator[Sequence[Any]]:
            with connection.transaction(), connection.cursor(name="rows") as cursor:
                cursor.execute(statement.encode())
                yield from cursor

        yield from _damaged(tables, rows, now_ms)


def _damaged(tables: set[str], run: Callable[[str], Iterable[Sequence[Any]]], now_ms: int) -> Iterator[DamagedRow]:
    # On PostgreSQL each gateway has its own numbers.
    audit = _Check("audit", 1, "SELECT number, number, content FROM audit", partial(_audit, now_ms))
    for check in (*_CHECKS, audit):
        # An older schema does not have every table; the next start migrates it.
        if check.table in tables:
            yield from _unreadable(check, run(check.statement))


def _unreadable(check: _Check, rows: Iterable[Sequence[Any]]) -> Iterator[DamagedRow]:
    for row in rows:
        try:
            check.read(*row[check.parts :])
        except UNREADABLE as error:
            yield DamagedRow(check.table, " ".join(map(str, row[: check.parts])), str(error) or type(error).__name__)


def _wrong_types(database: sqlite3.Connection, table: str) -> Iterator[DamagedRow]:
    """SQLite stores a text in a column of numbers."""
    columns = database.execute(f"SELECT name, type, pk FROM pragma_table_info('{table}')").fetchall()
    key = [name for name, _, place in columns if place] or ["rowid"]
    numbers = [name for name, kind, _ in columns if kind in ("INTEGER", "BIGINT", "REAL")]
    if not numbers or table.startswith(("sqlite_", "history_words")):
        return
    wrong = " OR ".join(f"typeof({name}) NOT IN ('integer', 'real', 'null')" for name in numbers)
    for row in database.execute(f"SELECT {', '.join(key)} FROM {table} WHERE {wrong}"):
        yield DamagedRow(table, " ".join(map(str, row)), "a text is in a column of numbers")
