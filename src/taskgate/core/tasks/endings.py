"""How a task ends without a result from its server: the event and the message for each kind of failure, denial and timeout."""

from __future__ import annotations

from typing import assert_never

from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.generations.error_codes import error_object
from taskgate.core.governance.approval import Approval, State
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    Cancelled,
    ContactLost,
    ErrorReceived,
    RunRefused,
    TransitionEvent,
)
from taskgate.core.timestamps import iso


def outcome_unknown_text(task: Task) -> str:
    """Message for a call that may not be repeated and whose connection was lost."""
    attempt = task.last_attempt
    sent = iso(attempt.sent_at_ms if attempt is not None else task.updated_ms)
    return (
        f"Outcome unknown. Taskgate sent `{task.tool}` to `{task.server}` at {sent} and lost contact before a result "
        "arrived. The call may or may not have taken effect. It was not sent again because this tool is not known to "
        "be safe to repeat. "
        f"Check the target system before trying again. Ref {task.id}, attempt {task.attempts}."
    )


def gave_up_text(task: Task) -> str:
    """Message for a repeatable call that reached the limit on attempts."""
    return (
        f"Taskgate sent `{task.tool}` to `{task.server}` {_times(task.times_sent)} and never got a result. "
        "The tool is known to be safe to repeat, so you may try again. "
        f"Ref {task.id}."
    )


def stopped_text(task: Task) -> str:
    """Message for a repeatable call that is not sent again after its gateway stopped."""
    return (
        f"Outcome unknown. Taskgate sent `{task.tool}` to `{task.server}` {_times(task.times_sent)}, and stopped itself before a "
        "result arrived. The tool is known to be safe to repeat, so you may try again. "
        f"Ref {task.id}."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def past_deadline_text(task: Task) -> str:
    """Message for a run that exceeded its time budget."""
    seconds = task.execution_budget_ms / 1000
    return (
        f"`{task.tool}` on `{task.server}` did not finish within {seconds:g} s and was cancelled. "
        f"It may have taken effect in part. Ref {task.id}."
    )


def stopped_between_rounds_text(task: Task, why: str) -> str:
    """Message for a call that could not continue after its questions were answered."""
    return (
        f"`{task.tool}` on `{task.server}` had begun, asked for input, and could not be continued with the answers: {why} "
        f"What it did before it asked may have taken effect. Ref {task.id}."
    )


def restored_text(task: Task) -> str:
    """Message for a call that was pending in a store that was restored from a backup."""
    return (
        f"Outcome unknown. Taskgate found its store older than it had left it, as after a restored backup. `{task.tool}` on "
        f"`{task.server}` may have run since the backup was made, so it was not sent. Check the target system before trying "
        f"again. Ref {task.id}."
    )


def by_error(task: Task, error: TaskgateError) -> ErrorReceived:
    """The run failed with an error of the gateway. If an attempt may have reached the tool, a later refusal proves
    nothing.
    """
    executed = error.executed
    if executed is Executed.NO and task.may_have_been_sent:
        executed = Executed.MAYBE
    return ErrorReceived(
        error_object(error, task.generation, task.correlation_id or task.id, executed), error.message, executed
    )


def refused(task: Task, error: TaskgateError) -> RunRefused | ErrorReceived:
    """A rule, the policy or a changed fact forbids sending the call, or sending it again.

    A run can no longer be refused if the task was sent before or has requested input: it fails, and what was sent
    before may have taken effect.
    """
    if task.between_rounds:
        return between_rounds(task, error)
    if task.may_have_been_sent:
        text = f"{error.message} It had been sent {_times(task.times_sent)} before and may have taken effect. Ref {task.id}."
        return by_error(task, UpstreamError(error.error_type, text, executed=Executed.MAYBE, data=_about(task)))
    if task.state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED):
        return by_error(task, error)
    return RunRefused(_object(task, error), error.message)


def unknown(task: Task) -> ContactLost:
    """The call was in flight and may not be repeated, and its outcome is not known."""
    text = outcome_unknown_text(task)
    error = UpstreamError("outcome_unknown", text, executed=Executed.MAYBE, data=_about(task))
    return ContactLost(_object(task, error), text)


def gave_up(task: Task) -> ErrorReceived:
    """The call may be repeated, and the limit on attempts is reached."""
    text = gave_up_text(task)
    return by_error(task, UpstreamError("upstream_unreachable", text, executed=Executed.MAYBE, data=_about(task)))


def stopped(task: Task) -> ErrorReceived:
    """The gateway stopped while a repeatable call was in flight, and the limit on attempts or their time is reached. Nothing is
    known against the server.
    """
    return by_error(
        task, UpstreamError("outcome_unknown", stopped_text(task), executed=Executed.MAYBE, data=_about(task))
    )


def lost(task: Task, error: UpstreamError) -> ErrorReceived | ContactLost:
    """The call is not sent again: derive the end from what its last failure proves."""
    if not task.may_have_been_sent or error.executed is Executed.YES:
        return by_error(task, error)
    if task.between_rounds:
        return between_rounds(task, error)
    if error.error_type == "upstream_timeout":
        return past_deadline(task)
    return gave_up(task) if task.tool_class.may_repeat else unknown(task)


def between_rounds(task: Task, error: TaskgateError) -> ErrorReceived:
    """The server responded with questions, and the answers were not executed: the call was executed in part."""
    text = stopped_between_rounds_text(task, error.message)
    return by_error(task, UpstreamError(error.error_type, text, executed=Executed.MAYBE, data=_about(task)))


def after_restore(task: Task) -> ErrorReceived:
    """The store was restored from a backup, and the call may have run after the backup was made."""
    text = restored_text(task)
    return by_error(task, UpstreamError("outcome_unknown", text, executed=Executed.MAYBE, data=_about(task)))


def past_deadline(task: Task) -> ErrorReceived | ContactLost:
    """The run exceeded its budget: unknown for a call that may not be repeated, failed for others."""
    text = past_deadline_text(task)
    executed = Executed.MAYBE if task.may_have_been_sent else Executed.NO
    error = UpstreamError("upstream_timeout", text, executed=executed, data=_about(task))
    return by_error(task, error) if task.tool_class.may_repeat else ContactLost(_object(task, error), text)


def after_recall(task: Task, approval: Approval) -> TransitionEvent | None:
    """Return the event that a recalled approval causes for its task: it waits for a decision again."""
    return ApprovalRequested(approval.id, approval.binding.expires_at_ms) if task.state is TaskState.APPROVED else None


def after_approval(task: Task, approval: Approval) -> TransitionEvent | None:
    """Return the event that a changed approval causes for its task; None while it is open or if it was used by a run."""
    match approval.state:
        case State.APPROVED:
            until = approval.valid_until_ms if approval.valid_until_ms is not None else approval.binding.expires_at_ms
            return ApprovalGranted(until)
        case State.DENIED:
            suffix = f": {approval.reason}" if approval.reason else "."
            text = f"The call was denied{suffix}"
            error = CallerError("approval_rejected", text, gate="approval", data=_about(task))
            return ApprovalDenied(_object(task, error), text)
        case State.EXPIRED:
            text = f"The approval expired: {approval.reason}. The tool was not run."
            error = CallerError("approval_expired", text, gate="approval", data=_about(task))
            return ApprovalExpired(_object(task, error), text)
        case State.INVALID:
            kind = "request_drift" if approval.reason.startswith("request_drift") else "policy_drift"
            text = "The call differs from what was approved, so it was not run. Call again."
            return refused(task, CallerError(kind, text, gate="approval", data=_about(task)))
        case State.CANCELLED:
            return Cancelled(approval.reason or None)
        case State.OPEN | State.USED:
            return None
        case _:
            assert_never(approval.state)


def _about(task: Task) -> dict[str, str]:
    return {"tool": task.wire_name, "task_id": task.id}


def _object(task: Task, error: TaskgateError) -> bytes:
    return error_object(error, task.generation, task.correlation_id or task.id, error.executed)
