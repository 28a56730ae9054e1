"""A task as callers of the stateful generation see it (2025-11-25, tasks in core).

The `Task` object of that revision, and keys that it does not define: `toolName` in lists, and in the create result the
main members of the task once more at the top level. The response to `tasks/result` is not built here: the stored bytes
are relayed.
"""

from __future__ import annotations

from typing import Any, assert_never

from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso


def stateful_status(task: Task) -> str:
    """One of the five statuses of the revision. A result with `isError` counts as failed."""
    match task.state:
        case TaskState.QUEUED | TaskState.APPROVED | TaskState.RUNNING:
            return "working"
        case TaskState.AWAITING_APPROVAL | TaskState.INPUT_REQUIRED:
            return "input_required"
        case TaskState.COMPLETED:
            return "failed" if task.outcome is not None and task.outcome.is_error else "completed"
        case TaskState.CANCELLED:
            return "cancelled"
        case TaskState.FAILED | TaskState.REJECTED | TaskState.EXPIRED | TaskState.OUTCOME_UNKNOWN:
            return "failed"
        case _:
            assert_never(task.state)


def stateful_task(task: Task, poll_ms: int) -> dict[str, Any]:
    """Build `Task`: the result of tasks/get and tasks/cancel, and the params of the status notification."""
    shown: dict[str, Any] = {"taskId": task.id, "status": stateful_status(task)}
    message = status_message(task)
    if message is not None:
        shown["statusMessage"] = message
    shown["createdAt"] = iso(task.created_ms)
    shown["lastUpdatedAt"] = iso(task.updated_ms)
    shown["ttl"] = task.ttl_ms
    shown["pollInterval"] = poll_ms
    return shown


def status_message(task: Task) -> str | None:
    """Clients that stop at `failed` show only this text, so a failed task always has one."""
    if task.status_message is None and stateful_status(task) == "failed":
        return f"`{task.wire_name}` reported an error. Request the result to see it."
    return task.status_message


def stateful_create_result(task: Task, poll_ms: int) -> dict[str, Any]:
    """Build CreateTaskResult: the full task, and its main members once more at the top level for clients that read them
    there.

    A new task starts as `working` (2025-11-25, tasks, "Task Status Lifecycle"), also if it needs an approval.
    """
    inner = {**stateful_task(task, poll_ms), "status": "working"}
    repeated = ("taskId", "status", "statusMessage", "pollInterval")
    return {"task": inner, **{key: value for key, value in inner.items() if key in repeated}}


def stateful_list_row(task: Task, poll_ms: int) -> dict[str, Any]:
    """Build one entry of tasks/list."""
    return {**stateful_task(task, poll_ms), "toolName": task.wire_name}
