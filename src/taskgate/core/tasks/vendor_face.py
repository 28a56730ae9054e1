"""How a task looks to callers of the vendor methods (`tasks/create` and its relatives): whole numbers for times,
`pending`.

Only served where the operator switched those methods on. Everything else about the task is the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.tasks import stateful_face
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task


def status(task: Task) -> str:
    """`pending` until something moves; then as on the stateful wire, where waiting counts as working."""
    if task.state is TaskState.QUEUED:
        return "pending"
    word = stateful_face.status(task)
    return "working" if word == "input_required" else word


def created(task: Task) -> dict[str, Any]:
    return {"taskId": task.id, "status": status(task), "createdAt": task.created_ms}


def task_object(task: Task, *, outcome: bytes | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "taskId": task.id,
        "status": status(task),
        "action": task.wire_name,
        "createdAt": task.created_ms,
        "updatedAt": task.updated_ms,
    }
    if task.outcome is not None and outcome is not None:
        shown["result" if task.outcome.kind is OutcomeKind.RESULT else "error"] = msgspec.Raw(outcome)
    return shown


def result(task: Task, outcome: bytes) -> dict[str, Any]:
    return {"taskId": task.id, "result": msgspec.Raw(outcome), "completedAt": task.finished_ms}


def cancelled(task: Task) -> dict[str, Any]:
    return {"taskId": task.id, "status": status(task), "cancelledAt": task.finished_ms}
