"""What every store must keep of approvals, grants and pins. Each test runs on each adapter."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from tests.contracts.store_under_test import ANN, BOB, OPS, START, OpenTasksOf, StoreUnderTest, a_call, asking
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import (
    ApprovalEvent,
    CallDispatched,
    Changed,
    DecisionRefused,
    Refusal,
    State,
    TimePassed,
    Verdict,
    Voted,
    Withdrawn,
)
from taskgate.core.governance.grants import grant_from
from taskgate.core.governance.held_call import ApprovalRequest, HeldCall, PendingLimits
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Cancelled, NotPossible
from taskgate.ports.store import Store
from taskgate.ports.store_answers import ApprovalSpent, Change, Intended, Joined, LimitHolder, StaleOwner, TooManyOpen
from taskgate.store.operations.approvals import (
    ChangeHeld,
    Decided,
    FindHeld,
    HeldCalls,
    HoldCall,
    LastApproved,
    PendingCount,
    TakeHeld,
    UnknownApproval,
)
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.erasure import erase
from taskgate.store.operations.grants import AddGrant, FindGrants, RevokeGrant
from taskgate.store.operations.pins import AcceptedDefinitions, PutPin, StoredPins
from taskgate.store.operations.receipts import DropReceipt, PutReceipt, Receipts, StoredReceipt
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import Claim, sweep

YES = Voted(ANN, Verdict.APPROVE, 0)
NO = Voted(BOB, Verdict.DENY, 0, reason="not today")
FULL = TooManyOpen("pending approvals", 1, "pending_approvals_per_caller")
TWO_MUST_AGREE = Workflow("money", approvals_needed=2)


async def waiting(store: Store, workflow: Workflow = OPS) -> tuple[Task, ApprovalRequest]:
    call = a_call()
    request = asking(call, workflow)
    answer = await store.do(Accept(call, approval=request))
    assert isinstance(answer, Change)
    return answer.task, request


async def decided(store: Store, request: ApprovalRequest, vote: Voted, workflow: Workflow = OPS) -> Decided:
    answer = await store.do(ChangeHeld(request.id, workflow, vote))
    assert isinstance(answer, Decided)
    return answer


async def test_a_held_task_waits_with_its_approval_and_exact_arguments(store: Store) -> None:
    task, request = await waiting(store)
    assert (task.state, task.approval_id) == (TaskState.AWAITING_APPROVAL, request.id)
    assert task.approval_deadline_ms == START + 600_000
    held = await store.ask(FindHeld(request.id))
    assert held is not None
    assert (held.task_id, held.arguments, held.approval.state) == (task.id, task.arguments, State.OPEN)


async def test_equal_call_joins_the_one_that_waits(store: Store) -> None:
    task, request = await waiting(store)
    again = a_call()
    assert await store.do(Accept(again, approval=asking(again), joins=True)) == Joined(task)
    for other in (
        a_call(place="elsewhere"),
        a_call(digest="sha256:d2"),
        a_call(caller="dave"),
        a_call(tool="tear_down"),
    ):
        assert isinstance(await store.do(Accept(other, approval=asking(other), joins=True)), Change)
    await decided(store, request, YES)
    late = a_call()
    assert isinstance(await store.do(Accept(late, approval=asking(late), joins=True)), Change)


async def test_call_with_a_key_joins_none(store: Store) -> None:
    await waiting(store)
    second = a_call()
    assert isinstance(await store.do(Accept(second, approval=asking(second), key="k", joins=True)), Change)


async def test_a_decision_moves_the_task_in_the_same_step(store: Store) -> None:
    task, request = await waiting(store)
    answer = await decided(store, request, YES)
    assert isinstance(answer.outcome, Changed)
    assert answer.change is not None
    assert answer.change.task.state is TaskState.APPROVED
    assert answer.change.task.approval_deadline_ms == START + 900_000
    sent = await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go))
    assert isinstance(sent, Intended)
    held = await store.ask(FindHeld(request.id))
    assert held is not None
    assert held.approval.state is State.USED


async def test_the_time_of_a_vote_is_the_time_of_the_store(store: Store) -> None:
    _, request = await waiting(store)
    answer = await decided(store, request, replace(YES, at_ms=START + 10**9))
    assert answer.held.approval.votes[0].at_ms == START


@pytest.mark.parametrize("event", [YES, NO, TimePassed(0)])
async def test_approval_that_expired_by_another_clock_is_expired(store: Store, event: ApprovalEvent) -> None:
    """The store's clock was set back: what the gateway measured itself counts."""
    _, request = await waiting(store)
    held = await store.ask(FindHeld(request.id))
    assert held is not None
    answer = await store.do(ChangeHeld(request.id, OPS, event, not_before_ms=held.approval.binding.expires_at_ms))
    assert isinstance(answer, Decided)
    assert (answer.held.approval.state, answer.held.approval.votes) == (State.EXPIRED, ())


async def test_the_stores_clock_decides_where_it_is_later(store: Store) -> None:
    _, request = await waiting(store)
    answer = await store.do(ChangeHeld(request.id, OPS, YES, not_before_ms=START - 1))
    assert isinstance(answer, Decided)
    assert answer.held.approval.votes[0].at_ms == START


async def test_a_denied_task_is_rejected_with_the_reason_and_has_no_intent(store: Store) -> None:
    task, request = await waiting(store)
    answer = await decided(store, request, NO)
    assert answer.change is not None
    assert (answer.change.task.state, answer.change.task.status_message) == (
        TaskState.REJECTED,
        "The call was denied: not today",
    )
    assert not isinstance(await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)


async def test_a_task_that_waits_for_approval_gets_no_intent(store: Store) -> None:
    task, _ = await waiting(store)
    assert isinstance(await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)), NotPossible)


async def test_with_two_required_votes_one_vote_changes_nothing(store: Store) -> None:
    task, request = await waiting(store, TWO_MUST_AGREE)
    first = await decided(store, request, YES, TWO_MUST_AGREE)
    assert first.change is None
    assert len(first.held.approval.votes) == 1
    again = await decided(store, request, YES, TWO_MUST_AGREE)
    assert isinstance(again.outcome, DecisionRefused)
    assert again.outcome.why is Refusal.ALREADY_VOTED
    second = await decided(store, request, replace(YES, by=BOB), TWO_MUST_AGREE)
    assert second.change is not None
    assert second.change.task.id == task.id


async def test_exactly_one_of_two_hundred_racing_decisions_is_accepted(store: Store) -> None:
    task, request = await waiting(store)
    racers = [YES, NO, Withdrawn(0), TimePassed(0)] * 50
    answers = await asyncio.gather(
        *(store.do(ChangeHeld(request.id, OPS, racer)) for racer in racers),  # type: ignore[arg-type]
        *(store.do(Advance(task.id, h.Cancelled())) for _ in range(10)),
    )
    changed = [each.outcome for each in answers if isinstance(each, Decided) and isinstance(each.outcome, Changed)]
    assert sum(1 for outcome in changed if outcome.ended) == 1
    held = await store.ask(FindHeld(request.id))
    final = await store.ask(FindTask(task.id))
    assert held is not None
    assert final is not None
    assert (held.approval.state is State.APPROVED) == (final.state is TaskState.APPROVED)


async def test_an_approval_that_expired_before_the_send_prevents_it(adapter: StoreUnderTest) -> None:
    """The task is past the states in which an approval's end ends it; the approval itself must state it."""
    store = adapter.open()
    task, request = await waiting(store)
    await decided(store, request, YES)
    await store.do(Advance(task.id, h.InputRequested(("account",), None)))
    await store.do(Advance(task.id, h.InputSettled(("account",))))
    adapter.clock.turn(900_000)
    await store.do(ChangeHeld(request.id, OPS, TimePassed(0)))
    answer = await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go))
    assert isinstance(answer, ApprovalSpent)
    assert answer.approval.state is State.EXPIRED


async def test_an_approval_is_used_by_one_run_only(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task, request = await waiting(store)
    await decided(store, request, YES)
    adapter.clock.turn(900_000)
    answer = await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go))
    assert isinstance(answer, ApprovalSpent)
    assert answer.approval.state is State.EXPIRED
    over = await store.do(ChangeHeld(request.id, OPS, TimePassed(0)))
    assert isinstance(over, Decided)
    assert over.change is not None
    assert over.change.task.state is TaskState.EXPIRED
    await store.close()


async def test_a_task_expires_without_a_decision(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task, request = await waiting(store)
    adapter.clock.turn(600_000)
    late = await store.do(ChangeHeld(request.id, OPS, YES))
    assert isinstance(late, Decided)
    assert isinstance(late.outcome, DecisionRefused)
    assert late.outcome.why is Refusal.EXPIRED
    found = await store.ask(FindTask(task.id))
    assert found is not None
    assert found.state is TaskState.EXPIRED
    await store.close()


async def test_cancelling_the_task_withdraws_its_approval(store: Store) -> None:
    task, request = await waiting(store)
    await store.do(Advance(task.id, h.Cancelled()))
    held = await store.ask(FindHeld(request.id))
    assert held is not None
    assert held.approval.state is State.CANCELLED
    late = await decided(store, request, YES)
    assert isinstance(late.outcome, DecisionRefused)
    events = [row.entry.event for row in await store.ask(AuditRows())]
    assert events == ["task_created", "approval_cancelled", "task_cancelled"]


async def test_an_approval_survives_a_restart_and_is_decided_after_it(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task, request = await waiting(store)
    await store.close()
    again = adapter.open()
    await again.do(Claim())
    answer = await decided(again, request, YES)
    assert answer.change is not None
    assert answer.change.task.id == task.id
    await again.close()


async def test_a_call_without_a_task_can_be_held_too(store: Store) -> None:
    request = asking(a_call())
    held = await store.do(HoldCall(request, pending=PendingLimits(1)))
    assert isinstance(held, HeldCall)
    assert await store.do(HoldCall(asking(a_call()), pending=PendingLimits(1))) == FULL
    answer = await decided(store, request, YES)
    assert answer.change is None
    assert answer.held.approval.state is State.APPROVED


async def test_pending_approvals_are_counted_and_limited_per_caller(store: Store) -> None:
    limits = AcceptLimits(pending=PendingLimits(1))
    call, other = a_call(), a_call()
    assert isinstance(await store.do(Accept(call, approval=asking(call), limits=limits)), Change)
    assert await store.do(Accept(other, approval=asking(other), limits=limits)) == FULL
    assert isinstance(await store.do(Accept(other, limits=limits)), Change)
    assert (await store.ask(PendingCount("carol")), await store.ask(PendingCount("dave"))) == (1, 0)
    assert await store.ask(PendingCount()) == 1


async def test_the_inbox_is_oldest_first_in_pages(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    ids = []
    for _ in range(5):
        ids.append((await waiting(store))[1].id)
        adapter.clock.turn(1)
    await store.do(ChangeHeld(ids[2], OPS, NO))
    first = await store.ask(HeldCalls(limit=2))
    second = await store.ask(HeldCalls(limit=2, after=first.after))
    assert [held.approval.id for held in (*first.held, *second.held)] == [ids[0], ids[1], ids[3], ids[4]]
    assert second.after is None
    everything = await store.ask(HeldCalls(open_only=False))
    assert [held.approval.id for held in everything.held] == ids
    await store.close()


async def test_a_page_of_a_tenant_skips_the_approvals_of_all_others(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    made = {}
    for name in ("globex/eve", "acmee/dan", "acme", "https://acme/ann", "acme/ann", "globex/eve", "acme/bob"):
        call = a_call(principal=name, caller=name, limited_as=name)
        made[name] = request = asking(call)
        assert isinstance(await store.do(Accept(call, approval=request)), Change)
        adapter.clock.turn(1)
    expected = [made["acme/ann"].id, made["acme/bob"].id]
    for open_only in (True, False):
        first = await store.ask(HeldCalls(open_only=open_only, limit=1, tenant="acme"))
        second = await store.ask(HeldCalls(open_only=open_only, limit=1, after=first.after, tenant="acme"))
        assert [held.approval.id for held in (*first.held, *second.held)] == expected
        assert second.after is None
    await store.close()


async def test_an_unknown_approval_is_reported_as_unknown(store: Store) -> None:
    assert await store.ask(FindHeld("ap_nothing")) is None
    assert await store.do(ChangeHeld("ap_nothing", OPS, YES)) == UnknownApproval("ap_nothing")


async def test_the_last_approved_call_of_a_tool_is_stored(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.ask(LastApproved("reports", "build")) is None
    _, first = await waiting(store)
    await decided(store, first, YES)
    adapter.clock.turn(10)
    _, second = await waiting(store)
    await decided(store, second, YES)
    _, denied = await waiting(store)
    await decided(store, denied, NO)
    newest = await store.ask(LastApproved("reports", "build"))
    before = await store.ask(LastApproved("reports", "build", before=second.id))
    assert newest is not None
    assert before is not None
    assert (newest.approval.id, before.approval.id) == (second.id, first.id)
    assert await store.ask(LastApproved("reports", "other")) is None
    await store.close()


async def test_grants_are_stored_listed_revoked_and_expire(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    _, request = await waiting(store)
    approval = (await decided(store, request, YES)).held.approval
    kept, revoked = (grant_from(approval, name, adapter.clock(), for_ms=3_600_000) for name in ("g1", "g2"))
    await store.do(AddGrant(kept))
    await store.do(AddGrant(revoked))
    assert await store.ask(FindGrants()) == (kept, revoked)
    gone = await store.do(RevokeGrant("g2", "bob"))
    assert gone is not None
    assert gone.revoked_by == "bob"
    assert await store.do(RevokeGrant("g2", "ann")) == gone
    assert await store.do(RevokeGrant("g3", "ann")) is None
    assert await store.ask(FindGrants()) == (kept,)
    adapter.clock.turn(3_600_000)
    assert await store.ask(FindGrants()) == ()
    assert await store.ask(FindGrants(all_of_them=True)) == (kept, gone)
    await store.close()


READ_BY_EARLIER_VERSIONS = "SELECT id FROM grants WHERE revoked = 0 AND until_ms > 0 ORDER BY id"
"""How gateways that do not know grants for one script find the grants in force."""


async def test_grant_for_one_script_is_not_read_by_gateways_of_earlier_versions(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    _, request = await waiting(store)
    approval = (await decided(store, request, YES)).held.approval
    plain = grant_from(approval, "g1", adapter.clock(), for_ms=3_600_000)
    limited = replace(plain, id="g2", script_digest="sha256:1")
    await store.do(AddGrant(plain))
    await store.do(AddGrant(limited))
    assert await store.ask(FindGrants()) == (plain, limited)
    assert adapter.rows(READ_BY_EARLIER_VERSIONS) == [("g1",)]
    await store.do(RevokeGrant("g2", "bob"))
    assert await store.ask(FindGrants()) == (plain,)
    await store.close()


async def test_pins_are_stored_replaced_and_deleted(store: Store) -> None:
    first = Pin.of("sha256:1", {"name": "build", "big": 2**80})
    await store.do(PutPin("reports", "build", first))
    await store.do(PutPin("files", "read", first))
    accepted = Pin.of("sha256:2", {"name": "build"})
    await store.do(PutPin("reports", "build", accepted, by="ann", audit=AuditEntry(0, "pin_accepted")))
    (pin,) = await store.ask(StoredPins("reports"))
    assert (pin.pin, pin.by, pin.at_ms) == (accepted, "ann", START)
    assert len(await store.ask(StoredPins())) == 2
    (other,) = await store.ask(StoredPins("files"))
    assert other.pin == first
    assert [row.entry.event for row in await store.ask(AuditRows())] == ["pin_accepted"]


async def test_earlier_definitions_are_kept_up_to_a_number_and_without_the_names_of_erased_people(
    adapter: StoreUnderTest,
) -> None:
    store = adapter.open()
    for number in range(14):
        await store.do(
            PutPin("reports", "build", Pin.of(f"sha256:{number}", {"name": str(number)}), by=f"p{number % 2}")
        )
        adapter.clock.turn(1_000)
    await store.do(PutPin("files", "read", Pin.of("sha256:1", {"name": "read"})))
    found = await store.ask(AcceptedDefinitions("reports", "build"))
    assert [one.pin.digest for one in found] == [f"sha256:{number}" for number in range(13, 2, -1)]
    assert {one.by for one in found} == {"p0", "p1"}
    assert [one.pin.digest for one in await store.ask(AcceptedDefinitions("files", "read"))] == ["sha256:1"]
    assert await store.ask(AcceptedDefinitions("files", "unknown")) == ()
    await erase(store, "p1", "revoked", AuditEntry(0, "data_erased"))
    assert {one.by for one in await store.ask(AcceptedDefinitions("reports", "build"))} == {"p0", ""}
    await store.close()


async def test_receipts_of_channels_are_stored_replaced_and_deleted(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    _, request = await waiting(store)
    slack = StoredReceipt(request.id, "slack C1", "ops", "C1 17.1")
    hook = StoredReceipt(request.id, "webhook ab12", "ops", "m1")
    await store.do(PutReceipt(hook))
    await store.do(PutReceipt(slack))
    assert await store.ask(Receipts()) == (slack, hook)
    newer = StoredReceipt(request.id, "slack C1", "ops", "C1 18.2")
    await store.do(PutReceipt(newer))
    await store.do(DropReceipt(request.id, "webhook ab12"))
    await store.do(DropReceipt(request.id, "webhook ab12"))
    await store.close()
    again = adapter.open()
    assert await again.ask(Receipts()) == (newer,)
    assert await again.ask(Receipts(limit=0)) == ()
    await again.close()


async def test_a_receipt_is_deleted_with_its_approval(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    _, request = await waiting(store)
    await store.do(PutReceipt(StoredReceipt(request.id, "slack C1", "ops", "C1 17.1")))
    await decided(store, request, NO)
    await sweep(store)
    assert len(await store.ask(Receipts())) == 1
    adapter.clock.turn(90 * 24 * 3_600_000)
    await sweep(store)
    adapter.clock.turn(SHOWN_AS_EXPIRED_MS)
    await sweep(store)
    await sweep(store)
    assert await store.ask(Receipts()) == ()
    await store.close()


async def test_a_stale_owner_cannot_decide(adapter: StoreUnderTest) -> None:
    old = adapter.open()
    _, request = await waiting(old)
    new = adapter.open_rival()
    await new.do(Claim())
    assert await old.do(ChangeHeld(request.id, OPS, YES)) == StaleOwner(old.ownership)
    held = await new.ask(FindHeld(request.id))
    assert held is not None
    assert held.approval.state is State.OPEN
    await old.close()
    await new.close()


async def test_the_counts_of_open_tasks_and_approvals_follow_every_change(store: Store) -> None:
    """Requested, approved, denied, withdrawn, cancelled, deleted: the counters of limits match the rows."""
    calls = [a_call(limited_as="carol") for _ in range(5)]
    requests = [asking(call) for call in calls]
    for call, request in zip(calls, requests, strict=True):
        assert isinstance(await store.do(Accept(call, approval=request)), Change)
    alone = asking(a_call())
    assert isinstance(await store.do(HoldCall(alone, pending=PendingLimits(6))), HeldCall)
    assert (await store.ask(OpenTasksOf("carol")), await store.ask(PendingCount("carol"))) == (5, 6)
    await store.do(ChangeHeld(requests[0].id, OPS, YES))
    await store.do(ChangeHeld(requests[1].id, OPS, NO))
    await store.do(Advance(calls[2].id, h.Cancelled("no")))
    await store.do(ChangeHeld(alone.id, OPS, Withdrawn(0)))
    assert (await store.ask(OpenTasksOf("carol")), await store.ask(PendingCount("carol"))) == (3, 2)
    assert await store.ask(PendingCount()) == 2


async def test_pending_approvals_are_counted_by_tenant(store: Store) -> None:
    for caller in ("acme/ann", "acme/bob", "globex/cem", "dora"):
        request = msgspec.structs.replace(asking(a_call()), caller=caller)
        assert isinstance(await store.do(HoldCall(request, pending=PendingLimits(9))), HeldCall)
    assert await store.ask(PendingCount()) == 4
    assert [await store.ask(PendingCount(tenant=name)) for name in ("acme", "globex", "initech")] == [2, 1, 0]
    (first, *_) = (await store.ask(HeldCalls(limit=4))).held
    await store.do(ChangeHeld(first.approval.id, OPS, NO))
    assert await store.ask(PendingCount()) == 3


async def test_open_tasks_and_approvals_of_a_tenant_are_counted_together(store: Store) -> None:
    def call_of(name: str) -> Task:
        return a_call(principal=name, caller=name, limited_as=name)

    limits = AcceptLimits(open_tasks_of_tenant=2)
    ann = call_of("acme/ann")
    assert isinstance(await store.do(Accept(ann, limits=limits)), Change)
    assert isinstance(await store.do(Accept(call_of("acme/bob"), limits=limits)), Change)
    full = TooManyOpen("open tasks of all callers of your tenant", 2, "open_tasks_per_tenant", LimitHolder.TENANT)
    assert await store.do(Accept(call_of("acme/carl"), limits=limits)) == full
    for other in ("globex/eve", "acme", "https://acme/ann", "address:10.0.0.0/8", "acmee/dan"):
        assert isinstance(await store.do(Accept(call_of(other), limits=limits)), Change), other
    assert isinstance(await store.do(Advance(ann.id, Cancelled("enough"))), Change)
    assert isinstance(await store.do(Accept(call_of("acme/carl"), limits=limits)), Change)

    pending = PendingLimits(per_tenant=1)
    request = asking(call_of("acme/ann"))
    assert isinstance(await store.do(HoldCall(request, pending=pending)), HeldCall)
    assert await store.do(HoldCall(asking(call_of("acme/bob")), pending=pending)) == TooManyOpen(
        "pending approvals of all callers of your tenant", 1, "pending_approvals_per_tenant", LimitHolder.TENANT
    )
    assert isinstance(await store.do(HoldCall(asking(call_of("globex/eve")), pending=pending)), HeldCall)
    await decided(store, request, NO)
    assert isinstance(await store.do(HoldCall(asking(call_of("acme/bob")), pending=pending)), HeldCall)


async def test_the_same_request_joins_the_one_that_waits_or_was_approved_and_not_used(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    call = a_call()
    first = await store.do(HoldCall(asking(call), joins=True))
    again = await store.do(HoldCall(asking(call), joins=True))
    apart = await store.do(HoldCall(asking(call)))
    assert isinstance(first, HeldCall)
    assert isinstance(again, HeldCall)
    assert isinstance(apart, HeldCall)
    assert again.approval.id == first.approval.id != apart.approval.id
    await store.do(ChangeHeld(apart.approval.id, OPS, Voted(ANN, Verdict.DENY, START)))
    for others in ({"principal": "dave", "caller": "dave"}, {"tool": "other"}, {"digest": "sha256:d2"}):
        other = await store.do(HoldCall(asking(a_call(**others)), joins=True))
        assert isinstance(other, HeldCall)
        assert other.approval.id != first.approval.id, others
    await store.do(ChangeHeld(first.approval.id, OPS, Voted(ANN, Verdict.APPROVE, START)))
    given = await store.do(HoldCall(asking(call), joins=True))
    assert isinstance(given, HeldCall)
    assert given.approval.id == first.approval.id
    await store.do(ChangeHeld(first.approval.id, OPS, CallDispatched(START)))
    used = await store.do(HoldCall(asking(call), joins=True))
    assert isinstance(used, HeldCall)
    assert used.approval.id != first.approval.id
    assert await store.do(TakeHeld(used.approval.id)) is True
    await store.close()


async def test_an_approval_used_by_another_run_prevents_the_send(store: Store) -> None:
    """It is valid for one run. This task has never been sent, so the approval was used by another run."""
    task, request = await waiting(store)
    await decided(store, request, YES)
    spent = await store.do(ChangeHeld(request.id, OPS, CallDispatched(0)))
    assert isinstance(spent, Decided)
    assert spent.held.approval.state is State.USED
    answer = await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(answer, ApprovalSpent)
    after = await store.ask(FindTask(task.id))
    assert after is not None
    assert (after.attempts, after.state) == (0, TaskState.APPROVED)


async def test_a_second_attempt_of_the_same_run_needs_no_second_approval(store: Store) -> None:
    task, request = await waiting(store)
    await decided(store, request, YES)
    first = await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(first, Intended)
    assert isinstance(await store.do(Advance(task.id, h.AttemptVoided())), Change)
    second = await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(second, Intended)
    assert second.task.attempts == 2
