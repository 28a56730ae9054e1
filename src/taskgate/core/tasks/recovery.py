"""What the next owner does with what it finds in the store after a crash. A pure function over the last durable
facts.

The rule behind every row: a call that may have reached the tool is sent again only if its class allows it, and what
cannot be known is said to be unknown. Called at start-up for every open task, and again when an upstream connection
is lost for good.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskgate.core.generations import Generation
from taskgate.core.tasks import expiry
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import may_send


class Action(StrEnum):
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
    Action.RESEND: Action.WITHDRAW_THEN_RESEND,
    Action.REPORT_UNKNOWN: Action.WITHDRAW_THEN_REPORT_UNKNOWN,
    Action.REPORT_FAILED: Action.WITHDRAW_THEN_REPORT_FAILED,
}


def next_action(task: Task, now_ms: int, *, restored: bool = False) -> Action:
    """The row of the recovery table that fits this task. In a store that was put back from a backup nothing that may run only
    once is run: it may have run after the backup was made.
    """
    if restored and not task.state.is_terminal and not task.tool_class.may_repeat and task.upstream_handle is None:
        return Action.LEAVE_TO_A_PERSON
    match task.state:
        case TaskState.QUEUED:
            return Action.RUN
        case TaskState.AWAITING_APPROVAL | TaskState.APPROVED:
            return _by_approval(task, now_ms)
        case TaskState.RUNNING:
            return _by_attempt(task, now_ms)
        case TaskState.INPUT_REQUIRED:
            return _by_question(task, now_ms)
        case TaskState.CANCELLED if task.cancel_owed:
            return Action.TELL_UPSTREAM_CANCELLED
        case _:
            return Action.NOTHING


def _by_approval(task: Task, now_ms: int) -> Action:
    if expiry.approval_is_over(task, now_ms):
        return Action.EXPIRE_APPROVAL
    if task.state is TaskState.APPROVED:
        return Action.RECHECK_THEN_RUN
    return Action.KEEP_WAITING_FOR_APPROVAL


def _by_attempt(task: Task, now_ms: int) -> Action:
    if task.upstream_handle is not None:
        return Action.POLL_UPSTREAM
    if task.between_rounds and task.request_state is not None:
        # Its questions are answered, and the answers have not been sent.
        return Action.KEEP_WAITING_FOR_INPUT
    return _by_class(task, now_ms)


def _by_class(task: Task, now_ms: int) -> Action:
    """The call is out, or may be, and nothing tells us what became of it."""
    if task.times_unanswered == 0:
        return Action.RESEND
    if not task.tool_class.may_repeat:
        return Action.REPORT_UNKNOWN
    until = expiry.may_resend_until_ms(task)
    in_time = until is not None and now_ms < until and not expiry.execution_is_over(task, now_ms)
    return Action.RESEND if may_send(task) and in_time else Action.REPORT_FAILED


def _by_question(task: Task, now_ms: int) -> Action:
    """A stateless upstream does not mind who brings the answer; a stateful one lost its open request with our
    process.
    """
    handle = task.upstream_handle
    if task.request_state is not None or (handle is not None and handle.generation is Generation.STATELESS):
        return Action.KEEP_WAITING_FOR_INPUT
    if handle is not None:
        return Action.POLL_UPSTREAM
    return _AFTER_WITHDRAWAL[_by_class(task, now_ms)]
