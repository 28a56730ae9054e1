"""The anchor and the export of the audit log, when writing takes longer than its caller waits, and when it fails."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taskgate.assembly import audit_keeper
from taskgate.assembly.audit_keeper import AuditKeeper
from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.store.audit_anchor import AuditAnchor, Marks, anchor_path, audit_key
from taskgate.store.operation import Flush
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.sqlite.store import SqliteStore, open_store

DEADLINE_S = 60


class SlowAnchor(AuditAnchor):
    """The write after `stop_next` waits, in its thread, until `go_on` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, audit_key(b"s" * 32))
        self.stop_next, self.stopped, self.go_on = False, threading.Event(), threading.Event()
        self.ended = threading.Event()
        self.failing = False

    def write(self, marks: Marks) -> None:
        if self.failing:
            raise OSError(28, "No space left on device")
        if self.stop_next:
            self.stop_next = False
            self.stopped.set()
            assert self.go_on.wait(DEADLINE_S)
            super().write(marks)
            self.ended.set()
            return
        super().write(marks)

    def head(self) -> int:
        marks = self.read()
        assert marks is not None
        assert marks.head is not None
        return marks.head.number


async def _kept(folder: Path, export: str | None = "export.jsonl") -> tuple[SqliteStore, SlowAnchor, AuditKeeper]:
    store = open_store(folder / "taskgate.db")
    anchor = SlowAnchor(anchor_path(folder / "taskgate.db"))
    keeper = AuditKeeper(store, anchor, folder / export if export is not None else None)
    await keeper.start()
    return store, anchor, keeper


async def _ended_by_cancel(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_last_anchor_waits_for_the_write_that_a_cancelled_round_left(tmp_path: Path) -> None:
    """When a gateway ends, its housekeeping is cancelled while the thread that writes the file continues."""
    # Of two threads the stopped write keeps one. The other takes its work in order, so it shows what was begun meanwhile.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    store, anchor, keeper = await _kept(tmp_path, export=None)
    await store.do(RecordAudit(AuditEntry(0, "first")))
    anchor.stop_next = True
    round_ = asyncio.create_task(keeper.maintain())
    assert await asyncio.to_thread(anchor.stopped.wait, DEADLINE_S)
    await _ended_by_cancel(round_)
    await store.do(RecordAudit(AuditEntry(0, "second")))
    closing = asyncio.create_task(keeper.close())
    await asyncio.sleep(0)
    # It waits for the store first, and has done so when a later wait for the store has ended.
    await store.do(Flush())
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.to_thread(lambda: None)
    anchor.go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        await closing
    assert await asyncio.to_thread(anchor.ended.wait, DEADLINE_S)
    assert anchor.head() == store.audit_head()[0]
    await store.close()


async def test_rows_that_a_cancelled_round_exports_are_not_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _anchor, keeper = await _kept(tmp_path)
    stopped, go_on, ended, append = threading.Event(), threading.Event(), threading.Event(), audit_keeper._append

    def slow_append(path: Path, rows: tuple[Row, ...], chain: str) -> None:
        if stopped.is_set():
            append(path, rows, chain)
            return
        stopped.set()
        assert go_on.wait(DEADLINE_S)
        append(path, rows, chain)
        ended.set()

    monkeypatch.setattr(audit_keeper, "_append", slow_append)
    await store.do(RecordAudit(AuditEntry(0, "first")))
    round_ = asyncio.create_task(keeper.maintain())
    assert await asyncio.to_thread(stopped.wait, DEADLINE_S)
    await _ended_by_cancel(round_)
    closing = asyncio.create_task(keeper.close())
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        await closing
    assert await asyncio.to_thread(ended.wait, DEADLINE_S)
    numbers = [json.loads(line)["number"] for line in (tmp_path / "export.jsonl").read_text().splitlines()]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == store.audit_head()[0]
    await store.close()


async def test_an_anchor_that_could_not_be_written_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    """Also if no row follows; and a round in which it fails ends without an error, so that the rest of it is done."""
    store, anchor, keeper = await _kept(tmp_path)
    before = anchor.head()
    anchor.failing = True
    await store.do(RecordAudit(AuditEntry(0, "unanchored")))
    await keeper.maintain()
    await keeper.maintain()
    assert anchor.head() == before
    anchor.failing = False
    await keeper.maintain()
    assert anchor.head() == store.audit_head()[0]
    await store.close()


async def test_rows_are_deleted_only_after_their_cut_is_anchored(tmp_path: Path) -> None:
    store, anchor, keeper = await _kept(tmp_path)
    for number in range(3):
        await store.do(RecordAudit(AuditEntry(0, f"old {number}")))
    await keeper.maintain()
    count = len(await store.ask(AuditRows(0, 100)))
    anchor.failing = True
    with pytest.raises(OSError) as failed:
        await keeper.forget(-60_000)
    assert failed.value.errno == errno.ENOSPC
    assert len(await store.ask(AuditRows(0, 100))) == count
    anchor.failing = False
    await keeper.forget(-60_000)
    assert len(await store.ask(AuditRows(0, 100))) < count
    await store.close()
