"""A task as callers of the vendor methods see it (`tasks/create` and related methods): integer times, and the status `pending`.

Served only if the operator enabled those methods.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.tasks.projections_stateful import stateful_status
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.timestamps import iso
from taskgate.core.wire import Raw

# How a task looks to callers of the vendor methods (`tasks/create` and its relatives): whole numbers for times,
# `pending`.
#
# Only served where the operator switched those methods on. Everything else about the task is the same.


TOOL_FAILED_CODE: Final = -32000


def vendor_status(task: Task) -> str:
    """`pending` until something moves; then as on the stateful wire, where waiting counts as working."""
    if task.state is TaskState.QUEUED:
        return "pending"
    word = stateful_status(task)
    return "working" if word == "input_required" else word


def vendor_created(task: Task) -> dict[str, Any]:
    return {"taskId": task.vendor_id or task.id, "status": vendor_status(task), "createdAt": task.created_ms}


def vendor_task(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """With the outcome inline, once there is one; MCP's other members beside, which these callers pass over."""
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
    """`result` or `error` as these callers expect it inside a task. A tool that reported an error gives both: its result as it is,
    and an error, because the task is `failed`."""
    if task.outcome is None or outcome is None:
        return {}
    if task.outcome.kind is not OutcomeKind.RESULT:
        return {"error": msgspec.Raw(outcome)}
    if not task.outcome.is_error:
        return {"result": msgspec.Raw(outcome)}
    message = task.status_message or "The tool reported an error."
    error = {"code": TOOL_FAILED_CODE, "message": message, "data": {"error_type": "tool_failed"}}
    return {"result": msgspec.Raw(outcome), "error": error}


def vendor_result(task: Task, outcome: bytes) -> bytes:
    """The tool's own result, as MCP wants it, and the same again in the form of these callers."""
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
