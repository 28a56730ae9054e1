"""What every store must keep of events and of the audit trail. Each test runs on each adapter."""

from __future__ import annotations

import asyncio

import pytest
from tests.contracts.store_under_test import START, StoreUnderTest, a_call, asking
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry, ChainIntact, verify
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks import transition as h
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.events import AppendEvent, EventsAfter, FindCursor, MoveCursor
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import Claim, sweep


async def test_every_change_of_state_is_an_event_in_order(store: Store) -> None:
    call = a_call()
    created = await store.do(Accept(call))
    sent = await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))
    await store.do(Advance(call.id, h.Noted("half way")))
    done = await store.do(Advance(call.id, h.ResultReceived(b"{}")))
    page = await store.ask(EventsAfter("carol", 0))
    assert [event.kind for event in page.events] == ["task_created", "task_status", "task_completed"]
    assert [event.number for event in page.events] == [1, 2, 3]
    assert isinstance(created, Change)
    assert isinstance(sent, Intended)
    assert isinstance(done, Change)
    assert list(page.events) == [created.event, sent.event, done.event]
    assert page.events[0].data["task_id"] == call.id
    assert (page.lost, page.last) == (0, 3)


async def test_a_reader_with_one_cursor_sees_each_event_once(store: Store) -> None:
    calls = [a_call() for _ in range(30)]
    seen: list[str] = []

    async def read_until_all() -> None:
        number = 0
        while len(seen) < 30:
            page = await store.ask(EventsAfter("carol", number, limit=7))
            seen.extend(event.id for event in page.events)
            number = page.events[-1].number if page.events else number
            await asyncio.sleep(0)

    async with asyncio.timeout(120):
        await asyncio.gather(read_until_all(), *(store.do(Accept(call)) for call in calls))
    assert len(set(seen)) == 30


async def test_events_survive_a_restart_and_so_does_the_cursor(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    for _ in range(3):
        await store.do(Accept(a_call()))
    store.defer(MoveCursor("carol", 2))
    store.defer(MoveCursor("carol", 1))
    assert await store.ask(FindCursor("carol")) == 2
    await store.close()
    again = adapter.open()
    assert await again.ask(FindCursor("carol")) == 2
    page = await again.ask(EventsAfter("carol", 2))
    assert [event.number for event in page.events] == [3]
    assert await again.ask(FindCursor("nobody")) == 0
    await again.close()


async def test_a_late_reader_gets_the_number_of_missed_events(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await asyncio.gather(
        *(store.do(AppendEvent("carol", "elicitation_request", "files", {"n": n})) for n in range(1100))
    )
    page = await store.ask(EventsAfter("carol", 10))
    assert (len(page.events), page.events[0].number, page.lost) == (1000, 101, 90)
    adapter.clock.turn(30 * 60_000)
    page = await store.ask(EventsAfter("carol", 1050))
    assert (page.events, page.lost, page.last) == ((), 50, 1100)
    swept = [await sweep(store) for _ in range(3)]
    assert sum(one.events for one in swept) >= 1000
    assert [one.more for one in swept] == [True, True, False]
    assert (await store.ask(EventsAfter("carol", 1100))).lost == 0
    await store.close()


async def test_how_many_events_are_kept_and_how_long_can_be_changed(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    store.state.keep_events(5, 1_000)
    await asyncio.gather(*(store.do(AppendEvent("carol", "elicitation_request", "files", {"n": n})) for n in range(70)))
    page = await store.ask(EventsAfter("carol", 60))
    assert ([event.number for event in page.events], page.lost) == ([66, 67, 68, 69, 70], 5)
    adapter.clock.turn(1_000)
    assert (await store.ask(EventsAfter("carol", 60))).lost == 10
    assert (await sweep(store)).events > 0
    store.state.keep_events(2_000, 60_000)
    await asyncio.gather(
        *(store.do(AppendEvent("carol", "elicitation_request", "files", {"n": n})) for n in range(1_500))
    )
    assert len((await store.ask(EventsAfter("carol", 70))).events) == 1_500
    await store.close()


async def test_the_audit_chain_is_valid_after_concurrent_writes(store: Store) -> None:
    calls = [a_call() for _ in range(40)]

    async def live(call_number: int) -> None:
        call = calls[call_number]
        await store.do(Accept(call, approval=asking(call) if call_number % 3 == 0 else None))
        store.defer(RecordAudit(AuditEntry(0, "call_forwarded", principal="carol")))
        await store.do(Accept(a_call(id=call.id)))
        await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))
        await store.do(Advance(call.id, h.Cancelled()))

    await asyncio.gather(*(live(number) for number in range(len(calls))))
    await store.do(RecordAudit(AuditEntry(0, "rules_reloaded")))
    rows = await store.ask(AuditRows())
    whole = verify(rows)
    assert isinstance(whole, ChainIntact)
    assert whole.rows == len(rows)
    events = [row.entry.event for row in rows]
    assert events.count("task_created") == 40
    assert events.count("call_forwarded") == 40
    assert events.count("task_dispatched") == 26
    assert events.count("task_cancelled") == 40
    assert rows[-1].entry.at_ms == START


async def test_a_use_case_may_add_details_to_an_audit_row(store: Store) -> None:
    call = a_call()
    await store.do(
        Accept(call, audit=AuditEntry(0, "task_created", rule="rules[3]", arguments={"year": 2026, "n": 10**40}))
    )
    (row,) = await store.ask(AuditRows())
    assert row.entry.rule == "rules[3]"
    assert isinstance(verify([row]), ChainIntact)


async def test_a_failing_write_does_not_affect_others_of_its_batch(store: Store) -> None:
    def explode(task: object, approval: object, now_ms: int) -> None:
        raise LookupError("a look that breaks")

    calls = [a_call() for _ in range(10)]
    await asyncio.gather(*(store.do(Accept(call)) for call in calls))
    answers = await asyncio.gather(
        *(
            store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=explode))
            if number % 2
            else store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=just_go))
            for number, call in enumerate(calls)
        ),
        return_exceptions=True,
    )
    assert [isinstance(answer, Intended) for answer in answers] == [True, False] * 5
    assert isinstance(verify(await store.ask(AuditRows())), ChainIntact)


async def test_a_stale_owner_leaves_no_event(adapter: StoreUnderTest) -> None:
    old = adapter.open()
    new = adapter.open_rival()
    await new.do(Claim())
    with pytest.raises(GatewayFault) as caught:
        await old.do(AppendEvent("carol", "x", "files", {}))
    assert caught.value.error_type == "store_unavailable"
    assert (await new.ask(EventsAfter("carol", 0))).events == ()
    await old.close()
    await new.close()
