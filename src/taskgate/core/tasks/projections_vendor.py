"""A task as callers of the vendor methods see it (`tasks/create` and related methods): integer times, and the status `pending`.

Served only if the operator enabled those methods.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core import wire
from taskgate.core.tasks.projections_stateful import stateful_status
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.timestamps import iso
from taskgate.core.wire import Raw

TOOL_FAILED_CODE: Final = -32000


def vendor_status(task: Task) -> str:
    """`pending` until the call is dispatched or held; then as in the stateful generation, with `input_required` as
    `working`.
    """
    if task.state is TaskState.QUEUED:
        return "pending"
    word = stateful_status(task)
    return "working" if word == "input_required" else word


def vendor_created(task: Task) -> dict[str, Any]:
    return {"taskId": task.vendor_id or task.id, "status": vendor_status(task), "createdAt": task.created_ms}


def vendor_task(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """Build the task with its outcome inlined, and the members of MCP, which these callers ignore."""
    shown: dict[str, Any] = {
        **vendor_created(task),
        "action": task.wire_name,
        "updatedAt": task.updated_ms,
        "lastUpdatedAt": iso(task.updated_ms),
        "ttl": task.ttl_ms,
    }
    if task.status_message is not None:
        shown["statusMessage"] = task.status_message
    return {**shown, **vendor_outcome(task, outcome)}


def vendor_outcome(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """Build `result` or `error` for the inside of a task. If the tool reported an error there are both: the unchanged
    result, and an error, because the task is `failed`.
    """
    if task.outcome is None or outcome is None:
        return {}
    if task.outcome.kind is not OutcomeKind.RESULT:
        return {"error": Raw(outcome)}
    if not task.outcome.is_error:
        return {"result": Raw(outcome)}
    message = task.status_message or "The tool reported an error."
    error = {"code": TOOL_FAILED_CODE, "message": message, "data": {"error_type": "tool_failed"}}
    return {"result": Raw(outcome), "error": error}


def vendor_result(task: Task, outcome: bytes) -> bytes:
    """Build the tool's result as MCP requires it, with the form of these callers beside it."""
    return wire.join(
        {
            **wire.members_of(outcome),
            "taskId": wire.raw(task.vendor_id or task.id),
            "result": Raw(outcome),
            "completedAt": wire.raw(task.finished_ms),
        }
    )


def vendor_cancelled(task: Task) -> dict[str, Any]:
    return {**vendor_task(task, None), "cancelledAt": task.finished_ms}
