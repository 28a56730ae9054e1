from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Approval, Binding, State
from taskgate.core.tasks import endings
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState, Task
from taskgate.core.tasks.transition import apply
from taskgate.core.tool_class import ToolClass

RUNNING = a_task(state=TaskState.RUNNING, last_attempt=an_attempt(), correlation_id="c-1")
WAITING = a_task(state=TaskState.AWAITING_APPROVAL, approval_id="ap_1")


def approval(state: State, reason: str = "", valid_until_ms: int | None = None) -> Approval:
    binding = Binding("ann", "reports", "build", "d1", "def", "rev", NOW + 1000)
    return Approval("ap_1", "ops", "rules[0]", binding, NOW, state, reason=reason, valid_until_ms=valid_until_ms)


def decoded(error: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(error)
    return value


def test_an_unknown_outcome_has_executed_maybe_in_every_projection() -> None:
    ending = endings.unknown(RUNNING)
    after = apply(RUNNING, ending, NOW)
    assert isinstance(after, Task)
    assert (after.state, after.executed) == (TaskState.OUTCOME_UNKNOWN, Executed.MAYBE)
    error = decoded(ending.error)
    assert error["message"] == ending.message
    assert error["data"]["executed"] == "maybe"
    assert error["data"]["error_type"] == "outcome_unknown"
    assert error["data"]["correlation_id"] == "c-1"


@pytest.mark.parametrize("tool_class", list(ToolClass))
def test_a_call_past_its_deadline_is_failed_or_unknown_by_class(tool_class: ToolClass) -> None:
    task = msgspec.structs.replace(RUNNING, tool_class=tool_class)
    after = apply(task, endings.past_deadline(task), NOW)
    assert isinstance(after, Task)
    assert after.state is (TaskState.OUTCOME_UNKNOWN if tool_class is ToolClass.ONCE else TaskState.FAILED)
    assert after.executed is Executed.MAYBE


@pytest.mark.parametrize(
    ("sent", "tool_class", "kind", "error_type", "state"),
    [
        (False, ToolClass.ONCE, "upstream_unreachable", "upstream_unreachable", TaskState.FAILED),
        (True, ToolClass.ONCE, "upstream_unreachable", "outcome_unknown", TaskState.OUTCOME_UNKNOWN),
        (True, ToolClass.ONCE, "upstream_timeout", "upstream_timeout", TaskState.OUTCOME_UNKNOWN),
        (True, ToolClass.READ, "upstream_unreachable", "upstream_unreachable", TaskState.FAILED),
        (True, ToolClass.READ, "upstream_timeout", "upstream_timeout", TaskState.FAILED),
    ],
)
def test_a_lost_connection_ends_a_call_by_its_evidence(
    sent: bool, tool_class: ToolClass, kind: str, error_type: str, state: TaskState
) -> None:
    attempt = an_attempt() if sent else None
    task = a_task(state=TaskState.RUNNING, tool_class=tool_class, last_attempt=attempt)
    ending = endings.lost(task, UpstreamError(kind, "gone"))
    after = apply(task, ending, NOW)
    assert isinstance(after, Task)
    assert (after.state, decoded(ending.error)["data"]["error_type"]) == (state, error_type)
    assert decoded(ending.error)["data"]["executed"] == ("maybe" if sent else "no")
    assert decoded(ending.error)["data"]["correlation_id"] == task.id


def test_giving_up_is_a_failure_that_may_be_tried_again() -> None:
    ending = endings.gave_up(RUNNING)
    assert decoded(ending.error)["data"]["error_type"] == "upstream_unreachable"
    assert ending.executed is Executed.MAYBE


def test_an_own_error_has_the_codes_of_each_generation() -> None:
    error = CallerError("policy_drift", "The policy changed.")
    stateful = endings.refused(a_task(generation=Generation.STATEFUL), error)
    stateless = endings.refused(a_task(generation=Generation.STATELESS), error)
    assert (decoded(stateful.error)["code"], decoded(stateless.error)["code"]) == (-32011, -32602)
    failed = endings.by_error(a_task(), UpstreamError("upstream_unreachable", "Nobody there."))
    assert (failed.message, failed.executed) == ("Nobody there.", Executed.NO)


SENT = an_attempt()
VOID = an_attempt(state=AttemptState.VOID)
REFUSED_IN = [
    pytest.param({"state": TaskState.QUEUED}, TaskState.REJECTED, "no", id="never sent"),
    pytest.param({"state": TaskState.APPROVED}, TaskState.REJECTED, "no", id="approved"),
    pytest.param({"state": TaskState.RUNNING}, TaskState.FAILED, "no", id="asked its person before it was sent"),
    pytest.param(
        {"state": TaskState.RUNNING, "last_attempt": VOID}, TaskState.FAILED, "no", id="proven not to have run"
    ),
    pytest.param({"state": TaskState.INPUT_REQUIRED}, TaskState.FAILED, "no", id="asks its person"),
    pytest.param(
        {"state": TaskState.RUNNING, "last_attempt": SENT, "sends": 1, "unanswered_sends": 1},
        TaskState.FAILED,
        "maybe",
        id="lost on the way before",
    ),
    pytest.param(
        {"state": TaskState.RUNNING, "last_attempt": SENT, "sends": 1, "unanswered_sends": 0},
        TaskState.FAILED,
        "maybe",
        id="between two rounds",
    ),
]


@pytest.mark.parametrize(("given", "state", "executed"), REFUSED_IN)
def test_a_refusal_ends_a_task_in_every_state(given: dict[str, Any], state: TaskState, executed: str) -> None:
    task = a_task(**given)
    ending = endings.refused(task, CallerError("policy_drift", "The policy changed."))
    after = apply(task, ending, NOW)
    assert isinstance(after, Task)
    assert after.state is state
    data = decoded(ending.error)["data"]
    assert (data["error_type"], data["executed"]) == ("policy_drift", executed)
    assert after.executed == executed


def test_a_given_approval_continues_the_task() -> None:
    assert endings.after_approval(WAITING, approval(State.APPROVED, valid_until_ms=NOW + 9)) == h.ApprovalGranted(
        NOW + 9
    )
    assert endings.after_approval(WAITING, approval(State.APPROVED)) == h.ApprovalGranted(NOW + 1000)


ENDS = [
    (State.DENIED, "not today", TaskState.REJECTED, "The call was denied: not today", "approval_rejected"),
    (State.DENIED, "", TaskState.REJECTED, "The call was denied.", "approval_rejected"),
    (
        State.EXPIRED,
        "nobody decided in time",
        TaskState.EXPIRED,
        "The approval expired: nobody decided in time. The tool was not run.",
        "approval_expired",
    ),
    (State.INVALID, "policy_drift: x", TaskState.REJECTED, None, "policy_drift"),
    (State.INVALID, "request_drift: x", TaskState.REJECTED, None, "request_drift"),
]


@pytest.mark.parametrize("state, reason, ends_as, text, error_type", ENDS)
def test_a_denied_or_expired_approval_ends_the_task_without_execution(
    state: State, reason: str, ends_as: TaskState, text: str | None, error_type: str
) -> None:
    ending = endings.after_approval(WAITING, approval(state, reason))
    assert ending is not None
    after = apply(WAITING, ending, NOW)
    assert isinstance(after, Task)
    assert (after.state, after.executed) == (ends_as, Executed.NO)
    assert text is None or after.status_message == text
    assert after.outcome is not None
    assert after.outcome.body is not None
    assert decoded(after.outcome.body)["data"]["error_type"] == error_type


def test_a_withdrawn_approval_cancels_and_an_open_or_used_one_changes_nothing() -> None:
    assert endings.after_approval(WAITING, approval(State.CANCELLED, "gave up")) == h.Cancelled("gave up")
    assert endings.after_approval(WAITING, approval(State.OPEN)) is None
    assert endings.after_approval(WAITING, approval(State.USED)) is None


def test_task_waits_for_approval_again_after_a_recall() -> None:
    reopened = approval(State.OPEN)
    granted = apply(WAITING, h.ApprovalGranted(NOW + 9), NOW)
    assert isinstance(granted, Task)
    event = endings.after_recall(granted, reopened)
    assert event == h.ApprovalRequested(reopened.id, reopened.binding.expires_at_ms)
    again = apply(granted, event, NOW)
    assert isinstance(again, Task)
    assert again.state is TaskState.AWAITING_APPROVAL
    assert endings.after_recall(WAITING, reopened) is None


def test_a_call_found_in_a_restored_store_is_outcome_unknown() -> None:
    ended = endings.after_restore(a_task())
    assert ended.executed is Executed.MAYBE
    assert decoded(ended.error)["data"]["error_type"] == "outcome_unknown"
    assert "restored backup" in decoded(ended.error)["message"]
