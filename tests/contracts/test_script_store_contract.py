"""What every store must do with scripts: steps, the calls of a step, retention with the script. Each test runs on each adapter."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.contracts.store_under_test import START, OpenTasksOf, StoreUnderTest, a_call, asking
from tests.contracts.test_sealed_store_contract import MARKER, NEW, all_bytes, opened
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance.held_call import PendingLimits
from taskgate.core.scripts.record import OpenCall, ReceivedOutcomes, ScriptRecord
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import AlreadyOver
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change, Intended, StaleOwner, TaskQuestion, TooManyOpen
from taskgate.store.operations.erasure import Erased, erase
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.scripts import (
    AskingCalls,
    CallsOfScript,
    ChildCall,
    FindScript,
    JoinChain,
    ScriptStep,
    Stepped,
    StepScript,
    StoredScript,
)
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import FindTask, ResultBytes, TasksPage
from taskgate.store.operations.tasks import Accept, Advance, HandOver, Intend
from taskgate.store.operations.upkeep import Claim, sweep

LIFETIME_MS = 600_000


async def started(store: Store, **changes: Any) -> Task:
    """A script that runs."""
    answer = await store.do(Accept(a_call(server="taskgate", tool="run_script", script=True, **changes)))
    assert isinstance(answer, Change)
    begun = await store.do(Intend(answer.task.id, byte_hash="", upstream="taskgate", recheck=just_go))
    assert isinstance(begun, Intended)
    return begun.task


def call_of(script: Task, number: int, **changes: Any) -> ChildCall:
    approval = changes.pop("approval", None)
    limits = changes.pop("limits", AcceptLimits())
    draft = a_call(parent=script.id, script_line=number + 1, **changes)
    return ChildCall(number, draft, approval(draft) if approval is not None else None, limits=limits)


def waiting_for(step: int, *children: ChildCall, snapshot: bytes = b"state", **more: Any) -> ScriptStep:
    pending = tuple(OpenCall(child.number, "build", 1, child=child.draft.id) for child in children)
    return ScriptStep(ScriptRecord(step=step, pending=pending, **more), snapshot, more.pop("delivered", ()))


async def test_script_runs_without_an_attempt_and_without_a_deadline(store: Store) -> None:
    script = await started(store)
    assert (script.state, script.attempts, script.execution_deadline_ms) == (TaskState.RUNNING, 0, None)


async def test_snapshot_and_calls_are_stored_together(store: Store) -> None:
    script = await started(store)
    first, second = call_of(script, 1), call_of(script, 2, approval=asking)
    stepped = await store.do(StepScript(script.id, waiting_for(1, first, second, printed="so far"), (first, second)))
    assert isinstance(stepped, Stepped)
    assert [type(answer) for answer in stepped.accepted] == [Change, Change]
    stored = await store.ask(FindScript(script.id))
    assert isinstance(stored, StoredScript)
    assert (stored.snapshot, stored.record.step, stored.record.printed) == (b"state", 1, "so far")
    calls = await store.ask(CallsOfScript(script.id))
    assert [(call.number, call.line, call.delivered_step, call.task.state) for call in calls] == [
        (1, 2, None, TaskState.QUEUED),
        (2, 3, None, TaskState.AWAITING_APPROVAL),
    ]
    assert [call.number for call in await store.ask(CallsOfScript(script.id, after=1))] == [2]


async def test_delivered_calls_are_marked_with_the_step(store: Store) -> None:
    script = await started(store)
    first, second = call_of(script, 1), call_of(script, 2)
    await store.do(StepScript(script.id, waiting_for(1, first, second), (first, second)))
    await store.do(StepScript(script.id, ScriptStep(ScriptRecord(step=2), b"later", (2,))))
    marks = {call.number: call.delivered_step for call in await store.ask(CallsOfScript(script.id))}
    assert marks == {1: None, 2: 2}


async def test_calls_of_a_script_that_ask_are_found_until_their_outcome_is_received(store: Store) -> None:
    script = await started(store)
    calls = tuple(call_of(script, number) for number in (1, 2, 3))
    await store.do(StepScript(script.id, waiting_for(1, *calls), calls))
    assert await store.ask(AskingCalls(script.id)) == ()
    for call in (calls[2], calls[0]):
        asked = TaskQuestion("q", "files", "elicitation/create", b"{}", START + 60_000, START)
        begun = await store.do(Intend(call.draft.id, byte_hash="", upstream="files", recheck=just_go))
        assert isinstance(begun, Intended)
        assert isinstance(await store.do(Advance(call.draft.id, h.InputRequested(("q",)), questions=(asked,))), Change)
    assert await store.ask(AskingCalls(script.id)) == (calls[0].draft.id, calls[2].draft.id)
    await store.do(Advance(calls[0].draft.id, h.InputSettled(("q",)), answers={"q": b"{}"}))
    assert await store.ask(AskingCalls(script.id)) == (calls[2].draft.id,)
    await store.do(StepScript(script.id, ScriptStep(ScriptRecord(step=2), b"later", (3,))))
    assert await store.ask(AskingCalls(script.id)) == ()


async def test_end_of_a_script_marks_the_calls_that_it_received_last(store: Store) -> None:
    script = await started(store)
    first, second = call_of(script, 1), call_of(script, 2)
    await store.do(StepScript(script.id, waiting_for(1, first, second), (first, second)))
    ended = await store.do(Advance(script.id, h.ResultReceived(b"{}"), received=ReceivedOutcomes(2, (1,))))
    assert isinstance(ended, Change)
    marks = {call.number: call.delivered_step for call in await store.ask(CallsOfScript(script.id))}
    assert marks == {1: 2, 2: None}


async def test_ended_script_makes_no_calls(store: Store) -> None:
    script = await started(store)
    cancelled = await store.do(Advance(script.id, h.Cancelled("enough")))
    assert isinstance(cancelled, Change)
    assert (cancelled.task.executed, cancelled.task.cancel_unsent) == (Executed.MAYBE, True)
    child = call_of(script, 1)
    assert await store.do(StepScript(script.id, waiting_for(1, child), (child,))) == AlreadyOver(TaskState.CANCELLED)
    assert (await store.ask(FindScript(script.id)), await store.ask(FindTask(child.draft.id))) == (None, None)


async def test_one_of_the_scripts_that_resume_another_at_once_is_the_newest(store: Store) -> None:
    first, *others = [await started(store) for _ in range(4)]
    ended = await store.do(Advance(first.id, h.ErrorReceived(b"{}", "failed", Executed.NO)))
    assert isinstance(ended, Change)
    answers = await asyncio.gather(*[store.do(JoinChain(other.id, [first.id])) for other in others])
    (newest,) = set(answers)
    assert newest in [other.id for other in others]
    assert await store.do(JoinChain(newest, [first.id])) == newest
    other = next(other for other in others if other.id != newest)
    assert await store.do(JoinChain(other.id, [first.id, newest])) == other.id
    assert await store.do(JoinChain(newest, [first.id])) == other.id
    kept = await store.ask(FindTask(first.id))
    assert kept is not None
    assert (kept.state, kept.finished_ms) == (ended.task.state, ended.task.finished_ms)
    assert await store.ask(ResultBytes(first.id)) == b"{}"
    assert await store.do(JoinChain(newest, [a_call().id])) is None


async def test_script_is_not_handed_over_to_a_gateway_that_does_not_exist(store: Store) -> None:
    script = await started(store)
    assert not await store.do(HandOver(script.id, "nobody"))
    child = call_of(script, 1)
    assert isinstance(await store.do(StepScript(script.id, waiting_for(1, child), (child,))), Stepped)


async def test_former_owner_makes_no_calls(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    script = await started(store)
    rival = adapter.open_rival()
    while await rival.do(Claim()):
        pass
    child = call_of(script, 1)
    assert isinstance(await store.do(StepScript(script.id, waiting_for(1, child), (child,))), StaleOwner)
    assert await rival.ask(FindTask(child.draft.id)) is None
    taken = call_of(script, 1)
    assert isinstance(await rival.do(StepScript(script.id, waiting_for(1, taken), (taken,))), Stepped)
    await rival.close()
    await store.close()


async def test_refused_call_leaves_the_step_and_the_other_calls(store: Store) -> None:
    script = await started(store)
    fine = call_of(script, 1)
    full = call_of(script, 2, approval=asking, limits=AcceptLimits(pending=PendingLimits(per_caller=0)))
    stepped = await store.do(StepScript(script.id, waiting_for(1, fine, full), (fine, full)))
    assert isinstance(stepped, Stepped)
    assert [type(answer) for answer in stepped.accepted] == [Change, TooManyOpen]
    assert [call.number for call in await store.ask(CallsOfScript(script.id))] == [1]
    assert await store.ask(FindTask(full.draft.id)) is None


async def test_calls_of_scripts_are_neither_listed_nor_counted_nor_announced_to_their_caller(store: Store) -> None:
    script = await started(store)
    before = (await store.ask(EventsAfter("carol", 0))).last
    children = tuple(call_of(script, number) for number in range(3))
    await store.do(StepScript(script.id, waiting_for(1, *children), children))
    assert [task.id for task in (await store.ask(TasksPage("carol"))).tasks] == [script.id]
    assert await store.ask(OpenTasksOf("carol")) == 1
    assert (await store.ask(EventsAfter("carol", 0))).last == before
    found = await store.ask(FindTask(children[0].draft.id))
    assert found is not None
    assert (found.caller, found.parent) == ("carol", script.id)


async def test_calls_are_kept_as_long_as_their_script(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    script = await started(store)
    child = call_of(script, 1)
    await store.do(StepScript(script.id, waiting_for(1, child), (child,)))
    await store.do(Intend(child.draft.id, byte_hash="b", upstream="reports", recheck=just_go))
    await store.do(Advance(child.draft.id, h.ResultReceived(b'{"n":1}')))
    adapter.clock.turn(10 * LIFETIME_MS)
    await sweep(store)
    assert await store.ask(ResultBytes(child.draft.id)) == b'{"n":1}'
    await store.do(Advance(script.id, h.ResultReceived(b'{"n":2}')))
    adapter.clock.turn(10 * LIFETIME_MS)
    await sweep(store)
    assert await store.ask(FindTask(child.draft.id, include_expired=True)) is None
    assert await store.ask(ResultBytes(child.draft.id)) is None
    assert (await store.ask(FindScript(script.id)), await store.ask(CallsOfScript(script.id))) == (None, ())
    await store.close()


async def test_steps_survive_a_restart(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    script = await started(store)
    child = call_of(script, 1)
    await store.do(StepScript(script.id, waiting_for(1, child, calls=7, spent_ms=900), (child,)))
    await store.close()
    again = adapter.open("second")
    while await again.do(Claim()):
        pass
    stored = await again.ask(FindScript(script.id))
    assert stored is not None
    assert (stored.record.calls, stored.record.spent_ms, stored.record.pending_children) == (7, 900, (child.draft.id,))
    await again.close()


async def test_scripts_are_sealed(adapter: StoreUnderTest) -> None:
    store = opened(adapter, NEW)
    script = await started(store)
    await store.do(StepScript(script.id, waiting_for(1, snapshot=MARKER.encode(), printed=MARKER)))
    stored = await store.ask(FindScript(script.id))
    assert stored is not None
    assert (stored.snapshot, stored.record.printed) == (MARKER.encode(), MARKER)
    await store.close()
    assert MARKER.encode() not in all_bytes(adapter)


async def test_scripts_of_an_erased_person_are_deleted(store: Store) -> None:
    script = await started(store)
    child = call_of(script, 1)
    await store.do(StepScript(script.id, waiting_for(1, child), (child,)))
    await store.do(Advance(child.draft.id, h.Cancelled()))
    await store.do(Advance(script.id, h.ResultReceived(b"{}")))
    erased = await erase(store, "carol", "revoked", AuditEntry(START, "data_erased", "carol"))
    assert isinstance(erased, Erased)
    assert erased.tasks == 2
    assert (await store.ask(FindScript(script.id)), await store.ask(CallsOfScript(script.id))) == (None, ())
