"""The event of a change of a task. The store appends it in the transaction that writes the change.

Callers of the gateway's own tools see created, completed, failed, cancelled and expired. Every other change of state is
`task_status`, for live views and streams only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from taskgate.core.tasks.projections_tools import shown_status
from taskgate.core.tasks.task import Task


class TaskEvent(StrEnum):
    CREATED = "task_created"
    STATUS = "task_status"
    COMPLETED = "task_completed"
    FAILED = "task_failed"
    CANCELLED = "task_cancelled"
    EXPIRED = "task_expired"


def event_of(before: Task | None, after: Task) -> TaskEvent | None:
    """Return the event of a change, or None if the state stayed the same."""
    if before is None:
        return TaskEvent.CREATED
    if before.state is after.state:
        return None
    if not after.state.is_terminal:
        return TaskEvent.STATUS
    return TaskEvent("task_" + shown_status(after, after.updated_ms))


def event_data(after: Task) -> dict[str, Any]:
    """Return the data of an event: names and state, never arguments or results."""
    data: dict[str, Any] = {"task_id": after.id, "tool": after.tool, "state": str(after.state)}
    if after.status_message is not None:
        data["message"] = after.status_message
    return data
