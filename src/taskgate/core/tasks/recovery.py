"""What a gateway does with an open task that it takes over, after a restart or from another gateway that stopped."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.core.tasks.deadlines import approval_is_over, execution_is_over, may_resend_until_ms
from taskgate.core.tasks.endings import after_restore, lost, stopped
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    ContactLost,
    ErrorReceived,
    TransitionEvent,
    may_send,
)


class RecoveryAction(StrEnum):
    """The action of the new owner."""

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
    CANCEL_UPSTREAM = "tell_upstream_cancelled"
    LEAVE_TO_A_PERSON = "leave_to_a_person"
    NOTHING = "nothing"


_AFTER_WITHDRAWAL: Final = {
    RecoveryAction.RESEND: RecoveryAction.WITHDRAW_THEN_RESEND,
    RecoveryAction.REPORT_UNKNOWN: RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    RecoveryAction.REPORT_FAILED: RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
}


def ends_at_once(task: Task, now_ms: int, *, restored: bool = False) -> TransitionEvent | None:
    """Return the event that ends a task which its new owner can only end; None for a task that continues or needs no
    action.
    """
    match next_action(task, now_ms, restored=restored):
        case RecoveryAction.LEAVE_TO_A_PERSON:
            return after_restore(task)
        case RecoveryAction.REPORT_UNKNOWN | RecoveryAction.REPORT_FAILED:
            return contact_lost(task)
        case _:
            return None


def contact_lost(task: Task) -> ErrorReceived | ContactLost:
    """The gateway that had sent the call stopped, and the response is lost."""
    if task.tool_class.may_repeat and task.times_unanswered:
        return stopped(task)
    text = f"Contact with {task.server} was lost."
    return lost(task, UpstreamError("upstream_unreachable", text, executed=Executed.MAYBE))


def next_action(task: Task, now_ms: int, *, restored: bool = False) -> RecoveryAction:
    """Return the action for this task.

    In a store that was restored from a backup, a call that may run only once is not run: it may have run after the
    backup was made.
    """
    if restored and _may_be_outdated(task):
        return RecoveryAction.LEAVE_TO_A_PERSON
    match task.state:
        case TaskState.QUEUED:
            return RecoveryAction.RUN
        case TaskState.AWAITING_APPROVAL | TaskState.APPROVED:
            return _by_approval(task, now_ms)
        case TaskState.RUNNING | TaskState.INPUT_REQUIRED if task.script:
            # It continues from its newest snapshot; its calls are recovered as tasks of their own.
            return RecoveryAction.RUN
        case TaskState.RUNNING:
            return _by_attempt(task, now_ms)
        case TaskState.INPUT_REQUIRED:
            return _by_question(task, now_ms)
        case TaskState.CANCELLED if task.cancel_unsent:
            return RecoveryAction.CANCEL_UPSTREAM
        case _:
            return RecoveryAction.NOTHING


def _may_be_outdated(task: Task) -> bool:
    """Whether something after the backup may forbid continuing: the call may have run, its approval may have been denied, or
    the script that made it has ended with the restore, so no script waits for it.
    """
    if task.state.is_terminal or task.upstream_handle is not None:
        return False
    decided = task.state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
    return decided or not task.tool_class.may_repeat or bool(task.parent)


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
    """The call is or may be in flight, and its outcome is not known."""
    if task.times_unanswered == 0:
        return RecoveryAction.RESEND
    if not task.tool_class.may_repeat:
        return RecoveryAction.REPORT_UNKNOWN
    until = may_resend_until_ms(task)
    in_time = until is not None and now_ms < until and not execution_is_over(task, now_ms)
    return RecoveryAction.RESEND if may_send(task) and in_time else RecoveryAction.REPORT_FAILED


def _by_question(task: Task, now_ms: int) -> RecoveryAction:
    """A stateless server accepts the answer from any process; a stateful one lost its open request with the old process."""
    handle = task.upstream_handle
    if task.request_state is not None or (handle is not None and handle.generation is Generation.STATELESS):
        return RecoveryAction.KEEP_WAITING_FOR_INPUT
    if handle is not None:
        return RecoveryAction.POLL_UPSTREAM
    return _AFTER_WITHDRAWAL[_by_class(task, now_ms)]
