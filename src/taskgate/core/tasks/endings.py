"""The ends of a task that nobody answered: errors, deadlines, and what the next owner does with what a crash left."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, assert_never

import msgspec

from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.generations import Generation, error_object
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
    may_send,
)

# The sentences about calls whose effect is not known, and about cancelled and expired ones. Plain text for people.


def iso(ms: int) -> str:
    """A stored time as ISO 8601 in UTC with milliseconds."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """Most times that are shown lie in the same few seconds, and to write one out costs as much as the rest of a task's answer."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


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


# What time and a crash do to tasks: their three clocks, and what the next owner does with what it finds.

# The three clocks of a task: approval deadline, execution deadline, and how long a finished task is kept.
#
# Expiry is a fact that follows from stored times; it is computed when a task is read or swept, and no timer in a
# process carries it. A task that is still open is never forgotten at its ttl.

DEFAULT_TTL_MS: Final = 600_000
MAX_TTL_MS: Final = 86_400_000
SHOWN_AS_EXPIRED_MS: Final = 3_600_000
"""How long after its result is gone a task can still be seen, as expired."""
RESEND_WINDOW_MS: Final = 600_000


class Ttl(msgspec.Struct, frozen=True):
    """A ttl as it will be honoured and reported; `clamped` asks for a warning in the log."""

    ms: int
    clamped: bool = False


def read_ttl(asked: Any, *, default_ms: int = DEFAULT_TTL_MS, max_ms: int = MAX_TTL_MS) -> Ttl:
    """A caller's `ttl`: absent gives the default, too much is clamped, anything but a positive whole number is an
    error.
    """
    if asked is None:
        return Ttl(min(default_ms, max_ms))
    if isinstance(asked, bool) or not isinstance(asked, int) or asked <= 0:
        raise CallerError(
            "invalid_params",
            "task.ttl must be a positive whole number of milliseconds. Leave it out to get the default.",
            data={"max_ttl_ms": max_ms},
        )
    return Ttl(min(asked, max_ms), clamped=asked > max_ms)


def kept_until_ms(task: Task) -> int | None:
    """Up to when a finished task and its result can be read; None while it is open.

    The ttl counts from the creation, as MCP says, but a call that took longer than its ttl is worth reading too.
    """
    if task.finished_ms is None:
        return None
    return max(task.created_ms + task.ttl_ms, task.finished_ms + task.keep_result_ms)


def is_gone(task: Task, now_ms: int) -> bool:
    """Whether a reader must treat the task as deleted, swept or not."""
    until = kept_until_ms(task)
    return until is not None and now_ms >= until


def approval_is_over(task: Task, now_ms: int) -> bool:
    """Nobody decided in time, or the decision was not used while it was good."""
    waiting = task.state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
    return waiting and task.approval_deadline_ms is not None and now_ms >= task.approval_deadline_ms


def execution_is_over(task: Task, now_ms: int) -> bool:
    """The run took longer than its budget: the upstream is to be cancelled and the task ends by its class."""
    running = task.state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED)
    return running and task.execution_deadline_ms is not None and now_ms >= task.execution_deadline_ms


def try_until_ms(task: Task) -> int | None:
    """Up to when a failed try may be followed by another: what was certainly never sent, until its approval or its ttl is over;
    what was sent, until the end of its execution.
    """
    if task.may_have_been_sent:
        return task.execution_deadline_ms
    until = task.created_ms + task.ttl_ms
    return until if task.approval_deadline_ms is None else min(until, task.approval_deadline_ms)


def may_resend_until_ms(task: Task) -> int | None:
    """Up to when a repeatable call may be sent again, counted from the last attempt; None if it was never sent."""
    return None if task.last_attempt is None else task.last_attempt.sent_at_ms + RESEND_WINDOW_MS


class RecoveryAction(StrEnum):
    """The next owner's move."""

    RUN = "run"
    KEEP_WAITING_FOR_APPROVAL = "keep_waiting_for_approval"
    EXPIRE_APPROVAL = "expire_approval"
    RECHECK_THEN_RUN = "recheck_then_run"
    POLL_UPSTREAM = "poll_upstream"
    RESEND = "resend"
    REPORT_UNKNOWN = "report_unknown"
    REPORT_FAILED = "report_failed"
    KEEP_WAITING_FOR_INPUT = "keep_waiting_for_input"
    WITHDRAW_THEN_RESEND = "withdraw_then_resend"
    WITHDRAW_THEN_REPORT_UNKNOWN = "withdraw_then_report_unknown"
    WITHDRAW_THEN_REPORT_FAILED = "withdraw_then_report_failed"
    TELL_UPSTREAM_CANCELLED = "tell_upstream_cancelled"
    LEAVE_TO_A_PERSON = "leave_to_a_person"
    NOTHING = "nothing"


_AFTER_WITHDRAWAL: Final = {
    RecoveryAction.RESEND: RecoveryAction.WITHDRAW_THEN_RESEND,
    RecoveryAction.REPORT_UNKNOWN: RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    RecoveryAction.REPORT_FAILED: RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
}


def ends_at_once(task: Task, now_ms: int, *, restored: bool = False) -> TransitionEvent | None:
    """What ends a task that its next owner can only end; None for one that it runs, follows, asks about or leaves alone."""
    match next_action(task, now_ms, restored=restored):
        case RecoveryAction.LEAVE_TO_A_PERSON:
            return after_restore(task)
        case RecoveryAction.REPORT_UNKNOWN | RecoveryAction.REPORT_FAILED:
            return contact_lost(task)
        case _:
            return None


def contact_lost(task: Task) -> ErrorCame | ContactLost:
    """The gateway that had sent the call is gone, and with it the answer."""
    text = f"Contact with {task.server} was lost."
    return lost(task, UpstreamError("upstream_unreachable", text, executed=Executed.MAYBE))


def next_action(task: Task, now_ms: int, *, restored: bool = False) -> RecoveryAction:
    """The row of the recovery table that fits this task. In a store that was put back from a backup nothing that may run only
    once is run: it may have run after the backup was made.
    """
    if restored and _may_be_outdated(task):
        return RecoveryAction.LEAVE_TO_A_PERSON
    match task.state:
        case TaskState.QUEUED:
            return RecoveryAction.RUN
        case TaskState.AWAITING_APPROVAL | TaskState.APPROVED:
            return _by_approval(task, now_ms)
        case TaskState.RUNNING:
            return _by_attempt(task, now_ms)
        case TaskState.INPUT_REQUIRED:
            return _by_question(task, now_ms)
        case TaskState.CANCELLED if task.cancel_owed:
            return RecoveryAction.TELL_UPSTREAM_CANCELLED
        case _:
            return RecoveryAction.NOTHING


def _may_be_outdated(task: Task) -> bool:
    """Whether something after the backup may forbid to go on with the task: it may have run, or its approval been denied."""
    if task.state.is_terminal or task.upstream_handle is not None:
        return False
    return not task.tool_class.may_repeat or task.state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)


def _by_approval(task: Task, now_ms: int) -> RecoveryAction:
    if approval_is_over(task, now_ms):
        return RecoveryAction.EXPIRE_APPROVAL
    if task.state is TaskState.APPROVED:
        return RecoveryAction.RECHECK_THEN_RUN
    return RecoveryAction.KEEP_WAITING_FOR_APPROVAL


def _by_attempt(task: Task, now_ms: int) -> RecoveryAction:
    if task.upstream_handle is not None:
        return RecoveryAction.POLL_UPSTREAM
    if task.between_rounds and task.request_state is not None:
        # Its questions are answered, and the answers have not been sent.
        return RecoveryAction.KEEP_WAITING_FOR_INPUT
    return _by_class(task, now_ms)


def _by_class(task: Task, now_ms: int) -> RecoveryAction:
    """The call is out, or may be, and nothing tells us what became of it."""
    if task.times_unanswered == 0:
        return RecoveryAction.RESEND
    if not task.tool_class.may_repeat:
        return RecoveryAction.REPORT_UNKNOWN
    until = may_resend_until_ms(task)
    in_time = until is not None and now_ms < until and not execution_is_over(task, now_ms)
    return RecoveryAction.RESEND if may_send(task) and in_time else RecoveryAction.REPORT_FAILED


def _by_question(task: Task, now_ms: int) -> RecoveryAction:
    """A stateless upstream does not mind who brings the answer; a stateful one lost its open request with our
    process.
    """
    handle = task.upstream_handle
    if task.request_state is not None or (handle is not None and handle.generation is Generation.STATELESS):
        return RecoveryAction.KEEP_WAITING_FOR_INPUT
    if handle is not None:
        return RecoveryAction.POLL_UPSTREAM
    return _AFTER_WITHDRAWAL[_by_class(task, now_ms)]
