"""What every store must forget of one person, and what it must keep. Each test runs on each adapter."""

from __future__ import annotations

import pytest
from tests.contracts.store_under_test import ANN, OPS, START, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import dispatched, finished
from tests.store.call_records import add_usage, record_calls

from taskgate.core.audit.chain import AuditEntry, ChainIntact, Row, verify
from taskgate.core.governance.approval import Verdict, Voted
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.tasks import transition as h
from taskgate.core.usage import UsageRow
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.operations import erasure
from taskgate.store.operations.approvals import ChangeHeld, HeldCalls, HoldCall
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.erasure import Erased, TasksOf, Unfinished, erase
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.grants import AddGrant, FindGrants
from taskgate.store.operations.identity_records import IdentityRecord, IdentityRecordsOf, KeepIdentityRecord
from taskgate.store.operations.task_queries import FindTask, QuestionsOf, ResultBytes
from taskgate.store.operations.tasks import Advance
from taskgate.store.operations.usage import RecordedCalls, UsageBetween

ENTRY = AuditEntry(0, "data_erased", "carol", kind="data", decision="erased", reason="by root")
LARGE = b'{"text":"' + b"x" * (2 << 20) + b'"}'


def a_grant(name: str, principal: str | None) -> Grant:
    return Grant(
        name, "ops", "reports", "build", "default", principal, None, "sha256:def", START, 2**50, ("ann",), "ap_1"
    )


async def everything_of(store: Store, name: str, body: bytes) -> str:
    """One of everything that is kept under a name; gives the id of the task."""
    task = await dispatched(store, principal=name, caller=name)
    question = TaskQuestion("k", "reports", "elicitation/create", b'{"message":"who?"}')
    await store.do(Advance(task.id, h.InputRequested(("k",)), questions=[question]))
    await store.do(Advance(task.id, h.InputSettled(("k",)), answers={"k": b'{"action":"accept"}'}))
    await store.do(Advance(task.id, h.ResultReceived(body)))
    held = await store.do(HoldCall(asking(a_call(principal=name, caller=name))))
    assert isinstance(held, HeldCall)
    await store.do(ChangeHeld(held.approval.id, OPS, Voted(ANN, Verdict.DENY, START)))
    await store.do(AddGrant(a_grant(f"gr_{name}", name)))
    record_calls(store, [RecordedCall(START, name, server="reports", name="build", arguments='{"a":1}')])
    add_usage(store, [UsageRow("2027-01-15", name, "reports", "build", 1)])
    for kind in ("session", "revoked"):
        await store.do(KeepIdentityRecord(IdentityRecord(kind, f"{kind} of {name}", name, 2**50)))
    return task.id


async def chain_of(store: Store) -> tuple[Row, ...]:
    return await store.ask(AuditRows())


async def test_erasure_deletes_all_data_of_one_person_and_no_other(
    adapter: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "TASKS_PER_STEP", 2)
    monkeypatch.setattr(erasure, "CALLS_PER_STEP", 1)
    store = adapter.open()
    others = await everything_of(store, "dave", LARGE)
    hers = await everything_of(store, "carol", LARGE)
    more = {(await finished(store)).id for _ in range(4)}
    await store.ask(FindGrants())
    assert adapter.large_results() >= 2
    assert set(await store.ask(TasksOf("carol"))) == {hers, *more}

    erased = await erase(store, "carol", "revoked", ENTRY)

    assert isinstance(erased, Erased)
    assert (erased.tasks, erased.approvals, erased.grants) == (5, 1, 1)
    assert (erased.recorded_calls, erased.usage, erased.identity_records) == (1, 1, 1)
    assert erased.events > 0
    assert await store.ask(TasksOf("carol")) == ()
    assert await store.ask(FindTask(hers, include_expired=True)) is None
    assert await store.ask(ResultBytes(hers)) is None
    assert await store.ask(QuestionsOf(hers, answered=True)) == ()
    assert (await store.ask(EventsAfter("carol", 0))).events == ()
    assert [record.kind for record in await store.ask(IdentityRecordsOf("carol"))] == ["revoked"]
    assert adapter.large_results() == 1

    assert await store.ask(TasksOf("dave")) == (others,)
    assert await store.ask(ResultBytes(others)) == LARGE
    assert len(await store.ask(QuestionsOf(others, answered=True))) == 1
    assert (
        [grant.id for grant in store.state.known_grants] == ["gr_dave"] == [g.id for g in await store.ask(FindGrants())]
    )
    assert [call.principal for call in (await store.ask(RecordedCalls(0))).calls] == ["dave"]
    assert [row.principal for row in await store.ask(UsageBetween("2000-01-01", "2100-01-01"))] == ["dave"]
    held = (await store.ask(HeldCalls(open_only=False))).held
    assert [one.approval.binding.principal for one in held] == ["dave"]
    assert (await store.ask(EventsAfter("dave", 0))).events != ()
    assert len(await store.ask(IdentityRecordsOf("dave"))) == 2
    await store.close()


async def test_the_audit_chain_stays_valid_and_records_the_erasure(store: Store) -> None:
    await everything_of(store, "carol", b"{}")
    before = await chain_of(store)
    await erase(store, "carol", "revoked", ENTRY)
    after = await chain_of(store)
    assert after[:-1] == before
    assert isinstance(verify(after), ChainIntact)
    last = after[-1].entry
    assert (last.event, last.principal, last.decision) == ("data_erased", "carol", "erased")
    assert last.reason.startswith("by root: tasks 1, approvals 1, grants 1, ")


async def test_nothing_is_erased_while_something_has_not_ended(store: Store) -> None:
    done = await finished(store)
    running = await dispatched(store)
    held = await store.do(HoldCall(asking(a_call())))
    assert isinstance(held, HeldCall)
    await dispatched(store, principal="dave", caller="dave")
    refused = await erase(store, "carol", "revoked", ENTRY)
    assert isinstance(refused, Unfinished)
    assert set(refused.ids) == {running.id, held.approval.id}
    assert await store.ask(FindTask(done.id)) is not None
    assert all(row.entry.event != "data_erased" for row in await chain_of(store))
    await store.do(Advance(running.id, h.Cancelled()))
    await store.do(ChangeHeld(held.approval.id, OPS, Voted(ANN, Verdict.DENY, START)))
    assert isinstance(await erase(store, "carol", "revoked", ENTRY), Erased)
    assert await store.ask(TasksOf("carol")) == ()
