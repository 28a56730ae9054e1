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

# How a task looks to a caller of the stateful generation (2025-11-25, tasks in core).
#
# The `Task` object of that revision, plus the extra keys callers of this gateway know from the approval design:
# `toolName` in lists, and the flat twin of the task in the create result. `tasks/result` bytes are not made here: they
# are relayed as stored.


def stateful_status(task: Task) -> str:
    """The revision's five words. A result that says `isError` counts as failed."""
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
    """`Task`: the answer to tasks/get and tasks/cancel, and the params of the status notification."""
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
        return f"`{task.wire_name}` reported an error. Ask for the result to see it."
    return task.status_message


def stateful_create_result(task: Task, poll_ms: int) -> dict[str, Any]:
    """CreateTaskResult: the full task, and its main members again at the top for callers that look there.

    A new task starts in `working` (2025-11-25, tasks, "Task Status Lifecycle"), also when an approver will be asked.
    """
    inner = {**stateful_task(task, poll_ms), "status": "working"}
    repeated = ("taskId", "status", "statusMessage", "pollInterval")
    return {"task": inner, **{key: value for key, value in inner.items() if key in repeated}}


def stateful_list_row(task: Task, poll_ms: int) -> dict[str, Any]:
    """One entry of tasks/list."""
    return {**stateful_task(task, poll_ms), "toolName": task.wire_name}
