"""The timeline of a task: when it was created, approved, sent, asked questions and finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from taskgate.core.history.classify import outcome_of_task
from taskgate.core.history.row import CallOutcome
from taskgate.core.tasks.task import AttemptState, Task
from taskgate.core.timestamps import iso
from taskgate.ports.approval_store import HeldCall
from taskgate.ports.store_answers import TaskQuestion

_ATTEMPTS: Final = {
    AttemptState.DISPATCHING: "no reply yet",
    AttemptState.VOID: "not executed",
    AttemptState.ANSWERED: "reply received",
}


def timeline(
    task: Task, held: HeldCall | None, answered: Sequence[TaskQuestion], unanswered: Sequence[TaskQuestion]
) -> list[dict[str, Any]]:
    """The events of a task, oldest first. `held` is its approval, if it needed one."""
    attempt = task.last_attempt
    promoted = attempt is not None and attempt.sent_at_ms <= task.created_ms
    created = "Promoted to a task" if promoted else "Created"
    steps: list[tuple[int, str, str]] = [(task.created_ms, created, f"by {task.principal} in scope {task.scope}")]
    if held is not None:
        steps.append((held.approval.asked_at_ms, "Approval requested", f"rule: {held.approval.rule}"))
        for vote in held.approval.votes:
            decision = "Approved" if vote.verdict.value == "approve" else "Denied"
            steps.append((vote.at_ms, f"{decision} by {vote.approver}", vote.reason))
    if attempt is not None:
        number = f"attempt {attempt.number}, " if attempt.number > 1 else ""
        steps.append((attempt.sent_at_ms, f"Sent to {attempt.upstream}", f"{number}{_ATTEMPTS[attempt.state]}"))
    if task.upstream_handle is not None:
        sent_ms = attempt.sent_at_ms if attempt is not None else task.created_ms
        steps.append((sent_ms, f"Continued as a task of {task.upstream_handle.upstream}", task.upstream_handle.task_id))
    for question in answered:
        if question.answered_ms is None:
            steps.append((question.asked_ms, "Question answered", question.method))
        else:
            steps.append((question.asked_ms, "Question asked", question.method))
            steps.append((question.answered_ms, "Question answered", question.method))
    steps += [(question.asked_ms, "Question open", question.method) for question in unanswered]
    if task.finished_ms is not None:
        is_tool_error = outcome_of_task(task) is CallOutcome.TOOL_ERROR
        ended = "tool error" if is_tool_error else task.state.value
        # The further lines of a script's message list its calls, which are shown by themselves.
        message = (task.status_message or "").partition("\n")[0] if task.script else task.status_message or ""
        steps.append((task.finished_ms, f"Finished: {ended}", message))
    elif task.progress is not None:
        steps.append((task.updated_ms, "Progress", task.status_message or ""))
    steps.sort(key=lambda step: step[0])
    return [{"at": iso(at_ms), "event": event, "detail": detail} for at_ms, event, detail in steps]
