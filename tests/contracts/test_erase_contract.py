"""What every store must forget of one person, and what it must keep. Each test runs on each adapter."""

from __future__ import annotations

import pytest
from tests.contracts.store_under_test import ANN, OPS, START, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import dispatched, finished

from taskgate.core.audit.chain import AuditEntry, ChainIntact, Row, verify
from taskgate.core.governance.approval import Verdict, Voted
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.tasks import transition as h
from taskgate.core.usage import UsageRow
from taskgate.ports.approval_store import HeldCall
from taskgate.ports.identity_store import IdentityRecord
from taskgate.ports.personal_data_store import Erased, Unfinished
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.operations import erasure

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
    await store.advance(task.id, h.InputRequested(("k",)), questions=[question])
    await store.advance(task.id, h.InputSettled(("k",)), answers={"k": b'{"action":"accept"}'})
    await store.advance(task.id, h.ResultReceived(body))
    held = await store.hold(asking(a_call(principal=name, caller=name)))
    assert isinstance(held, HeldCall)
    await store.change_held(held.approval.id, OPS, Voted(ANN, Verdict.DENY, START))
    await store.add_grant(a_grant(f"gr_{name}", name))
    store.record_calls([RecordedCall(START, name, server="reports", name="build", arguments='{"a":1}')])
    store.add_usage([UsageRow("2027-01-15", name, "reports", "build", 1)])
    for kind in ("session", "revoked"):
        await store.keep_identity_record(IdentityRecord(kind, f"{kind} of {name}", name, 2**50))
    return task.id


async def chain_of(store: Store) -> tuple[Row, ...]:
    return await store.audit_rows()


async def test_erasure_deletes_all_data_of_one_person_and_no_other(
    adapter: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "TASKS_PER_STEP", 2)
    monkeypatch.setattr(erasure, "CALLS_PER_STEP", 1)
    store = adapter.open()
    others = await everything_of(store, "dave", LARGE)
    hers = await everything_of(store, "carol", LARGE)
    more = {(await finished(store)).id for _ in range(4)}
    await store.grants()
    assert adapter.large_results() >= 2
    assert set(await store.tasks_of("carol")) == {hers, *more}

    erased = await store.erase("carol", "revoked", ENTRY)

    assert isinstance(erased, Erased)
    assert (erased.tasks, erased.approvals, erased.grants) == (5, 1, 1)
    assert (erased.recorded_calls, erased.usage, erased.identity_records) == (1, 1, 1)
    assert erased.events > 0
    assert await store.tasks_of("carol") == ()
    assert await store.get(hers, include_expired=True) is None
    assert await store.result_bytes(hers) is None
    assert await store.questions(hers, answered=True) == ()
    assert (await store.events_after("carol", 0)).events == ()
    assert [record.kind for record in await store.identity_records_of("carol")] == ["revoked"]
    assert adapter.large_results() == 1

    assert await store.tasks_of("dave") == (others,)
    assert await store.result_bytes(others) == LARGE
    assert len(await store.questions(others, answered=True)) == 1
    assert [grant.id for grant in store.known_grants] == ["gr_dave"] == [g.id for g in await store.grants()]
    assert [call.principal for call in (await store.recorded_calls(0)).calls] == ["dave"]
    assert [row.principal for row in await store.usage("2000-01-01", "2100-01-01")] == ["dave"]
    held = (await store.held_page(open_only=False)).held
    assert [one.approval.binding.principal for one in held] == ["dave"]
    assert (await store.events_after("dave", 0)).events != ()
    assert len(await store.identity_records_of("dave")) == 2
    await store.close()


async def test_the_audit_chain_stays_valid_and_records_the_erasure(store: Store) -> None:
    await everything_of(store, "carol", b"{}")
    before = await chain_of(store)
    await store.erase("carol", "revoked", ENTRY)
    after = await chain_of(store)
    assert after[:-1] == before
    assert isinstance(verify(after), ChainIntact)
    last = after[-1].entry
    assert (last.event, last.principal, last.decision) == ("data_erased", "carol", "erased")
    assert last.reason.startswith("by root: tasks 1, approvals 1, grants 1, ")


async def test_nothing_is_erased_while_something_has_not_ended(store: Store) -> None:
    done = await finished(store)
    running = await dispatched(store)
    held = await store.hold(asking(a_call()))
    assert isinstance(held, HeldCall)
    await dispatched(store, principal="dave", caller="dave")
    refused = await store.erase("carol", "revoked", ENTRY)
    assert isinstance(refused, Unfinished)
    assert set(refused.ids) == {running.id, held.approval.id}
    assert await store.get(done.id) is not None
    assert all(row.entry.event != "data_erased" for row in await chain_of(store))
    await store.advance(running.id, h.Cancelled())
    await store.change_held(held.approval.id, OPS, Voted(ANN, Verdict.DENY, START))
    assert isinstance(await store.erase("carol", "revoked", ENTRY), Erased)
    assert await store.tasks_of("carol") == ()
