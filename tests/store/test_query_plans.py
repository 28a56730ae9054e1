"""Every statement on a filled store: it looks up what it needs and reads little, or is in a list with the reason.

`make plans` does the same with 100,000 tasks, 1,000,000 rows of the audit log and 100,000 events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator
from pathlib import Path

import pytest
from tests.harness.postgres import fresh_url
from tests.store.filled_store import Amounts, fill_postgres, fill_sqlite
from tests.store.plans import Plans, PostgresPlans, SqlitePlans

from taskgate.store.sqlite.connection import migrate

QUICK = Amounts(tasks=20_000, audit=60_000, events=20_000)
FULL = Amounts(tasks=100_000, audit=1_000_000, events=100_000)
BIG = 3_000
"""A table with fewer rows may be read whole: that is what a database does with a small one."""
MAX_ROWS = 1_200
MAX_STEPS = 20_000
"""Of SQLite's virtual machine: about a millisecond."""

# Statements that may read a table from one end to the other.

ERASES = "An operator erases one person: rare, not part of a call, and followed by writing the whole file anew."

RESTORED = "Once, at the first start on a store that was restored from a backup."

WHOLE_TABLE = {
    "needs_key": "Once at a start, and only where rows are encrypted and their key was not given.",
    "tasks_of_principal": ERASES,
    "unspent_approvals": RESTORED,
    "history_needs_key": "Once at a start, and only where rows are encrypted and their key was not given.",
    "history_size": "Once a minute, in a thread: an index that has one entry for each row.",
    "forget_identity_records_of_kind": RESTORED,
    "erase_approvals": ERASES,
    "erase_usage": ERASES,
    "erase_accepter": ERASES,
    "erase_earlier_accepter": ERASES,
}
WHOLE_TABLE_ON_SQLITE = {
    "history_matching": "A word index is always reported as a scan; `make history` measures what it costs.",
}
WHOLE_TABLE_ON_POSTGRES = {
    "identity_records": "At a start and when tokens are revoked: all of a kind, of which there are three.",
    "accounts": "The list of accounts for an operator: rare.",
    "drop_old_accounts": "When a person logs in at a server: a few times an hour.",
    "erase_open_questions": ERASES,
    "erase_sessions": ERASES,
    "sessions_elsewhere": "Nearly all rows are its answer.",
    "forget_sessions": "Every 30 seconds, over rows that are held or were until a moment ago.",
    "open_questions_elsewhere": "Nearly all rows are its answer.",
    "forget_open_questions": "Reads the questions that wait at all gateways.",
    "count_pending": "One row for each caller with pending approvals: most of a small table.",
    "orphan_chunks": "Once an hour: one row for each long result.",
}

# Statements that look up what they need, and need many rows.

MANY_ROWS = {
    "identity_records": "At a start and when tokens are revoked.",
    "count_open": "Counts an index of open tasks alone; at most once a second.",
    "claim_tasks": "At a start or when another gateway died: the tasks that are taken over.",
    "unfinished_of_principal": ERASES,
    "history_names": "Suggestions, in a thread: the counts of days, of which there are few for each name.",
    "history_totals": "One bar for each name, in a thread: adds up the counts of a range.",
    "numbers_given": "A plan for all values reads a small table whole; with many streams it looks them up.",
    "erase_history_counts": ERASES,
    "erase_approver": ERASES,
    "erase_recorded_calls": ERASES,
    "release_sessions": "When this gateway ends: its sessions.",
    "sessions_seen": "Every 30 seconds: the sessions of this gateway.",
    "sessions_of_home": "The sessions of this gateway.",
    "open_questions_answered": "The questions that wait at this gateway.",
}


@pytest.fixture(scope="module")
def sqlite_plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlitePlans]:
    connection = _new_file(tmp_path_factory.mktemp("filled") / "store.db")
    yield SqlitePlans(connection, fill_sqlite(connection, QUICK))
    connection.close()


@pytest.fixture(scope="module")
def postgres_plans() -> Iterator[PostgresPlans]:
    yield from _postgres(QUICK)


def _new_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection)
    return connection


def _postgres(amounts: Amounts) -> Iterator[PostgresPlans]:
    url = fresh_url()
    from taskgate.store.postgres.connection import connect
    from taskgate.store.postgres.inspection import migrate as migrate_postgres

    with connect(url, "taskgate tests", statement_ms=600_000) as connection:
        migrate_postgres(connection)
        yield PostgresPlans(connection, fill_postgres(connection, amounts))


def check(plans: Plans, may_read_whole: Container[str], maximum: int) -> None:
    wrong = {}
    for name in plans.statements:
        if name in may_read_whole:
            continue
        seen = plans.seen(name)
        is_whole = seen.read > 0 and any(plans.rows_of(table) > BIG for table in seen.whole)
        if is_whole or (seen.read > maximum and name not in MANY_ROWS):
            wrong[name] = (seen.read, seen.whole, seen.plan)
    assert not wrong, "".join(
        f"\n{name} reads {read} of {whole}\n{plan}" for name, (read, whole, plan) in wrong.items()
    )


def check_sqlite(plans: SqlitePlans) -> None:
    check(plans, WHOLE_TABLE | WHOLE_TABLE_ON_SQLITE, MAX_STEPS)


def check_postgres(plans: PostgresPlans) -> None:
    check(plans, WHOLE_TABLE | WHOLE_TABLE_ON_POSTGRES, MAX_ROWS)


def test_sqlite_statements_use_indexes(sqlite_plans: SqlitePlans) -> None:
    check_sqlite(sqlite_plans)


def test_postgres_statements_use_indexes(postgres_plans: PostgresPlans) -> None:
    check_postgres(postgres_plans)


def test_every_exception_is_a_statement(sqlite_plans: SqlitePlans, postgres_plans: PostgresPlans) -> None:
    assert WHOLE_TABLE.keys() <= sqlite_plans.statements.keys()
    assert WHOLE_TABLE_ON_POSTGRES.keys() | MANY_ROWS.keys() <= postgres_plans.statements.keys()


@pytest.mark.long
def test_sqlite_statements_use_indexes_with_a_million_audit_rows(tmp_path: Path) -> None:
    connection = _new_file(tmp_path / "store.db")
    check_sqlite(SqlitePlans(connection, fill_sqlite(connection, FULL)))
    connection.close()


@pytest.mark.long
def test_postgres_statements_use_indexes_with_a_million_audit_rows() -> None:
    for plans in _postgres(FULL):
        check_postgres(plans)
