"""What every store must do when calls end: one transaction for all that follows, and sums that are added up exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contracts.store_under_test import START, PostgresUnderTest, SqliteUnderTest, StoreUnderTest
from tests.contracts.task_steps import accepted, dispatched, finished
from tests.contracts.test_history_contract import DAY, a_row
from tests.contracts.test_sealed_store_contract import NEW, opened

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.history.counts import NO_LATENCY, Dimension, Period
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import CallOutcome
from taskgate.core.history.sums import CallSums
from taskgate.core.tasks import transition as h
from taskgate.core.usage import UsageRow, day_of
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.operation import Flush, Operation
from taskgate.store.operations import sums
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.erasure import Erased, erase
from taskgate.store.operations.history_charts import ChartSpan, HistoryTotals
from taskgate.store.operations.history_search import FindHistory
from taskgate.store.operations.journal import RecordRound
from taskgate.store.operations.sums import AddUpSums, SumsAreWaiting
from taskgate.store.operations.tasks import Advance
from taskgate.store.operations.usage import RecordedCalls, UsageBetween, add_usage
from taskgate.store.transaction import Transaction

TODAY = day_of(START)
OK = CallOutcome.OK


def sums_of(principal: str = "ann", tool: str = "read", calls: int = 1, outcome: CallOutcome = OK) -> CallSums:
    return CallSums(principal, "files", tool, calls=calls, seconds=0.5 * calls, ended=((outcome, 3, calls),))


async def added_up(store: Store) -> None:
    while await store.do(AddUpSums()):
        pass


async def counts(store: Store, dimension: Dimension = Dimension.ALL) -> dict[tuple[str, str], int]:
    """Calls by name and outcome, without the rows of latencies."""
    rows = await store.ask(HistoryTotals(dimension, None, ChartSpan(Period.DAY, 0, START + 2 * DAY)))
    return {(row.name, row.outcome): row.calls for row in rows if row.step == NO_LATENCY}


async def usage(store: Store) -> dict[tuple[str, str], int]:
    return {(row.principal, row.tool): row.calls for row in await store.ask(UsageBetween("0000-01-01", "9999-12-31"))}


class _Broken(Exception):
    pass


class Break(Operation[None], frozen=True):
    """Carry out another operation, and fail before the end of the transaction."""

    work: Any

    @property
    def locks(self) -> Any:
        return self.work.locks

    def run(self, tx: Transaction) -> None:
        self.work.run(tx)
        raise _Broken


async def test_everything_of_a_round_is_written_together(store: Store) -> None:
    record = RecordRound(
        calls=[a_row(reason="no such file")],
        rows=[a_row(tool="denied")],
        entries=[AuditEntry(0, "call", "ann", server="files")],
        recorded=[RecordedCall(0, "ann", server="files", name="read")],
        sums=[sums_of()],
        unrecorded=3,
    )
    with pytest.raises(_Broken):
        await store.do(Break(record))
    assert (await store.ask(FindHistory(HistoryFilter(), limit=9))).rows == ()
    assert (await store.ask(RecordedCalls(0))).calls == ()
    assert not await store.ask(SumsAreWaiting())
    await store.do(record)
    assert {row.reason for row in (await store.ask(FindHistory(HistoryFilter(), limit=9))).rows} == {"no such file", ""}
    assert [row.entry.event for row in await store.ask(AuditRows()) if row.entry.principal] == ["call"]
    assert await store.ask(SumsAreWaiting())
    await added_up(store)
    assert await usage(store) == {("ann", "read"): 1}
    assert await counts(store) == {("", "ok"): 1}
    # The calls that were not recorded are one row that counts them.
    assert [call.count for call in (await store.ask(RecordedCalls(0))).calls] == [1, 3]


async def test_reason_is_left_out_where_texts_of_servers_are_encrypted(adapter: StoreUnderTest) -> None:
    store = opened(adapter, NEW)
    denied = a_row(tool="denied", reason="denied by rule")
    await store.do(RecordRound(calls=[a_row(reason="no such file")], rows=[denied]))
    found = (await store.ask(FindHistory(HistoryFilter(), limit=9))).rows
    assert {(row.tool, row.reason) for row in found} == {("read_file", ""), ("denied", "denied by rule")}
    await store.close()


async def test_sums_are_added_up_once(store: Store) -> None:
    for _ in range(3):
        await store.do(RecordRound(sums=[sums_of(), sums_of("bob", calls=2, outcome=CallOutcome.FAILED)]))
    assert await usage(store) == {}
    await added_up(store)
    await added_up(store)
    assert await usage(store) == {("ann", "read"): 3, ("bob", "read"): 6}
    assert await counts(store, Dimension.CALLER) == {("ann", "ok"): 3, ("bob", "failed"): 6}
    assert not await store.ask(SumsAreWaiting())


async def test_adding_up_that_is_interrupted_changes_nothing(store: Store) -> None:
    await store.do(RecordRound(sums=[sums_of()]))
    await added_up(store)
    await store.do(RecordRound(sums=[sums_of()]))
    for _ in range(2):
        with pytest.raises(_Broken):
            await store.do(Break(AddUpSums()))
        assert await usage(store) == {("ann", "read"): 1}
    await added_up(store)
    assert await usage(store) == {("ann", "read"): 2}
    assert await counts(store) == {("", "ok"): 2}


async def test_sums_of_days_and_minutes_are_kept_apart(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    for _ in range(2):
        await store.do(RecordRound(sums=[sums_of()]))
        adapter.clock.turn(DAY)
    await added_up(store)
    found = await store.ask(UsageBetween("0000-01-01", "9999-12-31"))
    assert [(row.day, row.calls) for row in found] == [(TODAY, 1), (day_of(START + DAY), 1)]
    minutes = await store.ask(HistoryTotals(Dimension.ALL, None, ChartSpan(Period.MINUTE, START, START + 60_000)))
    assert sum(row.calls for row in minutes if row.step == NO_LATENCY) == 1
    await store.close()


async def test_many_sums_are_added_up_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "SUMS_PER_ROW", 2)
    monkeypatch.setattr(sums, "SUMS_PER_PORTION", 4)
    names = [f"tool{number}" for number in range(11)]
    for _ in range(2):
        await store.do(RecordRound(sums=[sums_of(tool=name) for name in names], unrecorded=1))
    portions = 1
    while await store.do(AddUpSums()):
        portions += 1
    assert portions > 2
    assert await usage(store) == {("ann", name): 2 for name in names}
    assert await counts(store) == {("", "ok"): 22}
    assert sum(call.count for call in (await store.ask(RecordedCalls(0))).calls) == 2


async def test_next_gateway_adds_up_what_a_dead_one_left(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await finished(store)
    rival = adapter.open_rival()
    await added_up(rival)
    assert await usage(rival) == {("carol", "build"): 1}
    assert await counts(rival) == {("", "ok"): 1}
    await rival.close()
    await store.close()


async def test_gateways_that_add_up_together_count_each_call_once(adapter: StoreUnderTest) -> None:
    if not isinstance(adapter, PostgresUnderTest):
        pytest.skip("a file has one gateway")
    stores = [adapter.open_beside(name) for name in ("one", "two", "three")]
    for _ in range(5):
        await asyncio.gather(*(store.do(RecordRound(sums=[sums_of()])) for store in stores for _ in range(4)))
        await asyncio.gather(*(added_up(store) for store in stores))
    assert await usage(stores[0]) == {("ann", "read"): 60}
    assert await counts(stores[0]) == {("", "ok"): 60}
    for store in stores:
        await store.close()


async def test_task_is_counted_by_the_transaction_that_ends_it(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    assert not await store.ask(SumsAreWaiting())
    adapter.clock.turn(2_000)
    with pytest.raises(_Broken):
        await store.do(Break(Advance(task.id, h.ResultReceived(b"{}"))))
    assert not await store.ask(SumsAreWaiting())
    await store.do(Advance(task.id, h.ResultReceived(b'{"isError":true}', True)))
    failed = await dispatched(store, principal="bob")
    await store.do(Advance(failed.id, h.ErrorReceived(b"{}", "no", Executed.YES)))
    cancelled = await accepted(store, principal="eve")
    await store.do(Advance(cancelled.id, h.Cancelled("enough")))
    await added_up(store)
    rows = {row.principal: row for row in await store.ask(UsageBetween("0000-01-01", "9999-12-31"))}
    assert {name: (row.calls, row.errors) for name, row in rows.items()} == {"carol": (1, 1), "bob": (1, 1)}
    assert (rows["carol"].seconds, rows["carol"].bytes_out) == (2.0, 16)
    assert await counts(store) == {("", "tool_error"): 1, ("", "failed"): 1, ("", "cancelled"): 1}
    await store.close()


async def test_time_until_an_answer_is_counted(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    question = TaskQuestion("k", "reports", "elicit", b"{}")
    await store.do(Advance(task.id, h.InputRequested(("k",)), questions=[question]))
    adapter.clock.turn(5_000)
    await store.do(Advance(task.id, h.Noted("still waiting")))
    adapter.clock.turn(3_000)
    await store.do(Advance(task.id, h.InputSettled(("k",)), answers={"k": b"{}"}))
    await added_up(store)
    rows = await store.ask(HistoryTotals(Dimension.ANSWERING, None, ChartSpan(Period.DAY, 0, START + DAY)))
    # 2**(26/2) is 8192 milliseconds, the bound of the step that contains 8000.
    assert sorted((row.outcome, row.step, row.calls) for row in rows) == [("", 26, 1), ("ok", NO_LATENCY, 1)]
    await store.close()


async def test_without_history_usage_is_counted_and_no_chart(store: Store) -> None:
    store.state.history.switch(on=False)
    await finished(store)
    await added_up(store)
    assert await usage(store) == {("carol", "build"): 1}
    assert await counts(store) == {}


async def test_sums_that_are_not_added_up_are_erased_too(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await store.do(RecordRound(sums=[sums_of("ann"), sums_of("bob")]))
    erased = await erase(store, "ann", "", AuditEntry(0, "data_erased", "ann"))
    assert isinstance(erased, Erased)
    assert erased.usage == 1
    await added_up(store)
    assert await usage(store) == {("bob", "read"): 1}
    assert await counts(store, Dimension.CALLER) == {("bob", "ok"): 1}
    assert adapter.rows("SELECT count(*) FROM call_sums") == [(0,)]
    await store.close()


async def test_damaged_sums_are_left_out(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await store.do(RecordRound(sums=[sums_of("ann")]))
    await store.do(RecordRound(sums=[sums_of("bob")]))
    await store.do(_Damage())
    await added_up(store)
    assert await usage(store) == {("bob", "read"): 1}
    await store.close()


class _Damage(Operation[None], frozen=True):
    def run(self, tx: Transaction) -> None:
        ((number, at_ms, _), *_) = tx.run("waiting_sums", limit=1).fetchall()
        tx.run("drop_sums", numbers=f"[{number}]")
        tx.run("insert_sums", at_ms=at_ms, body=b"[")


async def test_equal_refusals_grow_in_their_row(store: Store) -> None:
    number = store.state.history.next_number(START)
    for count in (2, 5):
        row = a_row(START + count, number=number, tool="rm", count=count)
        await store.do(RecordRound(rows=[row]) if count == 2 else RecordRound(grown=[row]))
    (found,) = (await store.ask(FindHistory(HistoryFilter(tool="rm"), limit=9))).rows
    assert (found.number, found.count, found.ended_ms) == (number, 5, START + 5)
    gone = a_row(number=number + 1, tool="gone", count=3)
    await store.do(RecordRound(grown=[gone]))
    assert (await store.ask(FindHistory(HistoryFilter(tool="gone"), limit=9))).rows == ()


async def test_deferred_round_reports_whether_it_is_durable(store: Store) -> None:
    settled: list[bool] = []
    store.defer(RecordRound(sums=[sums_of()]), settled.append)
    assert settled == []
    await store.do(Flush())
    assert settled == [True]
    store.defer(Break(RecordRound(sums=[sums_of()])), settled.append)
    await store.do(Flush())
    assert settled == [True, False]
    await added_up(store)
    assert await usage(store) == {("ann", "read"): 1}


async def test_store_of_the_version_before_opens(adapter: StoreUnderTest) -> None:
    """Its usage and counts stay as they are, and new sums are added to them."""
    store = adapter.open()
    await store.do(_AddUsage())
    await store.close()
    if isinstance(adapter, SqliteUnderTest):
        _as_before_on_sqlite(adapter)
    elif isinstance(adapter, PostgresUnderTest):
        _as_before_on_postgres(adapter)
    again = adapter.open()
    await again.do(RecordRound(sums=[sums_of()]))
    await added_up(again)
    assert await usage(again) == {("ann", "read"): 8}
    await again.close()


class _AddUsage(Operation[None], frozen=True):
    def run(self, tx: Transaction) -> None:
        add_usage(tx, [UsageRow(TODAY, "ann", "files", "read", 7)])


def _as_before_on_sqlite(adapter: SqliteUnderTest) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(adapter.path)) as connection:
        connection.execute("DROP TABLE call_sums")
        connection.execute("PRAGMA user_version = 20")


def _as_before_on_postgres(adapter: PostgresUnderTest) -> None:
    import psycopg

    with psycopg.connect(adapter.url) as connection:
        connection.execute("DROP TABLE call_sums")
        connection.execute("DELETE FROM taskgate_schema WHERE number >= 22")
