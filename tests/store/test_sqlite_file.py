"""The SQLite store's file: its owner, its content, its lock, and its queries."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.store_under_test import OpenTasksOf
from tests.harness.raised import raises_error
from tests.harness.unchecked import just_go
from tests.store.call_factory import DEADLINE_S, a_call

import taskgate.store.sqlite
from taskgate.core.audit.chain import AuditEntry, row_bytes
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.held_call import ApprovalRequest, PendingLimits
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.state import OPEN
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Cancelled, Dispatched, ResultReceived
from taskgate.ports.store_answers import Change, IdTaken, Ownership, TaskFilter
from taskgate.store.operations import audit
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import EndedBadly, FindTasks, ResultBytes
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import sweep_leftovers
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite import connection
from taskgate.store.sqlite.connection import connect_reader, connect_writer, migrate, migrations
from taskgate.store.sqlite.engine import statements_of
from taskgate.store.sqlite.statements import SQL
from taskgate.store.sqlite.store import open_store
from taskgate.store.sqlite.transaction import SqliteTransaction, create_gathering_view
from taskgate.store.state import StoreState


def test_a_second_process_on_the_same_file_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    program = f"""
import asyncio, sys
from pathlib import Path
from taskgate.store.sqlite.engine import statements_of
from taskgate.store.sqlite.store import open_store
store = open_store(Path({str(path)!r}))
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(GatewayFault) as caught:
            open_store(path)
        assert caught.value.error_type == "store_unavailable"
        assert f"(process {holder.pid})" in caught.value.message
        assert caught.value.executed is Executed.NO
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(DEADLINE_S)
    asyncio.run(open_store(path).close())


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    store = open_store(tmp_path / "new" / "store.db")
    await store.do(Accept(a_call()))
    files = list((tmp_path / "new").iterdir())
    assert len(files) == 5
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    await store.close()


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writing = connect_writer(path)
    writing.execute("PRAGMA user_version=999")
    writing.close()
    with raises_error("store_unavailable", "999"):
        open_store(path)
    with raises_error("store_unavailable", "999"):
        open_store(path)


def test_a_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"dear diary, " * 1000)
    with raises_error("store_unavailable", "store.db"):
        open_store(path)
    assert path.read_bytes() == b"dear diary, " * 1000


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    writing = connect_writer(tmp_path / "store.db")
    assert migrate(writing) == migrate(writing)
    writing.close()


def test_a_store_of_the_first_version_is_brought_up_to_date_with_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    (_, first), *_ = migrations()
    old.executescript(f"{first}; PRAGMA user_version=1;")
    old.execute("INSERT INTO questions VALUES ('t', 'k', 0, 's', 'm', x'7b7d', 1, 2, 'open', NULL)")
    old.commit()
    old.close()
    writing = connect_writer(path)
    assert migrate(writing) == len(migrations())
    assert writing.execute("SELECT key, shown_as FROM questions").fetchall() == [("k", None)]
    writing.close()


def test_every_query_is_valid_sql_and_is_used(tmp_path: Path) -> None:
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    folder = Path(taskgate.store.sqlite.__file__).parent.parent
    source = "".join(file.read_text() for file in folder.rglob("*.py"))
    for name, text in SQL.items():
        values = dict.fromkeys(re.findall(r":(\w+)", text))
        writing.execute(f"EXPLAIN {text}", values)
        assert f'"{name}"' in source, f"{name} is unused"
    writing.close()


@pytest.mark.parametrize(
    "name, values, index",
    [
        ("page_of_tasks", ("caller",), "tasks_of_caller"),
        ("count_open_of_caller", ("limited_as",), "open_counts USING PRIMARY KEY (what=? AND who=?)"),
        ("find_open_tasks", ("limit",), "tasks_open (id>? AND id<?)"),
        ("tasks_ended_badly", ("limit",), "tasks_ended_badly (finished_ms>?)"),
        ("count_open", (), "COVERING INDEX tasks_open"),
        ("due_approvals", ("now_ms",), "tasks_approval_due"),
        ("due_executions", ("now_ms",), "tasks_execution_due"),
        ("forgettable_tasks", ("now_ms",), "tasks_to_forget"),
        ("page_of_open_approvals", ("asked_ms",), "approvals_open"),
        ("count_pending_of_caller", ("caller",), "open_counts USING PRIMARY KEY (what=? AND who=?)"),
        ("last_given_approval", ("server",), "approvals_given"),
        ("forget_events", ("before_ms",), "events_by_age"),
    ],
)
def test_frequent_queries_use_an_index(tmp_path: Path, name: str, values: tuple[str, ...], index: str) -> None:
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    asked = dict.fromkeys(re.findall(r":(\w+)", SQL[name]))
    plan = " ".join(row[3] for row in writing.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", asked))
    assert index in plan
    writing.close()


@pytest.mark.parametrize("name", ["find_open_tasks", "tasks_ended_badly"])
def test_pages_of_few_tasks_are_not_sorted(tmp_path: Path, name: str) -> None:
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    asked = dict.fromkeys(re.findall(r":(\w+)", SQL[name]))
    assert "B-TREE" not in " ".join(row[3] for row in writing.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", asked))
    writing.close()


async def test_looking_for_tasks_reads_columns_and_records_only_for_a_text(tmp_path: Path) -> None:
    """Counted: the steps of the database's own machine and the functions that it is to call, with ten times as many tasks."""
    store = open_store(tmp_path / "store.db")
    reading = connect_reader(tmp_path / "store.db")
    find = Reader.alone(statements_of(reading))
    wanted = {
        "open": TaskFilter(states=OPEN),
        "all": TaskFilter(),
        "scope": TaskFilter(scope="elsewhere"),
        "tool": TaskFilter(tool="nothing"),
        "tenant": TaskFilter(tenant="nobody"),
        "text": TaskFilter(text="nothing"),
    }
    counted: list[dict[str, int]] = []
    for more in (100, 900):
        for number in range(more):
            made = await store.do(Accept(a_call(principal=f"caller-{number}")))
            assert isinstance(made, Change)
            if counted or number >= 10:
                await store.do(Advance(made.task.id, Cancelled()))
        counted.append({name: steps(reading, partial(FindTasks(one).run, find)) for name, one in wanted.items()})
        counted[-1]["badly"] = steps(reading, partial(EndedBadly(TaskFilter(), 0, 10).run, find))
    (longest,) = reading.execute("SELECT max(length(doc)) FROM tasks").fetchone()
    reading.close()
    await store.close()
    few, many = counted
    for name in ("open", "all", "badly"):
        assert many[name] <= few[name] * 1.1, (name, few, many)
    for name in ("scope", "tool", "tenant", "text"):
        assert many[name] <= 40 * 1_000, (name, few, many)
    assert longest < 700, (
        "a record that does not fit into its row's page costs one more page for each that is looked at"
    )
    assert "json" not in SQL["find_tasks"]


def steps(connection: sqlite3.Connection, ask: Callable[[], object]) -> int:
    made = 0

    def step() -> None:
        nonlocal made
        made += 1

    connection.set_progress_handler(step, 1)
    ask()
    connection.set_progress_handler(None, 0)
    return made


def test_a_read_connection_cannot_write(tmp_path: Path) -> None:
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    reading = connect_reader(tmp_path / "store.db")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reading.execute("DELETE FROM tasks")
    reading.close()
    writing.close()


def test_a_store_syncs_fully(tmp_path: Path) -> None:
    writing = connect_writer(tmp_path / "store.db")
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.SYNCHRONOUS == "FULL"
    writing.close()


async def test_old_result_files_without_a_task_are_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.do(Accept(call))
    await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))
    await store.do(Advance(call.id, ResultReceived(b"x" * (2 << 20))))
    folder = tmp_path / "store.db.results"
    old, young = folder / "tg_old.1", folder / "tg_young.1"
    for orphan in (old, young):
        orphan.write_bytes(b"left behind")
    os.utime(old, (0, 0))
    assert await sweep_leftovers(store) == 1
    assert not old.exists()
    assert young.exists()
    assert await store.ask(ResultBytes(call.id)) == b"x" * (2 << 20)
    await store.close()


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db.lock").symlink_to(tmp_path / "elsewhere")
    with raises_error("store_unavailable", "store.db.lock"):
        open_store(tmp_path / "store.db")
    assert not (tmp_path / "elsewhere").exists()


def test_neither_a_deleted_lock_file_nor_another_path_admits_a_second_owner(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    (tmp_path / "store.db.lock").unlink()
    with pytest.raises(GatewayFault, match="is using the store"):
        open_in_another_process(tmp_path / "store.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    with pytest.raises(GatewayFault, match="is using the store"):
        open_in_another_process(tmp_path / "link.db")
    asyncio.run(store.close())
    open_in_another_process(tmp_path / "link.db")


def open_in_another_process(path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from taskgate.core.errors import GatewayFault
from taskgate.store.sqlite.engine import statements_of
from taskgate.store.sqlite.store import open_store
try:
    asyncio.run(open_store(Path({str(path)!r})).close())
except GatewayFault as fault:
    sys.exit(fault.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise GatewayFault("store_unavailable", done.stderr)


async def test_a_fenced_owner_fails_at_once(tmp_path: Path) -> None:
    first = open_store(tmp_path / "store.db", locked=False)
    assert first.problem is None
    second = open_store(tmp_path / "store.db", locked=False)
    assert first.problem is not None
    assert "taken over" in first.problem
    assert second.problem is None
    await first.close()
    await second.close()


async def test_the_intent_is_the_only_way_to_dispatch(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.do(Accept(call))
    with pytest.raises(ValueError, match="Intend"):
        await store.do(Advance(call.id, Dispatched(1, "b", "u")))
    await store.close()


@given(
    st.builds(
        AuditEntry,
        at_ms=st.integers(0, 2**62),
        event=st.text(),
        principal=st.text(),
        reason=st.text(),
        arguments=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        approvers=st.lists(st.text()).map(tuple),
    )
)
def test_the_fast_path_to_write_an_audit_row_gives_the_same_bytes(entry: AuditEntry) -> None:
    assert audit.audit_content(7, "sha256:p", entry) == row_bytes(7, "sha256:p", entry)


def test_the_cost_of_an_approval_does_not_grow_with_open_ones_of_its_caller(tmp_path: Path) -> None:
    """In steps of the database, which depend on nothing but what is in it."""
    writing = connect_writer(tmp_path / "store.db", synchronous="OFF")
    migrate(writing)
    limits = AcceptLimits(1_000_000, pending=PendingLimits(1_000_000, 1_000_000))
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    def accept(number: int) -> int:
        nonlocal steps
        steps = 0
        for _ in range(number):
            transaction = SqliteTransaction(writing, 1_000_000, Ownership("node", 1), StoreState(), Sealing(()))
            call = a_call(limited_as="address:10.0.0.1")
            binding = Binding("carol", "reports", "build", call.digest, "", "1", 0, scope="default")
            asked = (f"ap_{call.id}", Workflow("ops"), "r", binding, "address:10.0.0.1", call.wire_name, call.arguments)
            request = ApprovalRequest(*asked)
            made = Accept(call, approval=request, limits=limits).run(transaction)
            assert isinstance(made, Change)
        return steps

    accept(20)
    writing.set_progress_handler(step, 1)
    few = accept(20)
    writing.set_progress_handler(None, 1)
    accept(2000)
    writing.set_progress_handler(step, 1)
    many = accept(20)
    writing.close()
    assert 0 < few <= many <= few * 1.25


def test_creates_that_share_a_commit_share_its_queries(tmp_path: Path) -> None:
    """Each create runs the statements of its own rows. The number of open tasks and the end of the audit log are read once."""
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    limits, ran = AcceptLimits(1_000_000, pending=PendingLimits(1_000_000, 1_000_000)), list[str]()

    def accept(number: int) -> int:
        transaction = SqliteTransaction(writing, 1_000_000, Ownership("node", 1), StoreState(), Sealing(()))
        transaction.is_stale()
        ran.clear()
        for _ in range(number):
            made = Accept(a_call(), limits=limits).run(transaction)
            assert isinstance(made, Change)
        return len(ran)

    accept(1)
    writing.set_trace_callback(ran.append)
    one = accept(1)
    many = accept(51)
    writing.close()
    assert (one, (many - one) / 50) == (10, 8)


def gathering(path: Path) -> tuple[sqlite3.Connection, SqliteTransaction]:
    writing = connect_writer(path)
    migrate(writing)
    create_gathering_view(writing)
    transaction = SqliteTransaction(writing, 1_000_000, Ownership("node", 1), StoreState(), Sealing(()))
    transaction.gather()
    return writing, transaction


def accept_in(transaction: SqliteTransaction, call: Task) -> None:
    limits = AcceptLimits(1_000, pending=PendingLimits(1_000, 1_000))
    made = Accept(call, limits=limits).run(transaction)
    assert isinstance(made, Change)


def test_the_event_loop_leaves_the_rows_of_creates_to_the_thread_that_commits(tmp_path: Path) -> None:
    """In statements that the driver is given: on the loop the number of each event and two looks, later two for all five."""
    writing, transaction = gathering(tmp_path / "store.db")
    ran, calls = list[str](), [a_call() for _ in range(5)]
    writing.set_trace_callback(ran.append)
    for call in calls:
        accept_in(transaction, call)
    on_the_loop = len(ran)
    transaction.write_gathered()
    # Statements of its triggers are reported under the name of a statement, too.
    later = set(ran[on_the_loop:])
    writing.set_trace_callback(None)
    assert (on_the_loop, len(later)) == (len(calls) + 2, 2)
    tables = ("tasks", "task_calls", "audit", "events")
    assert [writing.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables] == [5, 5, 5, 5]
    writing.close()


def test_large_rows_are_not_copied_together(tmp_path: Path) -> None:
    writing, transaction = gathering(tmp_path / "store.db")
    ran = list[str]()
    for letter in (b"a", b"b", b"c", b"d"):
        accept_in(transaction, a_call(arguments=b'"%b"' % (letter * 100_000)))
    writing.set_trace_callback(ran.append)
    transaction.write_gathered()
    writing.set_trace_callback(None)
    # Four at once would be too much; so are three, but two are not.
    assert len(set(ran)) == 3
    assert writing.execute("SELECT count(*) FROM task_calls").fetchone()[0] == 4
    writing.close()


def test_a_gathered_row_can_be_read(tmp_path: Path) -> None:
    writing, transaction = gathering(tmp_path / "store.db")
    first, second, third = a_call(), a_call(limited_as="dave"), a_call(limited_as="erin")
    accept_in(transaction, first)
    assert transaction.run("last_audit").fetchone()[0] == 1
    accept_in(transaction, second)
    assert transaction.run("count_open_of_caller", limited_as="dave").fetchone()[0] == 1
    accept_in(transaction, third)
    assert isinstance(Advance(third.id, Cancelled("enough")).run(transaction), Change)
    assert transaction.run("count_open_of_caller", limited_as="erin").fetchone()[0] == 0
    for number in range(20):
        RecordAudit(AuditEntry(at_ms=1, event=f"call {number}")).run(transaction)
    transaction.write_gathered()
    assert transaction.run("last_audit").fetchone()[0] == 24
    assert writing.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchone() == (4, 4)
    writing.close()


async def test_a_duplicate_id_does_not_affect_others_of_its_commit(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    old, other = a_call(), a_call()
    await store.do(Accept(old))
    calls = [a_call(), a_call(id=old.id), other, a_call(id=other.id), a_call()]
    answers = await asyncio.gather(*(store.do(Accept(call)) for call in calls))
    assert [type(answer) for answer in answers] == [Change, IdTaken, Change, IdTaken, Change]
    assert [row.number for row in await store.ask(AuditRows())] == [1, 2, 3, 4]
    assert await store.ask(OpenTasksOf("carol")) == 4
    await store.close()


async def test_tasks_are_accepted_after_a_vacuum_and_after_a_failed_one(tmp_path: Path) -> None:
    """Where temporary things are kept changes meanwhile, and with it goes what is temporary in the connection."""
    store = open_store(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    try:
        assert isinstance(await store.do(Accept(a_call())), Change)
        await store.engine.overwrite_deleted()
        assert isinstance(await store.do(Accept(a_call())), Change)
        other.execute("BEGIN IMMEDIATE")
        with raises_error("store_unavailable", "database is locked"):
            await store.engine.overwrite_deleted()
        other.execute("ROLLBACK")
        assert isinstance(await store.do(Accept(a_call())), Change)
        rows = store.engine._reading.execute("SELECT count(*) FROM tasks").fetchone()
        assert rows == (3,)
    finally:
        other.close()
        await store.close()


async def test_tasks_are_accepted_one_by_one_where_their_rows_cannot_be_gathered(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    try:
        store.engine.writer._connection.execute("DROP VIEW gathered_rows")
        for made in await asyncio.gather(*(store.do(Accept(a_call())) for _ in range(3))):
            assert isinstance(made, Change)
    finally:
        await store.close()
