from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.errors import Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.origin import AlreadySent, HeldForApproval, create
from taskgate.core.tasks.projections_stateful import stateful_status, status_message
from taskgate.core.tasks.projections_stateless import stateless_status
from taskgate.core.tasks.projections_tools import STATUSES, shown_status
from taskgate.core.tasks.projections_vendor import vendor_status
from taskgate.core.tasks.state import INITIAL_STATES, MOVES, OPEN, TERMINAL, TaskState, TransitionKind, mermaid
from taskgate.core.tasks.task import AttemptState, OutcomeKind, ProgressStep, Task, UpstreamHandle
from taskgate.core.tasks.task_events import TaskEvent, event_data, event_of
from taskgate.core.tasks.transition import AlreadyOver, MayNotRepeat, NotPossible, apply
from taskgate.core.tool_class import ToolClass

HANDLE = UpstreamHandle("reports", "up-1", "s-1", Generation.STATEFUL)
DISPATCHED = h.Dispatched(fence=1, byte_hash="b1", upstream="reports")

EVERY_HAPPENING: list[h.TransitionEvent] = [
    h.ApprovalRequested("ap_1", NOW + 1000),
    h.ApprovalGranted(NOW + 2000),
    h.ApprovalDenied(b'{"code":1}', "denied"),
    h.ApprovalExpired(b'{"code":2}'),
    h.RunRefused(b'{"code":3}', "no longer allowed"),
    DISPATCHED,
    h.AttemptVoided(),
    h.AttemptLost("upstream_timeout"),
    h.UpstreamTaskKnown(HANDLE),
    h.Noted("half way", 0.5, 1.0),
    h.Noted(),
    h.InputRequested(("q1", "q2"), "two questions", b'"state"'),
    h.InputRequested(("q2", "q3")),
    h.InputSettled(("q1",)),
    h.InputSettled(("q1", "q2", "q3"), "answered"),
    h.ResultReceived(b'{"content":[]}'),
    h.ResultReceived(b'{"content":[],"isError":true}', is_error=True),
    h.ErrorReceived(b'{"code":-1}', "broken", Executed.YES),
    h.ContactLost(b'{"code":4}', "unknown"),
    h.Cancelled("changed my mind"),
    h.Cancelled(error=b'{"code":5}'),
]


def moved(task: Task, *events: h.TransitionEvent, now: int = NOW + 1) -> Task:
    for event in events:
        after = apply(task, event, now)
        assert isinstance(after, Task), after
        task = after
    return task


def test_the_table_has_every_state_and_final_states_have_no_transitions() -> None:
    assert set(MOVES) == set(TaskState)
    assert all(not MOVES[state] for state in TERMINAL)
    assert {kind for moves in MOVES.values() for kind in moves} == set(TransitionKind)


def test_every_state_can_be_reached() -> None:
    assert {after for moves in MOVES.values() for after in moves.values()} | set(INITIAL_STATES) == set(TaskState)


def test_every_open_state_can_be_cancelled() -> None:
    assert all(MOVES[state][TransitionKind.CANCELLED] is TaskState.CANCELLED for state in OPEN)


def test_a_call_without_approval_runs_to_its_result() -> None:
    done = moved(a_task(), DISPATCHED, h.ResultReceived(b'{"content":[]}'), now=NOW + 5)
    assert done.state is TaskState.COMPLETED
    assert done.outcome is not None
    assert done.outcome.body == b'{"content":[]}'
    assert done.finished_ms == NOW + 5
    assert done.revision == 3
    assert done.last_attempt is not None
    assert done.last_attempt.state is AttemptState.ANSWERED


def test_the_execution_deadline_counts_from_the_first_attempt() -> None:
    first = moved(a_task(tool_class=ToolClass.READ), DISPATCHED, now=NOW + 10)
    assert first.execution_deadline_ms == NOW + 10 + 60_000
    assert moved(first, DISPATCHED, now=NOW + 500).execution_deadline_ms == NOW + 10 + 60_000


@pytest.mark.parametrize("tool_class", list(ToolClass))
def test_only_repeatable_classes_are_sent_again_and_at_most_three_times(tool_class: ToolClass) -> None:
    task = moved(a_task(tool_class=tool_class), DISPATCHED)
    sent = 1
    while isinstance(after := apply(task, DISPATCHED, NOW), Task):
        task, sent = after, sent + 1
    assert isinstance(after, MayNotRepeat)
    assert sent == (1 if tool_class is ToolClass.ONCE else 3)


def test_an_attempt_proven_void_may_be_followed_by_another_for_every_class() -> None:
    task = moved(a_task(tool_class=ToolClass.ONCE), DISPATCHED, h.AttemptVoided(), DISPATCHED)
    assert task.attempts == 2
    assert isinstance(apply(task, DISPATCHED, NOW), MayNotRepeat)


def test_a_call_with_an_upstream_task_is_never_sent_again() -> None:
    task = moved(a_task(tool_class=ToolClass.READ), DISPATCHED, h.UpstreamTaskKnown(HANDLE))
    assert task.upstream_handle == HANDLE
    assert isinstance(apply(task, DISPATCHED, NOW), MayNotRepeat)


def test_a_call_whose_upstream_task_is_unknown_is_recovered_by_its_class() -> None:
    forgotten = (DISPATCHED, h.UpstreamTaskKnown(HANDLE), h.UpstreamTaskKnown(None))
    assert moved(a_task(tool_class=ToolClass.READ), *forgotten, DISPATCHED).attempts == 2
    assert isinstance(apply(moved(a_task(tool_class=ToolClass.ONCE), *forgotten), DISPATCHED, NOW), MayNotRepeat)


def test_voiding_without_an_attempt_changes_nothing() -> None:
    assert moved(a_task(state=TaskState.RUNNING), h.AttemptVoided()).last_attempt is None


def test_end_of_each_attempt_has_its_time_and_error_type() -> None:
    lost = moved(a_task(tool_class=ToolClass.READ), DISPATCHED, h.AttemptLost("upstream_timeout"), now=NOW + 5)
    assert lost.last_attempt is not None
    assert (lost.last_attempt.ended_ms, lost.last_attempt.why) == (NOW + 5, "upstream_timeout")
    assert lost.may_have_been_sent
    again = moved(lost, DISPATCHED, now=NOW + 6)
    assert again.last_attempt is not None
    assert (again.last_attempt.number, again.last_attempt.ended_ms) == (2, None)
    void = moved(again, h.AttemptVoided("upstream_unreachable"), now=NOW + 7)
    assert void.last_attempt is not None
    assert (void.last_attempt.ended_ms, void.last_attempt.why) == (NOW + 7, "upstream_unreachable")


def test_attempt_ends_with_the_round_or_with_the_task_unless_it_had_ended() -> None:
    asked = moved(a_task(), DISPATCHED, h.InputRequested(("q1",), ends_round=True), now=NOW + 3)
    assert asked.last_attempt is not None
    assert asked.last_attempt.ended_ms == NOW + 3
    done = moved(a_task(), DISPATCHED, h.ResultReceived(b"{}"), now=NOW + 4)
    assert done.last_attempt is not None
    assert done.last_attempt.ended_ms == NOW + 4
    lost = moved(a_task(tool_class=ToolClass.READ), DISPATCHED, h.AttemptLost("upstream_timeout"), now=NOW + 5)
    cancelled = moved(lost, h.Cancelled(), now=NOW + 9)
    assert cancelled.last_attempt is not None
    assert cancelled.last_attempt.ended_ms == NOW + 5


def test_reports_of_progress_are_kept_with_their_times() -> None:
    task = moved(a_task(), DISPATCHED, h.Noted("half", 5.0, 10.0), now=NOW + 3)
    task = moved(task, h.Noted("a text without progress"), h.Noted(progress=8.0), now=NOW + 4)
    assert task.progress_steps == (
        ProgressStep(NOW + 3, 5.0, 10.0, "half"),
        ProgressStep(NOW + 4, 8.0, 10.0),
    )


def test_a_denied_task_states_that_the_tool_did_not_run() -> None:
    denied = moved(a_task(), h.ApprovalRequested("ap_1", NOW + 9), h.ApprovalDenied(b"{}", "denied by ann"))
    assert (denied.state, denied.executed) == (TaskState.REJECTED, Executed.NO)


def test_an_approved_task_may_wait_for_approval_again() -> None:
    again = moved(
        a_task(),
        h.ApprovalRequested("ap_1", NOW + 9),
        h.ApprovalGranted(NOW + 90),
        h.ApprovalRequested("ap_2", NOW + 99),
    )
    assert (again.state, again.approval_id) == (TaskState.AWAITING_APPROVAL, "ap_2")


def test_cancelling_states_whether_the_call_was_sent() -> None:
    early = moved(a_task(), h.Cancelled())
    assert (early.executed, early.cancel_unsent) == (Executed.NO, False)
    late = moved(a_task(), DISPATCHED, h.Cancelled("enough", b'{"code":1}'))
    assert (late.executed, late.cancel_unsent) == (Executed.MAYBE, True)
    assert late.status_message == "Cancelled: enough. The call had been sent and may have taken effect."
    assert late.outcome is not None
    assert late.outcome.kind is OutcomeKind.ERROR


def test_the_task_runs_again_when_its_last_question_is_answered() -> None:
    task = moved(a_task(), DISPATCHED, h.InputRequested(("a", "b"), "who?", b'"s"'), h.InputRequested(("b", "c")))
    assert task.question_keys == ("a", "b", "c")
    assert task.request_state == b'"s"'
    task = moved(task, h.InputSettled(("a", "c")))
    assert (task.state, task.question_keys, task.status_message) == (TaskState.INPUT_REQUIRED, ("b",), "who?")
    task = moved(task, h.InputSettled(("b",), "thanks"))
    assert (task.state, task.question_keys, task.status_message) == (TaskState.RUNNING, (), "thanks")


def test_progress_without_text_keeps_the_old_text() -> None:
    task = moved(a_task(), DISPATCHED, h.Noted("half way", 1, 2), h.Noted(progress=1.5))
    assert (task.status_message, task.progress, task.progress_total) == ("half way", 1.5, 2)


@pytest.mark.parametrize("tool_class", [ToolClass.READ, ToolClass.REPEATABLE, ToolClass.KEYED])
def test_a_lost_connection_of_a_repeatable_call_is_a_failure_and_not_unknown(tool_class: ToolClass) -> None:
    lost = moved(a_task(tool_class=tool_class), DISPATCHED, h.ContactLost(b"{}", "lost"))
    assert (lost.state, lost.executed) == (TaskState.FAILED, Executed.MAYBE)


def test_the_outcome_of_an_unsent_call_is_not_unknown() -> None:
    lost = moved(a_task(), DISPATCHED, h.AttemptVoided(), h.ContactLost(b"{}", "lost"))
    assert (lost.state, lost.executed) == (TaskState.FAILED, Executed.NO)


def test_a_transition_that_is_not_in_the_table_is_refused_with_its_name() -> None:
    refusal = apply(a_task(), h.ResultReceived(b"{}"), NOW)
    assert refusal == NotPossible(TaskState.QUEUED, TransitionKind.RESULT_RECEIVED)


def test_a_finished_task_refuses_everything() -> None:
    done = moved(a_task(), h.Cancelled())
    assert all(apply(done, each, NOW) == AlreadyOver(TaskState.CANCELLED) for each in EVERY_HAPPENING)


BIRTHS = [None, AlreadySent("b1", "reports", NOW - 50), HeldForApproval("ap_1", 1000)]


@given(
    st.sampled_from(BIRTHS),
    st.sampled_from(list(ToolClass)),
    st.lists(st.sampled_from(EVERY_HAPPENING), max_size=12),
)
def test_any_order_of_events_leaves_a_legal_state_and_final_states_are_final(
    creation: AlreadySent | HeldForApproval | None, tool_class: ToolClass, events: list[h.TransitionEvent]
) -> None:
    draft = a_task(tool_class=tool_class)
    task = create(draft, creation, now_ms=NOW, owner="node", fence=7)
    possible_runs = 1 if task.may_have_been_sent else 0
    for at, event in enumerate(events, start=NOW):
        after = apply(task, event, at)
        if not isinstance(after, Task):
            continue
        assert not task.state.is_terminal
        assert after.state in MOVES[task.state].values()
        assert after.revision == task.revision + 1
        possible_runs += isinstance(event, h.Dispatched)
        possible_runs -= isinstance(event, h.AttemptVoided) and task.may_have_been_sent
        check_shown(task, after)
        task = after
    assert (task.finished_ms is not None) == task.state.is_terminal
    if tool_class is ToolClass.ONCE:
        assert possible_runs <= 1
    if task.state is TaskState.OUTCOME_UNKNOWN:
        assert tool_class is ToolClass.ONCE
        assert possible_runs == 1
    if task.state in (TaskState.REJECTED, TaskState.EXPIRED):
        assert task.executed is Executed.NO
        assert task.attempts == 0


def check_shown(before: Task, task: Task) -> None:
    stateful = {"working", "input_required", "completed", "failed", "cancelled"}
    assert stateful_status(task) in stateful
    assert stateless_status(task) in stateful
    assert shown_status(task, task.updated_ms) in STATUSES
    assert vendor_status(task) in {"pending", "working", "completed", "failed", "cancelled"}
    if stateless_status(task) == "input_required":
        assert task.question_keys
    if stateful_status(task) == "failed":
        assert status_message(task)
    event = event_of(before, task)
    assert (event is None) == (before.state is task.state)


def test_a_promoted_call_is_created_running_with_its_attempt() -> None:
    task = create(a_task(), AlreadySent("b1", "reports", NOW - 50), now_ms=NOW, owner="n", fence=7)
    assert task.state is TaskState.RUNNING
    assert task.last_attempt == an_attempt(fence=7, sent_at_ms=NOW - 50)
    assert task.execution_deadline_ms == NOW - 50 + 60_000


def test_a_sent_later_round_keeps_its_request_state() -> None:
    sent = AlreadySent("b1", "reports", NOW - 50, b'"first"')
    task = create(a_task(), sent, now_ms=NOW, owner="n", fence=7)
    assert (task.request_state, task.between_rounds) == (b'"first"', False)


def test_a_call_without_approval_is_created_queued() -> None:
    assert create(a_task(), None, now_ms=NOW, owner="n", fence=7).state is TaskState.QUEUED


def test_a_round_ends_once_regardless_of_its_questions() -> None:
    once = moved(a_task(), DISPATCHED, h.InputRequested(("a",), ends_round=True))
    again = moved(once, h.InputRequested(("b",), ends_round=True))
    assert again.question_keys == ("a", "b")
    assert (again.last_attempt, again.unanswered_sends) == (once.last_attempt, 0)
    assert again.last_attempt is not None
    assert again.last_attempt.state is AttemptState.ANSWERED


def test_a_call_that_needs_approval_is_created_waiting() -> None:
    task = create(a_task(), HeldForApproval("ap_1", 1000), now_ms=NOW, owner="n", fence=7)
    assert (task.state, task.approval_deadline_ms) == (TaskState.AWAITING_APPROVAL, NOW + 1000)
    assert task.status_message == "Awaiting approval"


def test_events_have_the_names_that_callers_see() -> None:
    queued = a_task()
    running = moved(queued, DISPATCHED)
    assert event_of(None, queued) is TaskEvent.CREATED
    assert event_of(queued, queued) is None
    assert event_of(queued, running) is TaskEvent.STATUS
    assert event_of(running, moved(running, h.ResultReceived(b"{}"))) is TaskEvent.COMPLETED
    assert event_of(running, moved(running, h.ResultReceived(b"{}", is_error=True))) is TaskEvent.FAILED
    assert event_of(running, moved(running, h.ContactLost(b"{}", "lost"))) is TaskEvent.FAILED
    assert event_of(queued, moved(queued, h.Cancelled())) is TaskEvent.CANCELLED
    waiting = moved(queued, h.ApprovalRequested("ap_1", NOW))
    assert event_of(waiting, moved(waiting, h.ApprovalExpired(b"{}"))) is TaskEvent.EXPIRED


def test_an_event_contains_names_and_state_but_no_arguments() -> None:
    data = event_data(a_task(status_message="Awaiting approval"))
    assert data == {"task_id": a_task().id, "tool": "build", "state": "queued", "message": "Awaiting approval"}
    assert "message" not in event_data(a_task())


def test_the_diagram_shows_every_state_and_every_way_in_and_out() -> None:
    drawn = mermaid()
    assert drawn.startswith("stateDiagram-v2\n")
    for state in TaskState:
        assert f"    {state} --> [*]\n" in drawn if state.is_terminal else f"    {state} --> cancelled" in drawn
    assert "    [*] --> queued\n" in drawn
    assert "noted" not in drawn
