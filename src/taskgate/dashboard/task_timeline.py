"""The timeline of a task: when it was created, approved, sent, asked questions and finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from taskgate.core.governance.held_call import HeldCall
from taskgate.core.history.classify import outcome_of_task
from taskgate.core.history.row import CallOutcome
from taskgate.core.tasks.task import Attempt, AttemptState, ProgressStep, Task
from taskgate.core.timestamps import iso
from taskgate.ports.store_answers import TaskQuestion
from taskgate.replies.tasks import TimelineStep

MAX_ATTEMPTS: Final = 20
"""Attempts on a timeline, the last ones."""
_EXECUTED: Final = {
    AttemptState.DISPATCHING: "may have been executed",
    AttemptState.VOID: "not executed",
    AttemptState.ANSWERED: "reply received",
}
_WHY: Final = {
    "upstream_timeout": "no reply in time",
    "upstream_unreachable": "connection failed",
    "upstream_protocol": "invalid response",
    "result_too_large": "response too large",
}
_Step = tuple[int, str, str]


def timeline(
    task: Task,
    held: HeldCall | None,
    answered: Sequence[TaskQuestion],
    unanswered: Sequence[TaskQuestion],
    attempts: Sequence[Attempt],
) -> list[TimelineStep]:
    """The events of a task, oldest first. `held` is its approval, if it needed one; `attempts` are all that are shown."""
    attempt = task.last_attempt
    promoted = bool(attempts) and attempts[0].sent_at_ms <= task.created_ms
    created = "Promoted to a task" if promoted else "Created"
    steps: list[_Step] = [(task.created_ms, created, f"by {task.principal} in scope {task.scope}")]
    if held is not None:
        steps.append((held.approval.asked_at_ms, "Approval requested", f"rule: {held.approval.rule}"))
        for vote in held.approval.votes:
            decision = "Approved" if vote.verdict.value == "approve" else "Denied"
            steps.append((vote.at_ms, f"{decision} by {vote.approver}", vote.reason))
    steps += _attempt_steps(attempts)
    steps += [(step.at_ms, "Progress", _progress_text(step)) for step in task.progress_steps]
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
    steps.sort(key=lambda step: step[0])
    return [TimelineStep(at=iso(at_ms), event=event, detail=detail) for at_ms, event, detail in steps]


def attempts_of(task: Task, stored: Sequence[Attempt]) -> list[Attempt]:
    """The attempts to show: the stored ones, with the last one as the task has it."""
    last = task.last_attempt
    if last is None:
        return []
    return [*(attempt for attempt in stored if attempt.number < last.number), last][-MAX_ATTEMPTS:]


def was_repeated(attempts: Sequence[Attempt]) -> bool:
    """Whether a call was sent again after an attempt without a reply. After a reply with questions it is the next round."""
    return any(attempt.state is not AttemptState.ANSWERED for attempt in attempts[:-1])


def _why_ended(attempt: Attempt, following: Attempt | None) -> str:
    """Why an attempt ended that another one followed, or that has an end."""
    if attempt.why:
        return _WHY.get(attempt.why, attempt.why)
    if following is not None and attempt.ended_ms is None:
        return "the gateway stopped" if following.fence != attempt.fence else "no reply"
    return ""


def _attempt_steps(attempts: Sequence[Attempt]) -> list[_Step]:
    """The start of each attempt, and the end of each without a reply: a reply ends the task or asks a question. An attempt whose
    end was not stored, because its gateway stopped, ended at the latest when the next one was sent."""
    steps: list[_Step] = []
    numbered = was_repeated(attempts)
    for place, attempt in enumerate(attempts):
        following = attempts[place + 1] if place + 1 < len(attempts) else None
        number = f"attempt {attempt.number}" if numbered else ""
        is_open = following is None and attempt.ended_ms is None and attempt.state is AttemptState.DISPATCHING
        detail = ", ".join(part for part in (number, "no reply yet" if is_open else "") if part)
        steps.append((attempt.sent_at_ms, f"Sent to {attempt.upstream}", detail))
        ended = attempt.ended_ms if attempt.ended_ms is not None else following.sent_at_ms if following else None
        if ended is None or attempt.state is AttemptState.ANSWERED:
            continue
        detail = ", ".join(part for part in (_why_ended(attempt, following), _EXECUTED[attempt.state]) if part)
        steps.append((ended, f"Attempt {attempt.number} ended", detail))
    return steps


def _progress_text(step: ProgressStep) -> str:
    amount = f"{step.progress:.10g}" if step.total is None else f"{step.progress:.10g} of {step.total:.10g}"
    return f"{amount}: {step.message}" if step.message else amount
