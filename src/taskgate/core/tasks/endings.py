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
    Cancelled,
    ContactLost,
    ErrorCame,
    RunRefused,
    TransitionEvent,
)
from taskgate.core.timestamps import iso


def outcome_unknown(task: Task) -> str:
    """What a caller reads when a call that may not be repeated was lost on the way."""
    attempt = task.last_attempt
    sent = iso(attempt.sent_at_ms if attempt is not None else task.updated_ms)
    return (
        f"Outcome unknown. Taskgate sent `{task.tool}` to `{task.server}` at {sent} and lost contact before a result "
        "arrived. The call may or may not have taken effect. It was not sent again because this tool is not known to "
        "be safe to repeat. "
        f"Check the target system before trying again. Ref {task.id}, attempt {task.attempts}."
    )


def gave_up_text(task: Task) -> str:
    """What a caller reads when a repeatable call was tried as often as is allowed."""
    return (
        f"Taskgate sent `{task.tool}` to `{task.server}` {_times(task.times_sent)} and never got a result. "
        "The tool is known to be safe to repeat, so you may try again. "
        f"Ref {task.id}."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def past_deadline_text(task: Task) -> str:
    """What a caller reads when a run took longer than its budget."""
    seconds = task.execution_budget_ms / 1000
    return (
        f"`{task.tool}` on `{task.server}` did not finish within {seconds:g} s and was cancelled. "
        f"It may have taken effect in part. Ref {task.id}."
    )


def stopped_between_rounds(task: Task, why: str) -> str:
    """What a caller reads when a call could not go on after its questions were answered."""
    return (
        f"`{task.tool}` on `{task.server}` had begun, asked for input, and could not be continued with the answers: {why} "
        f"What it did before it asked may have taken effect. Ref {task.id}."
    )


def restored_text(task: Task) -> str:
    """What a caller reads whose call waited in a store that was put back from a backup."""
    return (
        f"Outcome unknown. Taskgate found its store older than it had left it, as after a restored backup. `{task.tool}` on "
        f"`{task.server}` may have run since the backup was made, so it was not sent. Check the target system before trying "
        f"again. Ref {task.id}."
    )


def by_error(task: Task, error: TaskgateError) -> ErrorCame:
    """The run failed with an error of ours. Where an attempt may have reached the tool, a later refusal proves nothing."""
    executed = error.executed
    if executed is Executed.NO and task.may_have_been_sent:
        executed = Executed.MAYBE
    return ErrorCame(
        error_object(error, task.generation, task.correlation_id or task.id, executed), error.message, executed
    )


def refused(task: Task, error: TaskgateError) -> RunRefused | ErrorCame:
    """A rule, the policy or a changed fact forbids to send the call, or to send it again.

    A task that was sent before, or that has asked its person something, is past the states in which a run can be refused: it
    fails, and what was sent before may have taken effect.
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
    """The call was out and may not be repeated, and nothing tells what became of it."""
    text = outcome_unknown(task)
    error = UpstreamError("outcome_unknown", text, executed=Executed.MAYBE, data=_about(task))
    return ContactLost(_object(task, error), text)


def gave_up(task: Task) -> ErrorCame:
    """The call may be repeated, and was, as often as is allowed."""
    text = gave_up_text(task)
    return by_error(task, UpstreamError("upstream_unreachable", text, executed=Executed.MAYBE, data=_about(task)))


def lost(task: Task, error: UpstreamError) -> ErrorCame | ContactLost:
    """The call will not be sent again: what its last failure means, by what is known about it."""
    if not task.may_have_been_sent or error.executed is Executed.YES:
        return by_error(task, error)
    if task.between_rounds:
        return between_rounds(task, error)
    if error.error_type == "upstream_timeout":
        return past_deadline(task)
    return gave_up(task) if task.tool_class.may_repeat else unknown(task)


def between_rounds(task: Task, error: TaskgateError) -> ErrorCame:
    """The server answered what it was sent with questions, and the answers to them were not executed: done in part."""
    text = stopped_between_rounds(task, error.message)
    return by_error(task, UpstreamError(error.error_type, text, executed=Executed.MAYBE, data=_about(task)))


def after_restore(task: Task) -> ErrorCame:
    """The store was put back from a backup, and the call may have run since that was made."""
    text = restored_text(task)
    return by_error(task, UpstreamError("outcome_unknown", text, executed=Executed.MAYBE, data=_about(task)))


def past_deadline(task: Task) -> ErrorCame | ContactLost:
    """The run took longer than its budget: unknown for a call that may not be repeated, failed for the others."""
    text = past_deadline_text(task)
    executed = Executed.MAYBE if task.may_have_been_sent else Executed.NO
    error = UpstreamError("upstream_timeout", text, executed=executed, data=_about(task))
    return by_error(task, error) if task.tool_class.may_repeat else ContactLost(_object(task, error), text)


def after_approval(task: Task, approval: Approval) -> TransitionEvent | None:
    """What an approval that has just changed means for its task; None while it is open or when it was spent by a run."""
    match approval.state:
        case State.APPROVED:
            until = approval.valid_until_ms if approval.valid_until_ms is not None else approval.binding.expires_at_ms
            return ApprovalGranted(until)
        case State.DENIED:
            said = f": {approval.reason}" if approval.reason else "."
            text = f"The call was denied{said}"
            error = CallerError("approval_rejected", text, gate="approval", data=_about(task))
            return ApprovalDenied(_object(task, error), text)
        case State.EXPIRED:
            text = f"The approval expired: {approval.reason}. The tool was not run."
            error = CallerError("approval_expired", text, gate="approval", data=_about(task))
            return ApprovalExpired(_object(task, error), text)
        case State.INVALID:
            kind = "request_drift" if approval.reason.startswith("request_drift") else "policy_drift"
            text = "What was approved is no longer what would run, so it was not run. Ask again."
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
