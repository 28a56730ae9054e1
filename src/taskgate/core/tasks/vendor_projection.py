"""How a task looks to callers of the vendor methods (`tasks/create` and its relatives): whole numbers for times,
`pending`.

Only served where the operator switched those methods on. Everything else about the task is the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core import wire
from taskgate.core.tasks import stateful_projection
from taskgate.core.tasks.outcome_text import iso
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.wire import Raw


def status(task: Task) -> str:
    """`pending` until something moves; then as on the stateful wire, where waiting counts as working."""
    if task.state is TaskState.QUEUED:
        return "pending"
    word = stateful_projection.status(task)
    return "working" if word == "input_required" else word


def created(task: Task) -> dict[str, Any]:
    return {"taskId": task.vendor_id or task.id, "status": status(task), "createdAt": task.created_ms}


def task_object(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """With the outcome inline, once there is one; MCP's other members beside, which these callers pass over."""
    shown: dict[str, Any] = {
        **created(task),
        "action": task.wire_name,
        "updatedAt": task.updated_ms,
        "lastUpdatedAt": iso(task.updated_ms),
        "ttl": task.ttl_ms,
    }
    if task.status_message is not None:
        shown["statusMessage"] = task.status_message
    if task.outcome is not None and outcome is not None:
        shown["result" if task.outcome.kind is OutcomeKind.RESULT else "error"] = msgspec.Raw(outcome)
    return shown


def result(task: Task, outcome: bytes) -> bytes:
    """The tool's own result, as MCP wants it, and the same again in the form of these callers."""
    return wire.join(
        {
            **wire.members_of(outcome),
            "taskId": wire.raw(task.vendor_id or task.id),
            "result": Raw(outcome),
            "completedAt": wire.raw(task.finished_ms),
        }
    )


def cancelled(task: Task) -> dict[str, Any]:
    return {**task_object(task, None), "cancelledAt": task.finished_ms}
