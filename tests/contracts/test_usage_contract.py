"""What every store must keep of recorded calls and usage. Each test runs on each adapter."""

from __future__ import annotations

import pytest
from tests.contracts.store_under_test import START, StoreUnderTest
from tests.store.call_records import add_usage, record_calls

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.settings.governance import Action
from taskgate.core.usage import UsageRow, day_of
from taskgate.store.operations import usage
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.usage import RecordedCalls, UsageBetween, forget_recorded_calls

FIRST = RecordedCall(START + 1, "ann", ("r",), "default", "files", "read", before=Action.DENY, arguments='{"a":1}')
SECOND = RecordedCall(START + 5, "bob", server="files", name="write", hidden=("token",), listed=False)


async def test_recorded_calls_come_back_in_order_and_page_by_page(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    record_calls(store, [FIRST, SECOND])
    record_calls(store, [RecordedCall(0, count=9)])
    await store.close()
    again = adapter.open()
    page = await again.ask(RecordedCalls(0, limit=2))
    assert page.calls == (FIRST, SECOND)
    assert page.after is not None
    rest = await again.ask(RecordedCalls(0, page.after, limit=2))
    assert [(call.count, call.at_ms >= START) for call in rest.calls] == [(9, True)]
    assert rest.after is None
    assert (await again.ask(RecordedCalls(START + 2, limit=9))).calls[0] == SECOND
    await again.close()


async def test_recorded_calls_are_bounded_by_age_and_number(
    adapter: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = adapter.open()
    now = store.now_ms()
    record_calls(store, [RecordedCall(now - 5_000), *(RecordedCall(now + n) for n in range(5))])
    await store.do(RecordAudit(AuditEntry(0, "committed")))
    await forget_recorded_calls(store, 1_000)
    assert [call.at_ms for call in (await store.ask(RecordedCalls(0))).calls] == [now + n for n in range(5)]
    monkeypatch.setattr(usage, "MAX_RECORDED_CALLS", 2)
    await forget_recorded_calls(store, 1_000)
    assert [call.at_ms for call in (await store.ask(RecordedCalls(0))).calls] == [now + 3, now + 4]
    await store.close()


async def test_usage_is_added_up_by_day_principal_server_and_tool(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    today = day_of(store.now_ms())
    row = UsageRow(today, "acme/ann", "files", "read", 2, 1, 0.5, 10, 20, 0.25)
    add_usage(store, [row, UsageRow(today, "bob", "files", "read", 1)])
    add_usage(store, [row])
    add_usage(store, [UsageRow("2001-01-01", "old", "files", "read", 1)])
    await store.close()
    again = adapter.open()
    found = await again.ask(UsageBetween(today, today))
    assert found == (
        UsageRow(today, "acme/ann", "files", "read", 4, 2, 1.0, 20, 40, 0.5, "acme"),
        UsageRow(today, "bob", "files", "read", 1),
    )
    assert len(await again.ask(UsageBetween("2000-01-01", today))) == 3
    await forget_recorded_calls(again, 1_000)
    assert len(await again.ask(UsageBetween("2000-01-01", today))) == 2
    await again.close()
