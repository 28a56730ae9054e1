"""What every store must keep of history. Each test runs on each adapter."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.store_under_test import BOB, OPS, START, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import accepted, dispatched, finished
from tests.store.call_records import add_counts, add_history

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance.approval import Verdict, Voted
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.history.counts import ChartSubject, Counted, CountRow, Dimension, Period
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
from taskgate.core.tasks import transition as h
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change
from taskgate.store.operation import Flush
from taskgate.store.operations.approvals import ChangeHeld, Decided, HoldCall
from taskgate.store.operations.erasure import Erased, erase
from taskgate.store.operations.history import (
    FindHistoryRow,
    HistoryContent,
    HistorySize,
    PutHistoryContent,
    forget_history,
)
from taskgate.store.operations.history_charts import (
    ChartSpan,
    HistoryCounts,
    HistoryCourses,
    HistoryLatencies,
    HistoryNames,
    HistoryTotals,
)
from taskgate.store.operations.history_search import FindHistory
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, Advance
from taskgate.store.operations.upkeep import sweep

DAY = 86_400_000


def a_row(at_ms: int = START, **changes: Any) -> HistoryRow:
    fields: dict[str, Any] = {
        "kind": RowKind.CALL,
        "outcome": CallOutcome.OK,
        "caller": "acme/ann",
        "scope": "default",
        "server": "files",
        "tool": "read_file",
        "client": "agent",
        "accepted_ms": at_ms - 20,
        "ended_ms": at_ms,
    }
    return HistoryRow(**{**fields, **changes})


async def written(store: Store, *rows: HistoryRow) -> None:
    add_history(store, rows)
    await store.do(Flush())


async def tools(store: Store, **wanted: Any) -> list[str]:
    page = await store.ask(FindHistory(HistoryFilter(**wanted), limit=100))
    return [row.tool for row in page.rows]


async def test_row_comes_back_as_it_was_written(store: Store) -> None:
    row = a_row(
        kind=RowKind.DENIAL,
        outcome=CallOutcome.DENIED,
        error_type="policy_denied",
        rule="rules[3]",
        reason="not at night",
        generation="stateless",
        trace="4bf92f3577b34da6a3ce929d0e0e4736",
        executed="no",
        digest="sha256:1",
        size_in=10,
        count=7,
    )
    await written(store, row)
    [found] = (await store.ask(FindHistory(HistoryFilter()))).rows
    assert found.number > 0
    assert await store.ask(FindHistoryRow(found.id)) == found
    assert {name: getattr(found, name) for name in found.__struct_fields__ if name != "number"} == {
        name: getattr(row, name) for name in row.__struct_fields__ if name != "number"
    }


async def test_ended_task_leaves_a_row_with_the_commit_that_ends_it(store: Store) -> None:
    task = await finished(store, client="agent")
    row = await store.ask(FindHistoryRow(task.id))
    assert row is not None
    assert (row.kind, row.outcome, row.task_id, row.client) == (RowKind.TASK, CallOutcome.OK, task.id, "agent")
    assert (row.accepted_ms, row.ended_ms, row.attempts) == (task.created_ms, task.finished_ms, 1)


async def test_open_task_has_no_row(store: Store) -> None:
    task = await dispatched(store)
    assert await store.ask(FindHistoryRow(task.id)) is None


async def test_each_end_of_a_task_is_one_row_with_its_outcome(store: Store) -> None:
    ends: dict[str, h.TransitionEvent] = {
        "tool_error": h.ResultReceived(b'{"isError":true}', is_error=True),
        "failed": h.ErrorReceived(b'{"code":-32000,"data":{"error_type":"upstream_protocol"}}', "broken", Executed.YES),
        "cancelled": h.Cancelled("enough"),
        "outcome_unknown": h.ContactLost(b'{"code":1,"data":{"error_type":"outcome_unknown"}}', "lost"),
    }
    for outcome, event in ends.items():
        task = await dispatched(store)
        assert isinstance(await store.do(Advance(task.id, event)), Change)
        row = await store.ask(FindHistoryRow(task.id))
        assert row is not None
        assert row.outcome == outcome
        assert not isinstance(await store.do(Advance(task.id, h.Cancelled())), Change)
    assert len((await store.ask(FindHistory(HistoryFilter()))).rows) == len(ends)


async def test_row_names_the_approver(store: Store) -> None:
    call = a_call()
    answer = await store.do(Accept(call, approval=asking(call)))
    assert isinstance(answer, Change)
    approval_id = answer.task.approval_id
    assert approval_id is not None
    decided = await store.do(ChangeHeld(approval_id, OPS, Voted(BOB, Verdict.APPROVE, START)))
    assert isinstance(decided, Decided)
    await store.do(Advance(answer.task.id, h.Cancelled()))
    row = await store.ask(FindHistoryRow(answer.task.id))
    assert row is not None
    assert (row.approval_id, row.approved_by, row.outcome) == (approval_id, "bob", CallOutcome.CANCELLED)


async def test_denied_request_without_a_task_leaves_a_row(store: Store) -> None:
    call = a_call()
    held = await store.do(HoldCall(asking(call)))
    assert isinstance(held, HeldCall)
    await store.do(ChangeHeld(held.approval.id, OPS, Voted(BOB, Verdict.DENY, START)))
    [row] = (await store.ask(FindHistory(HistoryFilter()))).rows
    assert (row.outcome, row.caller, row.approval_id) == (CallOutcome.REJECTED, "carol", held.approval.id)


async def test_rows_outlive_their_tasks(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await finished(store)
    for _ in range(3):
        adapter.clock.turn(DAY)
        await sweep(store)
    assert await store.ask(FindTask(task.id, include_expired=True)) is None
    assert await store.ask(FindHistoryRow(task.id)) is not None
    await store.close()


async def test_without_history_tasks_leave_no_row(store: Store) -> None:
    store.state.history.switch(on=False)
    task = await finished(store)
    assert await store.ask(FindHistoryRow(task.id)) is None


async def test_each_filter_finds_its_rows_and_no_others(store: Store) -> None:
    await written(
        store,
        a_row(START + 1, tool="one", caller="acme/bob"),
        a_row(START + 2, tool="two", caller="globex/ann"),
        a_row(START + 3, tool="three", server="files-2"),
        a_row(START + 4, tool="four", scope="night"),
        a_row(START + 5, tool="five", client="other agent"),
        a_row(START + 6, tool="six", outcome=CallOutcome.FAILED, error_type="upstream_timeout"),
        a_row(START + 7, tool="seven", kind=RowKind.DENIAL, outcome=CallOutcome.DENIED, error_type="upstream"),
        a_row(START + 8, tool="eight", caller="plain", server="--", rule="rules[7]"),
    )
    assert await tools(store, caller="acme/bob") == ["one"]
    assert await tools(store, tenant="globex") == ["two"]
    assert await tools(store, server="files-2") == ["three"]
    assert await tools(store, server="files") == ["seven", "six", "five", "four", "two", "one"]
    assert await tools(store, scope="night") == ["four"]
    assert await tools(store, client="other agent") == ["five"]
    assert await tools(store, client="agent", scope="night") == ["four"]
    assert await tools(store, error_type="upstream_timeout") == ["six"]
    assert await tools(store, error_type="upstream") == ["seven"]
    assert await tools(store, kind=RowKind.DENIAL) == ["seven"]
    assert await tools(store, server="--") == ["eight"]
    assert await tools(store, outcomes=frozenset({CallOutcome.FAILED, CallOutcome.DENIED})) == ["seven", "six"]
    assert await tools(store, tool="three") == ["three"]
    assert await tools(store, tool="thre") == []
    assert await tools(store, since_ms=START + 3, until_ms=START + 5) == ["four", "three"]
    assert await tools(store, caller="acme/ann", since_ms=START + 6) == ["seven", "six"]
    assert await tools(store, caller="nobody") == []
    assert await tools(store, tenant="acme", server="files-2", text="ann three") == ["three"]


async def test_text_finds_the_beginnings_of_words_in_names(store: Store) -> None:
    await written(
        store,
        a_row(START + 1, tool="delete_file"),
        a_row(START + 2, tool="list", server="github", client="Claude-Code/2.1"),
        a_row(START + 3, tool="Straße"),
        a_row(START + 4, tool="list", caller="https://login.example/v2#ann.smith@example.com", rule="rules[5]"),
    )
    assert await tools(store, text="dele") == ["delete_file"]
    assert await tools(store, text="FILE delete") == ["delete_file"]
    assert await tools(store, text="claude code") == ["list"]
    assert await tools(store, text="smith example") == ["list"]
    assert await tools(store, text="str") == ["Straße"]
    assert await tools(store, text="elete") == []
    assert await tools(store, text="d") == []
    assert await tools(store, text="delete github") == []


@pytest.mark.parametrize(
    "text",
    ["\"' OR 1=1 --", "a* NEAR b", "x AND", "{tool} : a", "!!! ':* | & <->", "a\u202e\u0000b", "\\", "-a", "word:*"],
)
async def test_hostile_text_is_only_text(store: Store, text: str) -> None:
    await written(store, a_row(tool="zzz", caller="quiet", server="s", scope="t", client="c"))
    assert await tools(store, text=text) == []
    assert await tools(store, tool=text.replace("\x00", "")) == []


async def test_hostile_names_are_kept_and_found(store: Store) -> None:
    tool = "'; DROP TABLE history; -- <script>"
    await written(store, a_row(tool=tool))
    assert await tools(store, tool=tool) == [tool]
    assert await tools(store, text="drop script") == [tool]


async def test_pages_follow_one_another_without_gap_or_repetition(store: Store) -> None:
    await written(store, *(a_row(START + n // 4, tool=f"t{n}") for n in range(25)))
    seen: list[str] = []
    before: int | None = None
    while True:
        page = await store.ask(FindHistory(HistoryFilter(server="files"), before=before, limit=4))
        seen += [row.tool for row in page.rows]
        before = page.after
        if before is None:
            break
    assert sorted(seen) == sorted(f"t{n}" for n in range(25))
    assert len(seen) == 25


async def test_old_rows_are_deleted_in_portions(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await written(store, *(a_row(START + n, tool="old") for n in range(150)), a_row(START + 5 * DAY, tool="new"))
    adapter.clock.turn(6 * DAY)
    rounds = 0
    while await forget_history(store, 2 * DAY, 1_000, portions=1):
        rounds += 1
    assert rounds >= 1
    assert await tools(store) == ["new"]
    assert await tools(store, text="old") == []
    await store.close()


async def test_a_retention_of_zero_deletes_rows_of_the_future_too(store: Store) -> None:
    await written(store, a_row(START), a_row(START + 3650 * DAY))
    add_counts(store, START, [Counted(Dimension.ALL, "", "", CallOutcome.OK, 3, 1)])
    await store.do(Flush())
    while await forget_history(store, 0, 1_000):
        pass
    assert await tools(store) == []
    assert await store.ask(HistoryCounts(ChartSubject(), ChartSpan(Period.DAY, 0, START + DAY), bucket_ms=DAY)) == ()


async def test_caller_with_most_rows_loses_rows_first(store: Store) -> None:
    await written(store, *(a_row(START + n, caller="quiet", tool=f"q{n}") for n in range(10)))
    await written(store, *(a_row(START + 100 + n, caller="loud", tool=f"l{n}") for n in range(200)))
    while await forget_history(store, 30 * DAY, 50):
        pass
    assert await store.ask(HistorySize()) == {"quiet": 10, "loud": 40}
    assert (await tools(store, caller="loud"))[0] == "l199"


async def test_counts_are_added_up_by_period_and_found_by_subject(store: Store) -> None:
    files = Counted(Dimension.SERVER, "files", "acme", CallOutcome.OK, 3, 2)
    for at in (START, START + 60_000, START + DAY):
        add_counts(store, at, [files, Counted(Dimension.SERVER, "web", "globex", CallOutcome.FAILED, 5, 1)])
    await store.do(Flush())
    subject = ChartSubject(Dimension.SERVER, "files")
    days = await store.ask(HistoryCounts(subject, ChartSpan(Period.DAY, 0, START + 2 * DAY), bucket_ms=DAY))
    assert sorted((row.outcome, row.step, row.calls) for row in days) == [
        *(("", 3, 2), ("", 3, 4)),
        *(("ok", -1, 2), ("ok", -1, 4)),
    ]
    minutes = await store.ask(
        HistoryCounts(subject, ChartSpan(Period.MINUTE, START, START + 120_000), bucket_ms=60_000)
    )
    expected_rows = [(START, "", 2), (START, "ok", 2), (START + 60_000, "", 2), (START + 60_000, "ok", 2)]
    assert sorted((row.start_ms, row.outcome, row.calls) for row in minutes) == expected_rows
    both = await store.ask(HistoryCounts(subject, ChartSpan(Period.MINUTE, START, START + 120_000), bucket_ms=300_000))
    assert [row.calls for row in both] == [4, 4]
    assert (
        await store.ask(
            HistoryCounts(
                ChartSubject(Dimension.SERVER, "files", "globex"), ChartSpan(Period.DAY, 0, START + DAY), bucket_ms=DAY
            )
        )
        == ()
    )
    totals = await store.ask(HistoryTotals(Dimension.SERVER, None, ChartSpan(Period.DAY, 0, START + 2 * DAY)))
    assert set(totals) == {
        *(CountRow(0, "files", "ok", -1, 6), CountRow(0, "files", "", 3, 6)),
        *(CountRow(0, "web", "failed", -1, 3), CountRow(0, "web", "", 5, 3)),
    }
    sums = await store.ask(HistoryTotals(Dimension.SERVER, None, ChartSpan(Period.DAY_SUM, 0, START + 2 * DAY)))
    assert set(sums) == {CountRow(0, "files", "ok", -1, 6), CountRow(0, "web", "failed", -1, 3)}
    of_tenant = await store.ask(HistoryTotals(Dimension.SERVER, "acme", ChartSpan(Period.DAY, 0, START + 2 * DAY)))
    assert {row.name for row in of_tenant} == {"files"}
    latencies = await store.ask(
        HistoryLatencies(
            Dimension.SERVER, None, ["files", 'no "such'], ChartSpan(Period.DAY, START - DAY, START + 2 * DAY)
        )
    )
    assert latencies == (CountRow(0, "files", "", 3, 6),)
    until = START + 2 * DAY
    for tenant, since, expected in (("acme", 0, 3), ("globex", 0, None), (None, START + DAY // 2, 1)):
        found = await store.ask(
            HistoryLatencies(Dimension.SERVER, tenant, ["files"], ChartSpan(Period.DAY, since, until))
        )
        assert [row.calls for row in found] == ([] if expected is None else [2 * expected])
    course = await store.ask(
        HistoryCourses(Dimension.SERVER, None, ["files", 'no "such'], ChartSpan(Period.DAY, 0, until), bucket_ms=DAY)
    )
    first = START // DAY * DAY
    assert sorted(course) == [CountRow(first, "files", "", -1, 4), CountRow(first + DAY, "files", "", -1, 2)]
    for tenant, begin, calls_found in (("acme", 0, [6]), ("globex", 0, []), (None, START + DAY // 2, [2])):
        found = await store.ask(
            HistoryCourses(
                Dimension.SERVER, tenant, ["files"], ChartSpan(Period.DAY, begin, until), bucket_ms=10_000 * DAY
            )
        )
        assert [row.calls for row in found] == calls_found
    assert await store.ask(HistoryNames(Dimension.SERVER, None, "", 10)) == ("files", "web")
    assert await store.ask(HistoryNames(Dimension.SERVER, None, "w", 10)) == ("web",)
    assert await store.ask(HistoryNames(Dimension.SERVER, "acme", "", 10)) == ("files",)


async def test_old_counts_are_deleted(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    add_counts(store, START, [Counted(Dimension.ALL, "", "", CallOutcome.OK, 3, 1)])
    await store.do(Flush())
    adapter.clock.turn(DAY)
    while await forget_history(store, 30 * DAY, 1_000):
        pass
    assert await store.ask(HistoryCounts(ChartSubject(), ChartSpan(Period.MINUTE, 0, START + DAY), bucket_ms=DAY)) == ()
    assert (
        len(await store.ask(HistoryCounts(ChartSubject(), ChartSpan(Period.DAY, 0, START + DAY), bucket_ms=DAY))) == 2
    )
    await store.close()


async def test_erasure_removes_rows_counts_content_and_the_name_of_an_approver(store: Store) -> None:
    mine, others = a_row(caller="eve"), a_row(caller="ann", approved_by="bob, eve", tool="approved")
    await written(store, mine, others)
    task = await finished(store, principal="eve", caller="eve")
    await store.do(PutHistoryContent(task.id, b'{"arguments":1}'))
    add_counts(store, START, [Counted(Dimension.CALLER, "eve", "", CallOutcome.OK, 3, 1)])
    await store.do(Flush())
    erased = await erase(store, "eve", "", AuditEntry(0, "data_erased"))
    assert isinstance(erased, Erased)
    assert erased.history == 2
    [left] = (await store.ask(FindHistory(HistoryFilter()))).rows
    assert (left.caller, left.approved_by) == ("ann", "bob, (erased)")
    assert await tools(store, text="eve") == []
    assert await store.ask(HistoryContent(task.id)) is None
    assert (
        await store.ask(
            HistoryCounts(ChartSubject(Dimension.CALLER, "eve"), ChartSpan(Period.DAY, 0, START + DAY), bucket_ms=DAY)
        )
        == ()
    )


async def test_content_goes_with_its_row(store: Store) -> None:
    task = await finished(store)
    await store.do(PutHistoryContent(task.id, b"{}"))
    assert await store.ask(HistoryContent(task.id)) == b"{}"
    while await forget_history(store, 0, 1_000):
        pass
    assert await store.ask(HistoryContent(task.id)) is None


async def test_two_tasks_that_end_together_have_two_rows(store: Store) -> None:
    first, second = await accepted(store), await accepted(store)
    for task in (first, second):
        await store.do(Advance(task.id, h.Cancelled()))
    assert {row.task_id for row in (await store.ask(FindHistory(HistoryFilter()))).rows} == {first.id, second.id}
