"""Which event a change of a task is. The store appends one with every change of state, in the same transaction.

The kinds shown to callers of the tools are created, completed, failed, cancelled and expired; every other change of
state is `task_status`, which live views and streams use and the tool face leaves out.

What the audit trail says about a change of a task, when nobody says it better.

The store appends one entry with every change of state and with every attempt, in the same transaction. A use case
that knows more (which rule spoke, who approved) hands its own entry to the store instead. Arguments appear only as
their digest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.tasks import tool_projection
from taskgate.core.tasks.task import Task


class TaskEvent(StrEnum):
    CREATED = "task_created"
    STATUS = "task_status"
    COMPLETED = "task_completed"
    FAILED = "task_failed"
    CANCELLED = "task_cancelled"
    EXPIRED = "task_expired"


def event_of(before: Task | None, after: Task) -> TaskEvent | None:
    """The event of one change, or None if the state stayed the same."""
    if before is None:
        return TaskEvent.CREATED
    if before.state is after.state:
        return None
    if not after.state.is_terminal:
        return TaskEvent.STATUS
    return TaskEvent("task_" + tool_projection.status(after, after.updated_ms))


def event_data(after: Task) -> dict[str, Any]:
    """What an event tells: names and state, never arguments or results."""
    data: dict[str, Any] = {"task_id": after.id, "tool": after.tool, "state": after.state.value}
    if after.status_message is not None:
        data["message"] = after.status_message
    return data


def entry_of(before: Task | None, after: Task, at_ms: int) -> AuditEntry | None:
    """The entry for one change, or None where nothing happened that is worth proving."""
    event = _event(before, after)
    if event is None:
        return None
    return AuditEntry(
        at_ms=at_ms,
        event=event,
        principal=after.principal,
        scope=after.scope,
        server=after.server,
        name=after.tool,
        arguments_digest=after.digest,
        policy_revision=revisions(after.policy_revision, after.scope_revision),
        approval_id=after.approval_id or "",
        reason=after.status_message or "" if after.state.is_terminal else "",
        task_id=after.id,
        outcome=_outcome(after),
        executed=_executed(after),
        correlation_id=after.correlation_id,
    )


def _event(before: Task | None, after: Task) -> str | None:
    if before is None:
        return "task_created"
    if after.attempts > before.attempts:
        return "task_dispatched"
    if after.state is not before.state:
        return f"task_{after.state.value}"
    return None


def _outcome(task: Task) -> str:
    if task.outcome is None:
        return ""
    return "error" if task.outcome.is_error else "ok"


def _executed(task: Task) -> str:
    if task.executed is not None:
        return task.executed.value
    return "maybe" if task.may_have_been_sent else "no"
