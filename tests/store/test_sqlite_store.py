"""What is special about the SQLite adapter: its file, its lock, its neighbours on the disk, and a disk that fails."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.unchecked import just_go

import taskgate.store.sqlite
from taskgate.core.audit import AuditEntry, Whole, row_bytes, verify
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.generations import Generation
from taskgate.core.tasks import ids
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Dispatched, Noted, ResultCame
from taskgate.ports.store_answers import Change
from taskgate.store.batch import RideAlong
from taskgate.store.operations import rows
from taskgate.store.sqlite import checkpointer, connection, writer
from taskgate.store.sqlite.connection import connect_reader, connect_writer, migrate
from taskgate.store.sqlite.statements import SQL, migrations
from taskgate.store.sqlite.store import SqliteStore, open_store

DEADLINE_S = 20


def a_call(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": ids.task_id(time.time_ns() // 1_000_000, secrets.token_bytes(10)),
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


async def trouble_is_over(store: SqliteStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while store.trouble is not None:
            await asyncio.sleep(0.05)


def test_a_second_process_on_the_same_file_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    program = f"""
import asyncio, sys
from pathlib import Path
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
    await store.accept(a_call())
    files = list((tmp_path / "new").iterdir())
    assert len(files) == 5
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    await store.close()


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writing = connect_writer(path)
    writing.execute("PRAGMA user_version=999")
    writing.close()
    with pytest.raises(GatewayFault, match="newer Taskgate"):
        open_store(path)
    with pytest.raises(GatewayFault, match="newer Taskgate"):
        open_store(path)


def test_a_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(GatewayFault, match="cannot be opened"):
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
        assert f'"{name}"' in source, f"nobody uses {name}"
    writing.close()


@pytest.mark.parametrize(
    "name, values, index",
    [
        ("page_of_tasks", ("caller",), "tasks_of_caller"),
        ("count_open_of_caller", ("caller",), "tasks_open"),
        ("due_approvals", ("now_ms",), "tasks_approval_due"),
        ("due_executions", ("now_ms",), "tasks_execution_due"),
        ("forgettable_tasks", ("now_ms",), "tasks_to_forget"),
        ("page_of_open_approvals", ("asked_ms",), "approvals_open"),
        ("count_pending_of_caller", ("caller",), "COVERING INDEX approvals_open_of_caller"),
        ("last_given_approval", ("server",), "approvals_given"),
        ("forget_events", ("before_ms",), "events_by_age"),
    ],
)
def test_the_frequent_questions_are_answered_by_an_index(
    tmp_path: Path, name: str, values: tuple[str, ...], index: str
) -> None:
    writing = connect_writer(tmp_path / "store.db")
    migrate(writing)
    asked = dict.fromkeys(re.findall(r":(\w+)", SQL[name]))
    plan = " ".join(row[3] for row in writing.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", asked))
    assert index in plan
    writing.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
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


async def test_a_full_database_acknowledges_nothing_and_recovers_when_there_is_room(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    kept = [a_call() for _ in range(20)]
    await asyncio.gather(*(store.accept(call) for call in kept))

    def pages(limit: int) -> None:
        writing = store.engine.writer._connection
        writing.execute(f"PRAGMA max_page_count={limit}")

    await in_writer(store, lambda: pages(1))
    big = a_call(arguments=b'"' + b"x" * 3_000_000 + b'"')
    answers = await asyncio.gather(store.accept(big), store.accept(a_call()), return_exceptions=True)
    assert all(isinstance(answer, GatewayFault) for answer in answers)
    assert answers[0].error_type == "store_unavailable"  # type: ignore[union-attr]
    assert answers[0].executed is Executed.NO  # type: ignore[union-attr]
    assert store.trouble is not None
    assert await store.get(big.id) is None
    await in_writer(store, lambda: pages(1_000_000))
    await trouble_is_over(store)
    assert isinstance(await store.accept(big), Change)
    assert all([await store.get(call.id) is not None for call in kept])
    assert isinstance(verify(await store.audit_rows()), Whole)
    await store.close()


async def in_writer(store: SqliteStore, change: Callable[[], None]) -> None:
    """Run something on the writer's connection between two transactions."""
    done = asyncio.Event()

    def committed() -> None:
        change()
        done.set()

    store.engine.writer.ride_along(RideAlong(lambda tx: None, committed))
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()


class SlowDisk:
    """Holds the first commit back until it is told to go on."""

    def __init__(self, store: SqliteStore) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._commit = store.engine.writer._commit
        store.engine.writer._commit = self._slowly  # type: ignore[method-assign]

    def _slowly(self) -> str | None:
        self.reached.set()
        self.go_on.wait(DEADLINE_S)
        return self._commit()


FULL_DISK = """
import asyncio, resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_sqlite_store import a_call, trouble_is_over
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks.transition import ResultCame
from taskgate.store.sqlite.store import open_store

def room(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

async def main():
    store = open_store(Path({path!r}))
    before = a_call()
    await store.accept(before)
    await store.intend(before.id, byte_hash="b", upstream="u", look=lambda *_: None)
    # No file may grow any more: to the store this is a disk that refuses every write.
    room(4096)
    faults = 0
    for work in (store.accept(a_call()), store.advance(before.id, ResultCame(b"x" * (2 << 20)))):
        try:
            await work
        except GatewayFault as fault:
            faults += fault.error_type == "store_unavailable" and fault.executed == "no"
    assert faults == 2, faults
    assert (await store.get(before.id)).state == "running"
    room(resource.RLIM_INFINITY)
    await trouble_is_over(store)
    await store.accept(a_call())
    await store.advance(before.id, ResultCame(b"x" * (2 << 20)))
    assert len(await store.result_bytes(before.id)) == 2 << 20
    await store.close()
    again = open_store(Path({path!r}))
    assert len((await again.page("carol")).tasks) == 2
    await again.close()
    print("recovered")

asyncio.run(main())
"""


def test_a_disk_that_refuses_writes_is_survived_without_a_false_acknowledgement(tmp_path: Path) -> None:
    program = FULL_DISK.format(path=str(tmp_path / "store.db"), tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "recovered\n", done.stderr


async def test_result_files_of_no_task_are_swept_when_they_are_old(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.accept(call)
    await store.intend(call.id, byte_hash="b", upstream="u", look=just_go)
    await store.advance(call.id, ResultCame(b"x" * (2 << 20)))
    folder = tmp_path / "store.db.results"
    old, young = folder / "tg_old.1", folder / "tg_young.1"
    for orphan in (old, young):
        orphan.write_bytes(b"left behind")
    os.utime(old, (0, 0))
    assert (await store.sweep()).files == 1
    assert not old.exists()
    assert young.exists()
    assert await store.result_bytes(call.id) == b"x" * (2 << 20)
    await store.close()


async def test_the_log_starts_over_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    sizes = []
    for _ in range(6):
        for _ in range(checkpointer.COMMITS_BETWEEN + 1):
            await store.accept(a_call())
        async with asyncio.timeout(DEADLINE_S):
            while store.engine.writer._checkpointer._wanted.is_set():
                await asyncio.sleep(0.01)
        sizes.append((tmp_path / "store.db-wal").stat().st_size)
    assert sizes[-1] < 4 * sizes[0]
    await store.close()


async def test_a_write_whose_caller_gave_up_before_it_began_is_not_done(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    blocking = asyncio.create_task(store.accept(a_call()))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    call = a_call()
    given_up = asyncio.create_task(store.accept(call))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    disk.go_on.set()
    await blocking
    await store.keep("flush", b"1")
    assert await store.get(call.id) is None
    await store.close()


@pytest.mark.parametrize("how", ["cancelled", "timed out", "cancelled as the answer came"])
async def test_a_task_that_was_written_when_nobody_waited_any_more_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = open_store(tmp_path / "store.db")
    disk, call = SlowDisk(store), a_call()
    with monkeypatch.context() as impatient:
        impatient.setattr(writer, "ANSWER_WITHIN_S", 0.05 if how == "timed out" else DEADLINE_S)
        accepting = asyncio.create_task(store.accept(call, key="k"))
        assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
        if how == "cancelled":
            accepting.cancel()
        if how == "cancelled as the answer came":
            over = store.engine.writer._over
            store.engine.writer._over = lambda *told: (over(*told), accepting.cancel())[0]  # type: ignore[method-assign]
            disk.go_on.set()
        with pytest.raises(asyncio.CancelledError if how != "timed out" else GatewayFault):
            await accepting
    disk.go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        while (task := await store.get(call.id)) is None or not task.state.is_terminal:
            await asyncio.sleep(0.02)
    assert task.state == "cancelled"
    assert task.last_attempt is None
    again = await store.accept(a_call(), key="k")
    assert isinstance(again, Change), "the key must not stand in the way of a repeat"
    await store.close()


async def test_nobody_is_answered_before_the_commit_is_on_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    call = a_call()
    accepting = asyncio.create_task(store.accept(call))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    assert not accepting.done()
    assert await store.get(call.id) is None
    disk.go_on.set()
    assert isinstance(await accepting, Change)
    assert await store.get(call.id) is not None
    await store.close()


async def test_too_many_waiting_writes_are_refused_and_not_piled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store.db")
    monkeypatch.setattr(writer, "MAX_WAITING", 0)
    monkeypatch.setattr(writer, "MAX_RIDE_ALONGS", 0)
    with pytest.raises(GatewayFault, match="no more writes"):
        await store.accept(a_call())
    with pytest.raises(GatewayFault, match="waiting to be written"):
        store.record(AuditEntry(0, "x"))
    await store.close()


async def test_a_disk_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    with monkeypatch.context() as impatient:
        impatient.setattr(writer, "ANSWER_WITHIN_S", 0.01)
        with pytest.raises(GatewayFault, match="in time"):
            await store.accept(a_call())
    disk.go_on.set()
    await store.close()
    with pytest.raises(GatewayFault):
        await store.accept(a_call())


async def test_a_store_locked_by_a_stranger_says_so_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store.db")
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 0.1)
    stranger = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(*(store.accept(a_call()) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(answer, GatewayFault) for answer in answers)
    store.record(AuditEntry(0, "kept for later"))
    stranger.execute("ROLLBACK")
    stranger.close()
    await trouble_is_over(store)
    assert [row.entry.event for row in await store.audit_rows()] == ["kept for later"]
    assert isinstance(await store.accept(a_call()), Change)
    await store.close()


async def test_a_strangers_lock_is_waited_for_beside_the_loop_and_not_on_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    stranger = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.accept(a_call()))
    turns = 0
    while turns < 20:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        # Standing still on a lock would take as long as the lock is held, which is until the turns are over.
        assert time.monotonic() - before < 5
        turns += 1
        assert await store.get("no such task") is None
        assert not writing.done()
    stranger.execute("ROLLBACK")
    stranger.close()
    assert isinstance(await asyncio.wait_for(writing, DEADLINE_S), Change)
    await store.close()


async def test_the_log_of_lives_that_ended_hard_is_taken_in_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    program = f"""
import asyncio, os, signal
from pathlib import Path
from taskgate.store.sqlite.store import open_store
async def main():
    store = open_store(Path({str(path)!r}))
    await store.keep(os.urandom(8).hex(), os.urandom(1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    for _ in range(4):
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        # Of each life, only its own megabyte.
        assert (tmp_path / "store.db-wal").stat().st_size < 2 << 20
    store = open_store(path)
    assert (tmp_path / "store.db-wal").stat().st_size < 1 << 20
    await store.close()


async def test_large_commits_do_not_make_the_log_large(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    for number in range(80):
        await store.keep(f"n{number}", os.urandom(1 << 20))
    assert (tmp_path / "store.db-wal").stat().st_size < 3 * checkpointer.MAX_LOG_BYTES
    await store.close()


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GatewayFault, match="is a link"):
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
from taskgate.store.sqlite.store import open_store
try:
    asyncio.run(open_store(Path({str(path)!r})).close())
except GatewayFault as fault:
    sys.exit(fault.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise GatewayFault("store_unavailable", done.stderr)


async def test_an_owner_that_was_fenced_off_is_in_trouble_at_once(tmp_path: Path) -> None:
    first = open_store(tmp_path / "store.db", locked=False)
    assert first.trouble is None
    second = open_store(tmp_path / "store.db", locked=False)
    assert first.trouble is not None
    assert "taken over" in first.trouble
    assert second.trouble is None
    await first.close()
    await second.close()


async def test_the_intent_is_the_only_way_to_dispatch(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.accept(call)
    with pytest.raises(ValueError, match="intend"):
        await store.advance(call.id, Dispatched(1, "b", "u"))
    await store.close()


async def test_progress_noted_while_it_is_being_written_is_not_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.accept(call)
    disk = SlowDisk(store)
    store.note(call.id, Noted("one"))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    store.note(call.id, Noted("two"))
    disk.go_on.set()
    await store.close()
    again = open_store(tmp_path / "store.db")
    found = await again.get(call.id)
    assert found is not None
    assert found.status_message == "two"
    await again.close()


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
def test_the_quick_way_to_write_an_audit_row_gives_the_same_bytes(entry: AuditEntry) -> None:
    assert rows.audit_content(7, "sha256:p", entry) == row_bytes(7, "sha256:p", entry)
