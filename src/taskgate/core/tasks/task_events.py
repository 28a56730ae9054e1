"""The event of a change of a task. The store appends it in the transaction that writes the change.

Callers of the gateway's own tools see created, completed, failed, cancelled and expired. Every other change of state is
`task_status`, for live views and streams only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from taskgate.core.tasks.projections_tools import shown_status
from taskgate.core.tasks.task import Task

# Which event a change of a task is. The store appends one with every change of state, in the same transaction.
#
# The kinds shown to callers of the tools are created, completed, failed, cancelled and expired; every other change of
# state is `task_status`, which live views and streams use and the tool face leaves out.
#
# What the audit trail says about a change of a task, when nobody says it better.
#
# The store appends one entry with every change of state and with every attempt, in the same transaction. A use case
# that knows more (which rule spoke, who approved) hands its own entry to the store instead. Arguments appear only as
# their digest.


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
    return TaskEvent("task_" + shown_status(after, after.updated_ms))


def event_data(after: Task) -> dict[str, Any]:
    """What an event tells: names and state, never arguments or results."""
    data: dict[str, Any] = {"task_id": after.id, "tool": after.tool, "state": after.state.value}
    if after.status_message is not None:
        data["message"] = after.status_message
    return data
