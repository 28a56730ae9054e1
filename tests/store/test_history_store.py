"""History in the stores themselves: upgrades, copies, encryption, a damaged word index, and the partitions of PostgreSQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.contracts.task_steps import dispatched, finished
from tests.contracts.test_history_contract import a_row
from tests.harness.postgres import migrated_url
from tests.store.call_records import add_counts, add_history
from tests.store.test_upgrade import KEPT

from taskgate.core.errors import Executed
from taskgate.core.history.counts import Counted, Dimension
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import CallOutcome, RowKind
from taskgate.core.tasks import transition as h
from taskgate.ports.store_answers import Change
from taskgate.store.operation import Flush
from taskgate.store.operations.history import FindHistoryRow, HistoryContent, PutHistoryContent, forget_history
from taskgate.store.operations.history_search import FindHistory
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Advance
from taskgate.store.sqlite.store import open_store

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
KEY = "0123456789abcdef0123456789abcdef"
ERROR = b'{"code":-32000,"data":{"error_type":"upstream_protocol"}}'


async def test_finished_tasks_of_an_old_store_are_imported(tmp_path: Path) -> None:
    path = tmp_path / "taskgate.db"
    writing = sqlite3.connect(path)
    writing.executescript((KEPT / "store.sql").read_text())
    ended = dict(writing.execute("SELECT id, finished_ms FROM tasks WHERE finished_ms IS NOT NULL"))
    writing.close()
    store = open_store(path)
    try:
        rows = (await store.ask(FindHistory(HistoryFilter(), limit=50))).rows
        assert {row.task_id: row.ended_ms for row in rows} == ended
        assert {row.kind for row in rows} == {RowKind.TASK}
        assert {row.outcome for row in rows} == {CallOutcome.OK, CallOutcome.TOOL_ERROR}
        assert all(0 < row.accepted_ms <= row.ended_ms for row in rows)
        found = await store.ask(FindHistory(HistoryFilter(text=rows[0].tool), limit=50))
        assert rows[0] in found.rows
    finally:
        await store.close()


async def test_finished_tasks_are_imported_on_postgres() -> None:
    url = migrated_url()
    from taskgate.store.postgres.connection import connect
    from taskgate.store.postgres.store import open_store as open_postgres

    store = open_postgres(url)
    task = await finished(store, principal="acme/ann", caller="acme/ann")
    await store.close()
    with connect(url) as connection:
        # As before the migration: without its tables and what later ones added.
        connection.execute("DROP TABLE history, history_content, history_counts")
        connection.execute("ALTER TABLE replicas DROP COLUMN interpreter")
        connection.execute("DROP INDEX approvals_with_task, approvals_without_task")
        connection.execute("ALTER TABLE questions DROP COLUMN answered_ms")
        connection.execute("ALTER TABLE attempts DROP COLUMN ended_ms, DROP COLUMN why")
        connection.execute("DROP TABLE earlier_pins, call_sums")
        connection.execute("DELETE FROM taskgate_schema WHERE number >= 17")
    again = open_postgres(url)
    try:
        row = await again.ask(FindHistoryRow(task.id))
        assert row is not None
        assert (row.outcome, row.tenant, row.tool, row.generation) == (CallOutcome.OK, "acme", task.tool, "stateful")
        assert (row.accepted_ms, row.ended_ms) == (task.created_ms, task.finished_ms)
    finally:
        await again.close()


async def test_text_of_a_server_is_in_no_row_where_it_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(path, keys=[KEY])
    try:
        task = await dispatched(store)
        await store.do(Advance(task.id, h.Noted("marker9911 half", 1.0, 2.0)))
        noted = await store.ask(FindTask(task.id))
        assert noted is not None
        assert [step.message for step in noted.progress_steps] == ["marker9911 half"]
        ended = await store.do(Advance(task.id, h.ErrorReceived(ERROR, "marker7391 failed", Executed.YES)))
        assert isinstance(ended, Change)
        row = await store.ask(FindHistoryRow(task.id))
        assert row is not None
        assert (row.reason, row.error_type) == ("", "upstream_protocol")
        await store.do(PutHistoryContent(task.id, b'{"arguments":"marker5528"}'))
        assert await store.ask(HistoryContent(task.id)) == b'{"arguments":"marker5528"}'
        assert (await store.ask(FindHistory(HistoryFilter(text="marker7391")))).rows == ()
    finally:
        await store.close()
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"marker7391" not in written
    assert b"marker9911" not in written
    assert b"marker5528" not in written


async def test_damaged_word_index_fails_no_task(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(path)
    try:
        other = sqlite3.connect(path)
        other.execute("UPDATE history_words_data SET block = x'00' WHERE id <= 10")
        other.execute("DROP TABLE history_words_idx")
        other.commit()
        other.close()
        task = await finished(store)
        assert (await store.ask(FindTask(task.id))) is not None
        await finished(store)
        lost = store.state.history.take_loss()
        assert lost is not None
        assert lost.rows >= 1
        assert store.state.history.take_loss() is None
    finally:
        await store.close()


async def test_history_is_copied_between_the_databases(tmp_path: Path) -> None:
    url = migrated_url()
    from taskgate.store.postgres.copy import copy_back, copy_store
    from taskgate.store.postgres.store import open_store as open_postgres

    first = open_store(tmp_path / "first.db")
    task = await finished(first)
    add_history(first, [a_row(NOW_MS, tool="delete_file")])
    add_counts(first, NOW_MS, [Counted(Dimension.ALL, "", "", CallOutcome.OK, 3, 4)])
    await first.do(Flush())
    rows = (await first.ask(FindHistory(HistoryFilter()))).rows
    await first.close()
    copy_store(tmp_path / "first.db", url, lambda _name, _count: None)
    shared = open_postgres(url)
    assert (await shared.ask(FindHistory(HistoryFilter()))).rows == rows
    assert [row.tool for row in (await shared.ask(FindHistory(HistoryFilter(text="delete")))).rows] == ["delete_file"]
    await shared.close()
    shared.engine.presence.end()
    copy_back(url, tmp_path / "second.db", lambda _name, _count: None)
    second = open_store(tmp_path / "second.db")
    try:
        assert (await second.ask(FindHistory(HistoryFilter()))).rows == rows
        assert [row.tool for row in (await second.ask(FindHistory(HistoryFilter(text="delete")))).rows] == [
            "delete_file"
        ]
        assert await second.ask(FindHistoryRow(task.id)) is not None
    finally:
        await second.close()


async def test_each_day_has_a_partition_and_old_days_are_dropped() -> None:
    url = migrated_url()
    from taskgate.store.postgres.connection import connect
    from taskgate.store.postgres.history_days import day_name
    from taskgate.store.postgres.statements import SQL
    from taskgate.store.postgres.store import open_store as open_postgres

    now = [NOW_MS]
    store = open_postgres(url, clock=lambda: now[0])
    try:

        def days() -> set[str]:
            with connect(url) as connection:
                return {name for (name,) in connection.execute(SQL["history_days"]).fetchall()}

        await forget_history(store, 2 * DAY_MS, 1_000)
        assert {day_name(NOW_MS), day_name(NOW_MS + DAY_MS)} <= days()
        add_history(store, [a_row(NOW_MS, tool="old"), a_row(NOW_MS - 30 * DAY_MS, tool="of another day")])
        await store.do(Flush())
        assert len((await store.ask(FindHistory(HistoryFilter()))).rows) == 2
        now[0] += 5 * DAY_MS
        add_history(store, [a_row(now[0], tool="new")])
        await store.do(Flush())
        while await forget_history(store, 2 * DAY_MS, 1_000):
            pass
        assert day_name(NOW_MS) not in days()
        assert [row.tool for row in (await store.ask(FindHistory(HistoryFilter()))).rows] == ["new"]
    finally:
        await store.close()


@pytest.mark.parametrize("at_ms", [0, NOW_MS - 3650 * DAY_MS, NOW_MS + 3650 * DAY_MS, 1 << 50])
async def test_rows_of_any_time_are_stored_on_postgres(at_ms: int) -> None:
    url = migrated_url()
    from taskgate.store.postgres.store import open_store as open_postgres

    store = open_postgres(url)
    try:
        add_history(store, [a_row(at_ms)])
        await store.do(Flush())
        assert len((await store.ask(FindHistory(HistoryFilter()))).rows) == 1
    finally:
        await store.close()
