"""The audit entry of a change of a task, where the use case does not provide a more specific one.

The store appends one entry for every change of state and for every attempt, in the transaction that writes the change.
Arguments appear only as their digest.
"""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.tasks.task import Task


def audit_entry_of(before: Task | None, after: Task, at_ms: int) -> AuditEntry | None:
    """Return the audit entry of a change, or None if it needs none."""
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
        return f"task_{after.state}"
    return None


def _outcome(task: Task) -> str:
    if task.outcome is None:
        return ""
    return "error" if task.outcome.is_error else "ok"


def _executed(task: Task) -> str:
    if task.executed is not None:
        return str(task.executed)
    return "maybe" if task.may_have_been_sent else "no"
