"""Tests of the PostgreSQL adapter alone: a server that is wrong, unavailable, slow or restarted, and its statements."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.postgres import RestartableServer, fresh_url
from tests.harness.raised import raises_error
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.state import TERMINAL, TaskState
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import Change, Intended, TaskFilter
from taskgate.store.sqlite.statements import SQL as SQLITE

psycopg = pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from taskgate.store.operations.audit import AuditRows, RecordAudit  # noqa: E402
from taskgate.store.operations.task_queries import FindTask, FindTasks  # noqa: E402
from taskgate.store.operations.tasks import Accept, Intend  # noqa: E402
from taskgate.store.postgres.committer import Committer  # noqa: E402
from taskgate.store.postgres.connection import connect  # noqa: E402
from taskgate.store.postgres.engine import PostgresEngine  # noqa: E402
from taskgate.store.postgres.inspection import inspect, migrate  # noqa: E402
from taskgate.store.postgres.statements import SQL, migrations  # noqa: E402
from taskgate.store.postgres.store import PostgresStore, open_store  # noqa: E402
from taskgate.store.postgres.transaction import _TOGETHER  # noqa: E402

DEADLINE_S = 60
OTHER_GATEWAYS = ("accounts", "audit_chains", "locks", "replicas", "servers", "sessions")
"""The files of statements about gateways that share a database; the others have the same statements in both adapters."""
ONLY_HERE = {
    "orphan_chunks",
    "hold_streams",
    "keep_instead",
    "numbers_given",
    "count_open_of_callers",
    "find_tasks_of",
    "history_days",
    "update_tasks",
    *_TOGETHER.values(),
} | {
    name
    for file in OTHER_GATEWAYS
    for name in re.findall(
        r"^-- name: (\w+)$",
        (Path(migrations.__code__.co_filename).parent / "queries" / f"{file}.sql").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
ONLY_IN_SQLITE = {"touch_owner"}


def a_call(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": new_task_id(1_800_000_000_000, secrets.token_bytes(10)),
        "principal": "carol",
        "caller": "carol",
        "scope": "default",
        "server": "reports",
        "tool": "build",
        "wire_name": "reports__build",
        "arguments": b"{}",
        "digest": "sha256:d1",
        "generation": Generation.STATEFUL,
        "ttl_ms": 600_000,
        "execution_budget_ms": 60_000,
    }
    return Task(**{**fields, **changes})


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    opened = open_store(url)
    yield opened
    await opened.close()


def test_both_adapters_have_the_same_statements() -> None:
    assert set(SQL) - ONLY_HERE == set(SQLITE) - ONLY_IN_SQLITE
    for name in set(SQL) - ONLY_HERE - {"find_owner", "history_matching"}:
        here = {message.decode() for message in re.findall(rb"%\((\w+)\)[bs]", SQL[name])}
        there = {"text" if part == "pattern" else part for part in re.findall(r":(\w+)", SQLITE[name])}
        assert here - {"chain", "dead_ms", "part", "parts"} == there | (here & {"principal"}), name


def test_every_statement_is_valid_and_used(url: str) -> None:
    folder = Path(migrations.__code__.co_filename).parent.parent
    source = "".join(file.read_text() for file in folder.rglob("*.py"))
    with connect(url) as connection:
        migrate(connection)
        for name, text in SQL.items():
            numbered = text.decode().replace("%%", "%")
            for place, value in enumerate(dict.fromkeys(re.findall(r"%\((\w+)\)[bs]", numbered)), 1):
                numbered = re.sub(rf"%\({value}\)[bs]", f"${place}", numbered)
            connection.execute(f"PREPARE checked AS {numbered}".encode())
            connection.execute("DEALLOCATE checked")
            assert f'"{name}"' in source, f"{name} is unused"


def test_a_schema_that_is_too_new_is_left_alone(url: str) -> None:
    with connect(url) as connection:
        migrate(connection)
        connection.execute("INSERT INTO taskgate_schema (number) VALUES (999)")
    with raises_error("store_unavailable", "999"):
        open_store(url)


def test_several_that_start_together_migrate_once(url: str) -> None:
    with connect(url) as one, connect(url) as two:
        assert migrate(one) == migrate(two) == len(migrations())
        assert inspect(two, url).schema == len(migrations())


async def test_a_task_of_the_version_before_is_found_by_scope_and_tool(store: PostgresStore, url: str) -> None:
    """Gateways are upgraded one after the other: an older one without the columns writes beside a newer one."""
    made = await store.do(Accept(a_call(scope="night", wire_name="reports__clean")))
    assert isinstance(made, Change)
    with connect(url) as connection:
        cursor = connection.execute("SELECT * FROM tasks")
        known = [column.name for column in cursor.description or () if column.name not in ("scope", "wire_name")]
        connection.execute("UPDATE tasks SET scope = '', wire_name = ''")
        connection.execute(f"CREATE TEMPORARY TABLE old AS SELECT {', '.join(known)} FROM tasks")
        connection.execute("DELETE FROM tasks")
        connection.execute(f"INSERT INTO tasks ({', '.join(known)}) SELECT * FROM old")
    for wanted in (TaskFilter(scope="night"), TaskFilter(tool="clean")):
        assert [task.id for task in (await store.ask(FindTasks(wanted))).tasks] == [made.task.id]


def test_looking_for_tasks_reads_columns_and_few_of_them_by_an_index(url: str) -> None:
    with connect(url) as connection:
        migrate(connection)
        connection.execute(
            "INSERT INTO tasks (id, caller, limited_as, scope, wire_name, server, state, owner, fence, revision, needs_owner,"
            " finished_ms, doc) SELECT 'tg_' || n, 'c', 'c', 'default', 't', 's',"
            " CASE WHEN n % 20 = 0 THEN 'failed' ELSE 'completed' END, 'o', 1, 1, 0, CASE WHEN n > 5 THEN n END, '{}'"
            " FROM generate_series(1, 5000) AS n"
        )
        connection.execute("ANALYZE tasks")
        values: dict[str, Any] = {"first": "tg_", "before": "~", "limit": 51, "now_ms": 0, "since_ms": 1}
        plans = {}
        for name in ("find_open_tasks", "tasks_ended_badly", "find_tasks"):
            asked = {key: values.get(key) for key in re.findall(r"%\((\w+)\)", SQL[name].decode())}
            plans[name] = "\n".join(row[0] for row in connection.execute(b"EXPLAIN " + SQL[name], asked).fetchall())
    assert "tasks_open" in plans["find_open_tasks"]
    assert "tasks_ended_badly" in plans["tasks_ended_badly"]
    assert "Seq Scan" not in "".join(plans.values()), plans
    assert b"json" not in SQL["find_tasks"]


@pytest.mark.parametrize("statement", [SQL["tasks_ended_badly"].decode(), SQLITE["tasks_ended_badly"]])
def test_every_failed_state_is_in_the_filter_for_failures(statement: str) -> None:
    named = set(re.findall(r"'([a-z_]+)'", statement))
    assert named == {state.value for state in TERMINAL - {TaskState.COMPLETED}}


@pytest.mark.parametrize(
    "setting, expected_text",
    [("synchronous_commit=off", "synchronous_commit is 'off'"), ("default_transaction_read_only=on", "read-only")],
)
def test_a_database_without_durable_commits_is_refused(url: str, setting: str, expected_text: str) -> None:
    with pytest.raises(GatewayFault, match=expected_text) as caught:
        open_store(f"{url}%20-c{setting.replace('=', '%3D')}")
    assert (caught.value.error_type, caught.value.executed) == ("store_unavailable", Executed.NO)


@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql://nobody:secret@127.0.0.1:1/none",
        "postgresql:///none?host=/nowhere",
        "postgresql://nobody:secret%@127.0.0.1:1/none",
        "postgresql://nobody:secret%00@127.0.0.1:1/none",
        "postgresql://nobody:my secret@127.0.0.1:1/none",
        "postgresql://nobody:my@secret@127.0.0.1:1/none",
        "postgresql://nobody:1/secret@127.0.0.1:1/none",
        "postgresql://nobody:secret@[::1/none",
        "postgresql://nobody:secret@[::1]1/none",
        "postgresql://127.0.0.1:1/none?secret=1",
    ],
)
def test_a_wrong_address_is_reported_without_its_password(wrong: str) -> None:
    with raises_error("store_unavailable") as caught:
        open_store(wrong)
    assert "secret" not in caught.value.message


async def test_all_times_come_from_the_clock_of_the_database(store: PostgresStore) -> None:
    answer = await store.do(Accept(a_call()))
    assert isinstance(answer, Change)
    with connect(await _address(store)) as connection:
        row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
    assert row is not None
    assert abs(row[0] - answer.task.created_ms) < DEADLINE_S * 1000
    assert abs(row[0] - store.now_ms()) < DEADLINE_S * 1000


async def _address(store: PostgresStore) -> str:
    return store.engine.committer._url


async def test_one_failing_write_does_not_affect_others_of_its_batch(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a lease, which a busy machine may take, nothing is written at all.
    monkeypatch.setattr(PostgresEngine, "may_send", lambda _: True)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    task = await store.do(Accept(a_call()))
    assert isinstance(task, Change)
    good, bad = await asyncio.gather(
        store.do(Accept(a_call())),
        store.do(Intend(task.task.id, byte_hash="b", upstream="u", recheck=broken)),
        return_exceptions=True,
    )
    assert isinstance(good, Change)
    assert isinstance(bad, ZeroDivisionError)
    assert isinstance(await store.do(Intend(task.task.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)


def kill_backends(url: str, kind: str) -> int:
    with connect(url, "killer") as connection:
        row = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = %s",
            [kind],
        ).fetchone()
    assert row is not None
    killed: int = row[0]
    return killed


async def test_cut_connections_are_made_anew_and_nothing_is_lost(store: PostgresStore, url: str) -> None:
    made: list[str] = []
    for kind in ("taskgate writer", "taskgate reader", "taskgate presence"):
        for _ in range(3):
            kill_backends(url, kind)
            made.append(await accepted_in_the_end(store))
    for task_id in made:
        assert await store.ask(FindTask(task_id)) is not None
    async with asyncio.timeout(DEADLINE_S):
        while store.problem is not None:
            await asyncio.sleep(0.05)


async def accepted_in_the_end(store: PostgresStore) -> str:
    """Each refusal must be clear, and true: what was refused is not there."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            draft = a_call()
            try:
                answer = await store.do(Accept(draft))
            except GatewayFault as fault:
                refused = fault
            else:
                assert isinstance(answer, Change)
                return answer.task.id
            assert (refused.error_type, refused.executed) == ("store_unavailable", Executed.NO)
            assert await store.ask(FindTask(draft.id)) is None
            await asyncio.sleep(0.05)


async def test_a_commit_with_a_lost_reply_is_looked_up(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server committed, but the connection was cut before its reply: the caller gets the real outcome, and the audit chain
    goes on from where that commit left it."""
    from taskgate.store.postgres import committer as commits
    from taskgate.store.postgres import transaction

    await store.do(Accept(a_call()))
    committer = store.engine.committer
    end, waited = committer._end, transaction.waited

    def committed_and_cut(cursor: Any) -> Any:
        waited(cursor)
        cursor.connection.close()
        raise psycopg.OperationalError("cut by the test")

    def cut(connection: Any, tx: Any) -> None:
        committer._end = end
        with monkeypatch.context() as cutting:
            cutting.setattr(commits, "waited", committed_and_cut)
            end(connection, tx)

    committer._end = cut
    drafts = [a_call(), a_call()]
    for draft in drafts:
        assert isinstance(await store.do(Accept(draft)), Change)
        assert await store.ask(FindTask(draft.id)) is not None
    rows = await store.ask(AuditRows())
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert store.audit_head() == (rows[-1].number, rows[-1].hash)


async def test_a_commit_that_never_arrived_is_refused_and_not_stored(store: PostgresStore) -> None:
    from taskgate.store.postgres import committer as commits

    await store.do(Accept(a_call()))
    committer = store.engine.committer
    end = committer._end

    def cut(connection: Any, tx: Any) -> None:
        committer._end = end
        connection.pgconn.finish()
        raise commits.CommitLost(committer._number, "cut by the test")

    committer._end = cut
    draft = a_call()
    with pytest.raises(GatewayFault, match="cut by the test"):
        await store.do(Accept(draft))
    assert await store.ask(FindTask(draft.id)) is None
    assert await accepted_in_the_end(store)


async def test_a_commit_lost_in_a_server_crash_is_not_confused_with_another() -> None:
    """A server that crashed gives the numbers of transactions that never reached its log to others, which are committed."""
    from taskgate.store.postgres import committer as commits

    async with RestartableServer() as server:
        store = open_store(server.url)
        await store.do(Accept(a_call()))
        committer, loop = store.engine.committer, asyncio.get_running_loop()
        end = committer._end

        def crash(connection: Any, tx: Any) -> None:
            committer._end = end
            asyncio.run_coroutine_threadsafe(server.restart_immediately(), loop).result(60)
            with connect(server.url) as other:
                for _ in range(50):
                    other.execute("SELECT pg_current_xact_id()")
            raise commits.CommitLost(committer._number, "the server crashed")

        committer._end = crash
        draft = a_call()
        with pytest.raises(GatewayFault, match="the server crashed"):
            await store.do(Accept(draft))
        assert await store.ask(FindTask(draft.id)) is None
        await store.close()


async def test_deferred_writes_wait_for_an_unavailable_database(store: PostgresStore, url: str) -> None:
    await store.do(Accept(a_call()))
    kill_backends(url, "taskgate writer")
    store.defer(RecordAudit(AuditEntry(0, "kept in mind")))
    await accepted_in_the_end(store)
    async with asyncio.timeout(DEADLINE_S):
        while "kept in mind" not in [row.entry.event for row in await store.ask(AuditRows())]:
            await asyncio.sleep(0.05)


async def test_a_connection_that_breaks_right_after_the_commit_reverts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server confirmed the commit: the waiting caller must not get the error that nothing was accepted."""
    url = fresh_url()
    store = open_store(url)
    end = Committer._end

    def end_and_break(self: Committer, connection: Any, tx: Any) -> None:
        end(self, connection, tx)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])

    monkeypatch.setattr(Committer, "_end", end_and_break)
    answer = await store.do(Accept(a_call()))
    assert isinstance(answer, Change)
    monkeypatch.undo()
    assert await store.ask(FindTask(answer.task.id)) is not None
    assert isinstance(await store.do(Accept(a_call())), Change)
    await store.close()


async def test_a_connection_that_was_lost_while_idle_fails_no_write(store: PostgresStore, url: str) -> None:
    """Nothing of the transaction has reached the server: it is repeated on a new connection."""
    await store.do(Accept(a_call()))
    for _ in range(3):
        assert kill_backends(url, "taskgate writer") == 1
        assert isinstance(await store.do(Accept(a_call())), Change)


async def test_a_write_is_refused_only_after_an_attempt_to_connect_that_began_after_it(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that arrives while an older attempt fails waits for the next one: the database may have returned since."""
    from taskgate.store.postgres import committer as commits

    await store.do(Accept(a_call()))
    begun, fails = threading.Event(), threading.Event()

    def away(*_: Any) -> Any:
        begun.set()
        fails.wait(DEADLINE_S)
        raise psycopg.OperationalError("away")

    monkeypatch.setattr(commits, "connect", away)
    fails.set()
    kill_backends(url, "taskgate writer")
    with raises_error("store_unavailable", "away"):
        await store.do(Accept(a_call()))
    begun.clear()
    fails.clear()
    store.defer(RecordAudit(AuditEntry(0, "begins an attempt")))
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    monkeypatch.setattr(commits, "connect", connect)
    waiting = asyncio.create_task(store.do(Accept(a_call())))
    await asyncio.sleep(0)
    fails.set()
    assert isinstance(await waiting, Change)


async def test_a_failed_attempt_to_connect_is_not_repeated_for_the_same_write(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.store.postgres import committer as commits

    await store.do(Accept(a_call()))
    attempts: list[None] = []

    def away(*_: Any) -> Any:
        attempts.append(None)
        raise psycopg.OperationalError("away")

    with monkeypatch.context() as broken:
        broken.setattr(commits, "connect", away)
        # The attempts of the writer itself, in between, are of no interest here.
        broken.setattr(store.engine.writer, "_start_in", lambda _seconds: None)
        kill_backends(url, "taskgate writer")
        for expected in (1, 2):
            with raises_error("store_unavailable", "away"):
                await store.do(Accept(a_call()))
            assert len(attempts) == expected
    assert await accepted_in_the_end(store)


async def test_a_write_waits_while_the_outcome_of_a_commit_is_looked_up(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.store.postgres import committer as commits

    await store.do(Accept(a_call()))
    committer, looking, may_look = store.engine.committer, threading.Event(), threading.Event()
    end, was_committed = committer._end, committer.was_committed

    def cut(connection: Any, tx: Any) -> None:
        committer._end = end
        connection.pgconn.finish()
        raise commits.CommitLost(committer._number, "cut by the test")

    def looked_up(number: int) -> bool:
        looking.set()
        may_look.wait(DEADLINE_S)
        return was_committed(number)

    monkeypatch.setattr(committer, "was_committed", looked_up)
    committer._end = cut
    lost = asyncio.create_task(store.do(Accept(a_call())))
    assert await asyncio.to_thread(looking.wait, DEADLINE_S)
    waiting = asyncio.create_task(store.do(Accept(a_call())))
    await asyncio.sleep(0)
    may_look.set()
    with raises_error("store_unavailable", "cut by the test"):
        await lost
    assert isinstance(await waiting, Change)


async def test_a_write_does_not_wait_for_a_connection_beyond_its_deadline(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskgate.store.postgres import committer as commits
    from taskgate.store.postgres import writer

    committer, over = store.engine.committer, threading.Event()

    def lost(_batch: Any) -> None:
        raise commits.CommitLost(1, "cut by the test")

    with monkeypatch.context() as broken:
        broken.setattr(writer, "RECONNECT_WITHIN_S", 0.05)
        broken.setattr(committer, "commit", lost)
        broken.setattr(committer, "was_committed", lambda _: over.wait(DEADLINE_S) and False)
        first = asyncio.create_task(store.do(Accept(a_call())))
        async with asyncio.timeout(DEADLINE_S):
            while store.engine.writer.problem is None:
                await asyncio.sleep(0.01)
        assert store.engine.writer._patience_s == writer.RECONNECT_WITHIN_S
        for _ in range(2):
            with raises_error("store_unavailable", "cut by the test"):
                await store.do(Accept(a_call()))
        over.set()
        with raises_error("store_unavailable", "cut by the test"):
            await first
    assert await accepted_in_the_end(store)
