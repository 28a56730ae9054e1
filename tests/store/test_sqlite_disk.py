"""The SQLite store on a disk that is full, slow or locked: no write is confirmed that was not stored."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.store_under_test import KeepSecret
from tests.harness.raised import raises_error
from tests.store.call_factory import DEADLINE_S, a_call, store_recovers

from taskgate.core.audit.chain import AuditEntry, ChainIntact, verify
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.tasks.transition import Noted
from taskgate.ports.store_answers import Change
from taskgate.store import batch_writer
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, NoteProgress
from taskgate.store.sqlite import checkpointer, writer
from taskgate.store.sqlite.file_lock import FileLock
from taskgate.store.sqlite.store import SqliteStore, open_store
from taskgate.store.transaction import Transaction


async def test_a_full_database_acknowledges_nothing_and_recovers_when_there_is_room(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    kept = [a_call() for _ in range(20)]
    await asyncio.gather(*(store.do(Accept(call)) for call in kept))

    def pages(limit: int) -> None:
        writing = store.engine.writer._connection
        writing.execute(f"PRAGMA max_page_count={limit}")

    await in_writer(store, lambda: pages(1))
    big = a_call(arguments=b'"' + b"x" * 3_000_000 + b'"')
    answers = await asyncio.gather(store.do(Accept(big)), store.do(Accept(a_call())), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, GatewayFault)
        assert answer.error_type == "store_unavailable"
        assert answer.executed is Executed.NO
    assert store.problem is not None
    assert await store.ask(FindTask(big.id)) is None
    await in_writer(store, lambda: pages(1_000_000))
    await store_recovers(store)
    assert isinstance(await store.do(Accept(big)), Change)
    assert all([await store.ask(FindTask(call.id)) is not None for call in kept])
    assert isinstance(verify(await store.ask(AuditRows())), ChainIntact)
    await store.close()


async def in_writer(store: SqliteStore, change: Callable[[], None]) -> None:
    """Run something on the writer's connection between two transactions."""
    done = asyncio.Event()

    def committed() -> None:
        change()
        done.set()

    store.engine.writer.defer(DeferredWrite(lambda tx: None, committed))
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()


class SlowDisk:
    """Holds the first commit back until it is released."""

    def __init__(self, store: SqliteStore) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._commit = store.engine.writer._commit
        store.engine.writer._commit = self._slowly

    def _slowly(self) -> str | None:
        self.reached.set()
        self.go_on.wait(DEADLINE_S)
        return self._commit()


class Commits:
    """Counts how often the disk is waited for."""

    def __init__(self, store: SqliteStore) -> None:
        self.count = 0
        self._commit = store.engine.writer._commit
        store.engine.writer._commit = self._counted

    def _counted(self) -> str | None:
        self.count += 1
        return self._commit()


async def turns_until(done: asyncio.Event) -> int:
    """The number of other iterations of the event loop meanwhile."""
    turns = 0
    while not done.is_set():
        turns += 1
        await asyncio.sleep(0)
    return turns


@pytest.mark.parametrize("fails", [False, True])
async def test_writes_that_wait_together_share_one_sync_and_delay_no_other(tmp_path: Path, fails: bool) -> None:
    """However slow the machine is: a batch that took only what fits into one turn would sync after every few writes."""
    store, done = open_store(tmp_path / "store.db"), asyncio.Event()
    commits, others = Commits(store), asyncio.create_task(turns_until(done))

    def slowly(number: int) -> Callable[[Transaction], int]:
        def write(_tx: Transaction) -> int:
            time.sleep(0.002)
            if fails and number == 20:
                raise ValueError(number)
            return number

        return write

    answers = await asyncio.gather(*(store.engine.writer.write(slowly(n)) for n in range(40)), return_exceptions=True)
    store.engine.writer.defer(DeferredWrite(lambda tx: None, done.set))
    async with asyncio.timeout(DEADLINE_S):
        assert await others >= 40
    assert [str(answer) for answer in answers] == [str(number) for number in range(40)]
    assert isinstance(answers[20], ValueError) == fails
    assert commits.count == 2 + fails, "all that waited, those behind the failure, and the write that is not awaited"
    await store.close()


async def test_a_batch_does_not_wait_for_later_writes(tmp_path: Path) -> None:
    """A batch that accepts writes while it runs ends late on a busy gateway, and its first write waits for its last."""
    store = open_store(tmp_path / "store.db")
    commits, later = Commits(store), list[asyncio.Task[int]]()

    def followed_by(more: int) -> Callable[[Transaction], int]:
        def write(_tx: Transaction) -> int:
            time.sleep(writer.SLICE_S)
            if more:
                later.append(asyncio.create_task(store.engine.writer.write(followed_by(more - 1))))
            return more

        return write

    async with asyncio.timeout(DEADLINE_S):
        assert await store.engine.writer.write(followed_by(10)) == 10
        assert commits.count == 1
        while len(later) < 10 or not later[-1].done():
            await asyncio.sleep(0)
    assert [task.result() for task in later] == list(range(9, -1, -1))
    assert commits.count == 11
    await store.close()


FULL_DISK = """
import asyncio, resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.store.call_factory import a_call, store_recovers
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks.transition import ResultReceived
from taskgate.store.operations.task_queries import FindTask, ResultBytes, TasksPage
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.sqlite.store import open_store

def room(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

async def main():
    store = open_store(Path({path!r}))
    before = a_call()
    await store.do(Accept(before))
    await store.do(Intend(before.id, "b", "u", recheck=lambda *_: None))
    # No file may grow any more: to the store this is a disk that refuses every write.
    room(4096)
    faults = 0
    for work in (store.do(Accept(a_call())), store.do(Advance(before.id, ResultReceived(b"x" * (2 << 20))))):
        try:
            await work
        except GatewayFault as fault:
            faults += fault.error_type == "store_unavailable" and fault.executed == "no"
    assert faults == 2, faults
    assert (await store.ask(FindTask(before.id))).state == "running"
    room(resource.RLIM_INFINITY)
    await store_recovers(store)
    await store.do(Accept(a_call()))
    await store.do(Advance(before.id, ResultReceived(b"x" * (2 << 20))))
    assert len(await store.ask(ResultBytes(before.id))) == 2 << 20
    await store.close()
    again = open_store(Path({path!r}))
    assert len((await again.ask(TasksPage("carol"))).tasks) == 2
    await again.close()
    print("recovered")

asyncio.run(main())
"""


def test_a_failing_disk_causes_no_false_acknowledgement(tmp_path: Path) -> None:
    program = FULL_DISK.format(path=str(tmp_path / "store.db"), tests=str(Path(__file__).parent.parent.parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "recovered\n", done.stderr


async def test_the_write_ahead_log_is_reused_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "START_OVER_BYTES", 100_000)
    store = open_store(tmp_path / "store.db")
    sizes = []
    for _ in range(6):
        for _ in range(checkpointer.COMMITS_BETWEEN + 1):
            await store.do(Accept(a_call()))
        async with asyncio.timeout(DEADLINE_S):
            while store.engine.writer._checkpointer._requested.is_set():
                await asyncio.sleep(0.01)
        sizes.append((tmp_path / "store.db-wal").stat().st_size)
    assert sizes[-1] < 4 * sizes[0]
    await store.close()


async def test_checkpointed_pages_are_synced_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    copy, sync = checkpointer._checkpoint, FileLock.sync_database

    def copied(connection: sqlite3.Connection) -> int:
        pages = copy(connection)
        steps.append(threading.current_thread().name)
        return pages

    def synced(lock: FileLock) -> None:
        sync(lock)
        steps.append("synced")

    monkeypatch.setattr(checkpointer, "_checkpoint", copied)
    monkeypatch.setattr(FileLock, "sync_database", synced)
    monkeypatch.setattr(checkpointer, "START_OVER_BYTES", 2_000_000)
    store = open_store(tmp_path / "store.db")
    async with asyncio.timeout(DEADLINE_S):
        while steps.count("taskgate-store-commits") < 3:
            await store.do(Accept(a_call()))
    await store.close()
    between = "".join(
        {"taskgate-store-commits": "|", "taskgate-store-checkpointer": "c", "synced": "s"}[step] for step in steps
    )
    beside, before = between.replace("|", ""), ""
    assert beside == ("cs" * len(beside))[: len(beside)], between
    for number, part in enumerate(between.split("|")[:-1], 1):
        before += part
        assert before.count("s") >= number, between
    assert between.count("c") > between.count("|"), "a short log goes on where it is"


async def test_a_write_cancelled_before_it_began_is_not_executed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    blocking = asyncio.create_task(store.do(Accept(a_call())))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    call = a_call()
    given_up = asyncio.create_task(store.do(Accept(call)))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    disk.go_on.set()
    await blocking
    await store.do(KeepSecret("flush", b"1"))
    assert await store.ask(FindTask(call.id)) is None
    await store.close()


@pytest.mark.parametrize("how", ["cancelled", "timed out", "cancelled as the answer came"])
async def test_a_task_written_after_its_caller_was_cancelled_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = open_store(tmp_path / "store.db")
    disk, call = SlowDisk(store), a_call()
    with monkeypatch.context() as impatient:
        impatient.setattr(writer.Writer, "timeout_s", 0.05 if how == "timed out" else DEADLINE_S)
        accepting = asyncio.create_task(store.do(Accept(call, key="k")))
        assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
        if how == "cancelled":
            accepting.cancel()
        if how == "cancelled as the answer came":
            over = store.engine.writer._finish_batch
            store.engine.writer._finish_batch = lambda *reported: (over(*reported), accepting.cancel())[0]
            disk.go_on.set()
        with pytest.raises(asyncio.CancelledError if how != "timed out" else GatewayFault):
            await accepting
    disk.go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        while (task := await store.ask(FindTask(call.id))) is None or not task.state.is_terminal:
            await asyncio.sleep(0.02)
    assert task.state == "cancelled"
    assert task.last_attempt is None
    again = await store.do(Accept(a_call(), key="k"))
    assert isinstance(again, Change), "the key must not stand in the way of a repeat"
    await store.close()


async def test_no_reply_is_sent_before_the_commit_is_on_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    call = a_call()
    accepting = asyncio.create_task(store.do(Accept(call)))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    assert not accepting.done()
    assert await store.ask(FindTask(call.id)) is None
    disk.go_on.set()
    assert isinstance(await accepting, Change)
    assert await store.ask(FindTask(call.id)) is not None
    await store.close()


async def test_waiting_writes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store.db")
    monkeypatch.setattr(batch_writer, "MAX_WAITING", 0)
    monkeypatch.setattr(batch_writer, "MAX_DEFERRED", 0)
    with raises_error("store_unavailable"):
        await store.do(Accept(a_call()))
    with raises_error("store_unavailable"):
        store.defer(RecordAudit(AuditEntry(0, "x")))
    await store.close()


async def test_a_hanging_disk_causes_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store.db")
    disk = SlowDisk(store)
    with monkeypatch.context() as impatient:
        impatient.setattr(writer.Writer, "timeout_s", 0.01)
        with raises_error("store_unavailable"):
            await store.do(Accept(a_call()))
    disk.go_on.set()
    await store.close()
    with pytest.raises(GatewayFault):
        await store.do(Accept(a_call()))


async def test_a_store_locked_by_another_process_fails_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store.db")
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 0.1)
    unauthorized = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    unauthorized.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(*(store.do(Accept(a_call())) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(answer, GatewayFault) for answer in answers)
    store.defer(RecordAudit(AuditEntry(0, "kept for later")))
    unauthorized.execute("ROLLBACK")
    unauthorized.close()
    await store_recovers(store)
    assert [row.entry.event for row in await store.ask(AuditRows())] == ["kept for later"]
    assert isinstance(await store.do(Accept(a_call())), Change)
    await store.close()


async def test_waiting_for_a_foreign_lock_does_not_block_the_loop(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    unauthorized = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    unauthorized.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.do(Accept(a_call())))
    turns = 0
    while turns < 20:
        # Standing still on a lock would take until the writer gives it up, and the write would be over.
        await asyncio.sleep(0.01)
        turns += 1
        assert await store.ask(FindTask("no such task")) is None
        assert not writing.done()
    unauthorized.execute("ROLLBACK")
    unauthorized.close()
    assert isinstance(await asyncio.wait_for(writing, DEADLINE_S), Change)
    await store.close()


async def test_the_write_ahead_log_of_crashed_processes_is_checkpointed_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    program = f"""
import asyncio, os, signal
from pathlib import Path
from taskgate.store.operations.events import AppendEvent
from taskgate.store.sqlite.store import open_store
async def main():
    store = open_store(Path({str(path)!r}))
    await store.do(AppendEvent("carol", "large", "", {{"x": os.urandom(1 << 19).hex()}}))
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
        await store.do(KeepSecret(f"n{number}", os.urandom(1 << 20)))
    assert (tmp_path / "store.db-wal").stat().st_size < 3 * checkpointer.MAX_LOG_BYTES
    await store.close()


async def test_progress_noted_while_it_is_being_written_is_not_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    call = a_call()
    await store.do(Accept(call))
    disk = SlowDisk(store)
    store.defer(NoteProgress(call.id, Noted("one")))
    assert await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
    store.defer(NoteProgress(call.id, Noted("two")))
    disk.go_on.set()
    await store.close()
    again = open_store(tmp_path / "store.db")
    found = await again.ask(FindTask(call.id))
    assert found is not None
    assert found.status_message == "two"
    await again.close()
