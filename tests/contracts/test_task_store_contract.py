"""What every store must keep of tasks: the calls, their attempts, their results. Each test runs on each adapter."""

from __future__ import annotations

import asyncio

import pytest
from tests.contracts.store_under_test import START, KeepSecret, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import RESULT, accepted, dispatched, finished
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.state import TaskState, TransitionKind
from taskgate.core.tasks.task import AttemptState, Outcome, OutcomeKind, Task, UpstreamHandle
from taskgate.core.tasks.transition import AlreadyOver, MayNotRepeat, NotPossible
from taskgate.core.tool_class import ToolClass
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    IdTaken,
    Intended,
    SameCall,
    StoppedByRecheck,
    UnknownTask,
)
from taskgate.store.operations.approvals import PendingCount
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.task_queries import AttemptsOf, FindTask, ResultBytes, TasksPage
from taskgate.store.operations.tasks import Accept, Advance, CancelDelivered, Forbidden, Intend, NoteProgress
from taskgate.store.operations.upkeep import Claim, ClaimedTasks, sweep


async def test_an_accepted_task_is_read_back_byte_for_byte(store: Store) -> None:
    draft = a_call(status_message="Queued", correlation_id="c-1", tool_class=ToolClass.KEYED, scope_revision="3-ab")
    answer = await store.do(Accept(draft))
    assert isinstance(answer, Change)
    assert await store.ask(FindTask(draft.id)) == answer.task
    assert answer.task.arguments == draft.arguments
    assert answer.task.params_rest == draft.params_rest
    assert (answer.task.created_ms, answer.task.state) == (START, TaskState.QUEUED)
    assert (answer.task.owner, answer.task.fence) == (store.ownership.owner, store.ownership.fence)


async def test_an_acknowledged_task_is_there_after_a_restart(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    task = await dispatched(first)
    await first.close()
    second = adapter.open()
    found = await second.ask(FindTask(task.id))
    assert found == task
    await second.close()


async def test_an_unknown_id_has_no_task(store: Store) -> None:
    assert await store.ask(FindTask("tg_nothing")) is None
    assert await store.ask(ResultBytes("tg_nothing")) is None
    assert await store.do(Intend("tg_nothing", byte_hash="b", upstream="u", recheck=just_go)) == UnknownTask(
        "tg_nothing"
    )
    assert await store.do(Advance("tg_nothing", h.Cancelled())) == UnknownTask("tg_nothing")


async def test_an_id_is_used_once(store: Store) -> None:
    task = await accepted(store)
    assert await store.do(Accept(a_call(id=task.id))) == IdTaken(task.id)
    assert await store.do(Accept(a_call(id=task.id), approval=asking(task))) == IdTaken(task.id)
    assert await store.ask(PendingCount()) == 0


async def test_a_sent_call_is_stored_once_however_often_it_is_tried(store: Store) -> None:
    sent, draft = AlreadySent("b1", "reports", START - 45_000), a_call()
    first = await store.do(Accept(draft, sent=sent))
    assert isinstance(first, Change)
    assert await store.do(Accept(draft, sent=sent)) == SameCall(first.task)
    assert await store.do(Accept(a_call(id=draft.id, principal="dave"), sent=sent)) == IdTaken(draft.id)
    assert await store.do(Accept(a_call(id=draft.id, tool="other"), sent=sent)) == IdTaken(draft.id)


async def test_a_promoted_call_is_accepted_with_its_attempt(store: Store) -> None:
    answer = await store.do(Accept(a_call(), sent=AlreadySent("b1", "reports", START - 45_000)))
    assert isinstance(answer, Change)
    assert answer.task.state is TaskState.RUNNING
    assert answer.task.last_attempt is not None
    assert answer.task.last_attempt.sent_at_ms == START - 45_000


async def test_a_sent_call_cannot_wait_for_approval(store: Store) -> None:
    call = a_call()
    with pytest.raises(ValueError, match="already sent"):
        await store.do(Accept(call, sent=AlreadySent("b1", "reports", START), approval=asking(call)))


async def test_a_result_is_the_same_bytes_on_every_read_and_after_a_restart(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await finished(store)
    assert task.state is TaskState.COMPLETED
    assert [await store.ask(ResultBytes(task.id)) for _ in range(3)] == [RESULT] * 3
    await store.close()
    again = adapter.open()
    assert await again.ask(ResultBytes(task.id)) == RESULT
    found = await again.ask(FindTask(task.id))
    assert found is not None
    assert found.outcome == Outcome(OutcomeKind.RESULT, None, size=len(RESULT))
    await again.close()


async def test_a_large_result_is_stored_and_deleted_with_its_task(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    body = b'"' + b"x" * (3 << 20) + b'"'
    task = await finished(store, body)
    assert task.outcome is not None
    assert task.outcome.spill is not None
    assert await store.ask(ResultBytes(task.id)) == body
    adapter.clock.turn(600_000)
    swept = await sweep(store)
    assert swept.tasks == 1
    assert adapter.large_results() == 0
    await store.close()


async def test_an_expired_task_is_shown_as_expired_for_a_while(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await finished(store)
    adapter.clock.turn(600_000)
    assert await store.ask(FindTask(task.id)) is None
    gone = await store.ask(FindTask(task.id, include_expired=True))
    assert gone is not None
    assert gone.id == task.id
    assert await store.ask(ResultBytes(task.id)) is None
    assert [expired.id for expired in (await sweep(store)).expired] == [task.id]
    assert (await sweep(store)).expired == ()
    assert [event.kind for event in (await store.ask(EventsAfter("carol", 0))).events][-1] == "task_expired"
    assert (await store.ask(TasksPage("carol"))).tasks == ()
    shown = (await store.ask(TasksPage("carol", include_expired=True, arguments_up_to=4096))).tasks
    assert [(seen.id, seen.arguments) for seen in shown] == [(task.id, task.arguments)]
    adapter.clock.turn(SHOWN_AS_EXPIRED_MS)
    await sweep(store)
    assert await store.ask(FindTask(task.id, include_expired=True)) is None
    await store.close()


async def test_a_large_result_that_comes_too_late_leaves_no_file(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.do(Advance(task.id, h.Cancelled()))
    late = await store.do(Advance(task.id, h.ResultReceived(b"x" * (2 << 20))))
    assert late == AlreadyOver(TaskState.CANCELLED)
    assert adapter.large_results() == 0
    await store.close()


async def test_an_error_is_an_outcome_as_well(store: Store) -> None:
    task = await dispatched(store)
    error = b'{"code":-32000,"message":"gone"}'
    answer = await store.do(Advance(task.id, h.ErrorReceived(error, "gone", Executed.YES)))
    assert isinstance(answer, Change)
    assert answer.task.state is TaskState.FAILED
    assert await store.ask(ResultBytes(task.id)) == error


async def test_a_once_call_has_one_intent(store: Store) -> None:
    task = await dispatched(store, tool_class=ToolClass.ONCE)
    assert await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go)) == MayNotRepeat(1)
    await store.do(Advance(task.id, h.AttemptVoided()))
    again = await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(again, Intended)
    assert again.task.attempts == 2


async def test_every_attempt_is_kept_with_its_end_and_error_type(store: Store) -> None:
    task = await dispatched(store, tool_class=ToolClass.READ)
    await store.do(Advance(task.id, h.AttemptLost("upstream_timeout")))
    await store.do(Intend(task.id, byte_hash="b2", upstream="reports", recheck=just_go))
    await store.do(Advance(task.id, h.AttemptVoided("upstream_unreachable")))
    await store.do(Intend(task.id, byte_hash="b3", upstream="reports", recheck=just_go))
    found = await store.ask(AttemptsOf(task.id, 10))
    assert [(one.number, one.byte_hash, one.why, one.ended_ms is None) for one in found] == [
        (1, found[0].byte_hash, "upstream_timeout", False),
        (2, "b2", "upstream_unreachable", False),
        (3, "b3", "", True),
    ]
    assert found[1].state is AttemptState.VOID
    assert [one.number for one in await store.ask(AttemptsOf(task.id, 2))] == [2, 3]
    assert await store.ask(AttemptsOf("tg_unknown", 10)) == ()


async def test_one_of_fifty_concurrent_starts_of_a_task_may_send(store: Store) -> None:
    task = await accepted(store)
    answers = await asyncio.gather(
        *(store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) for _ in range(50))
    )
    assert sum(isinstance(answer, Intended) for answer in answers) == 1
    assert sum(isinstance(answer, MayNotRepeat) for answer in answers) == 49


async def test_a_cancelled_task_gets_no_intent(store: Store) -> None:
    task = await accepted(store)
    await store.do(Advance(task.id, h.Cancelled("enough")))
    assert await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) == AlreadyOver(
        TaskState.CANCELLED
    )


async def test_the_recheck_runs_in_the_transaction_of_the_intent_and_can_prevent_it(store: Store) -> None:
    task = await accepted(store)
    seen: list[tuple[str, int]] = []

    def look(stored: Task, approval: object, now_ms: int) -> Forbidden:
        seen.append((stored.id, now_ms))
        event = h.RunRefused(b'{"code":-32011}', "The policy no longer allows it.")
        return Forbidden(event, AuditEntry(0, "call_denied", reason="time is late", task_id=stored.id))

    answer = await store.do(Intend(task.id, byte_hash="b", upstream="u", recheck=look))
    assert isinstance(answer, StoppedByRecheck)
    assert (answer.task.state, answer.task.attempts) == (TaskState.REJECTED, 0)
    assert seen == [(task.id, START)]
    (row,) = [row for row in await store.ask(AuditRows()) if row.entry.event == "call_denied"]
    assert (row.entry.reason, row.entry.task_id) == ("time is late", task.id)


async def test_an_illegal_transition_is_refused_and_changes_nothing(store: Store) -> None:
    task = await accepted(store)
    refusal = await store.do(Advance(task.id, h.ResultReceived(RESULT)))
    assert refusal == NotPossible(TaskState.QUEUED, TransitionKind.RESULT_RECEIVED)
    assert await store.ask(FindTask(task.id)) == task


async def test_a_finished_task_cannot_be_changed(store: Store) -> None:
    task = await finished(store)
    assert await store.do(Advance(task.id, h.Cancelled())) == AlreadyOver(TaskState.COMPLETED)
    assert await store.ask(ResultBytes(task.id)) == RESULT


async def test_an_upstreams_task_id_is_kept_with_its_session(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    handle = UpstreamHandle("reports", "up-7", "session-3", Generation.STATEFUL)
    await store.do(Advance(task.id, h.UpstreamTaskKnown(handle)))
    await store.close()
    again = adapter.open()
    found = await again.ask(FindTask(task.id))
    assert found is not None
    assert found.upstream_handle == handle
    await again.close()


async def test_progress_is_visible_at_once_and_written_later(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    store.defer(NoteProgress(task.id, h.Noted("a third", 1, 3)))
    store.defer(NoteProgress(task.id, h.Noted(progress=2)))
    seen = await store.ask(FindTask(task.id))
    assert seen is not None
    assert (seen.status_message, seen.progress, seen.progress_total) == ("a third", 2, 3)
    await store.close()
    again = adapter.open()
    found = await again.ask(FindTask(task.id))
    assert found is not None
    assert (found.status_message, found.progress) == ("a third", 2)
    await again.close()


async def test_last_progress_before_the_end_is_stored_with_it(store: Store) -> None:
    """Reports wait for the next commit, which is usually that of the end."""
    task = await dispatched(store)
    store.defer(NoteProgress(task.id, h.Noted("half", 1, 2)))
    await store.do(KeepSecret("flush", b"1"))
    store.defer(NoteProgress(task.id, h.Noted("all of it", 2, 2)))
    ended = await store.do(Advance(task.id, h.ResultReceived(b"{}", message="done")))
    assert isinstance(ended, Change)
    await store.do(KeepSecret("flush", b"2"))
    found = await store.ask(FindTask(task.id))
    assert found is not None
    assert [(step.progress, step.message) for step in found.progress_steps] == [(1, "half"), (2, "all of it")]
    assert (found.state, found.progress, found.status_message) == (TaskState.COMPLETED, 2, "done")
    assert found.revision == ended.task.revision


async def test_progress_of_a_finished_task_is_ignored(store: Store) -> None:
    task = await finished(store)
    store.defer(NoteProgress(task.id, h.Noted("still here")))
    seen = await store.ask(FindTask(task.id))
    assert seen is not None
    assert seen.status_message is None
    await store.do(KeepSecret("flush", b"1"))
    assert await store.ask(FindTask(task.id)) == seen


async def test_a_cancellation_for_the_upstream_is_pending_until_delivered(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.do(Advance(task.id, h.Cancelled(error=b'{"code":1}')))
    await store.close()
    again = adapter.open()
    await again.do(Claim())
    assert [found.id for found in await again.ask(ClaimedTasks())] == [task.id]
    await again.do(CancelDelivered(task.id))
    assert await again.ask(ClaimedTasks()) == ()
    assert await again.ask(ResultBytes(task.id)) == b'{"code":1}'
    await again.do(CancelDelivered("tg_nothing"))
    await again.close()
