"""What the end of a task means: a result to return, an error to raise, or something still to be fetched.

Pure functions over readings of a task. Used by the task handle.
"""

from __future__ import annotations

from taskgate.client.errors import (
    ClientError,
    InvalidReply,
    ServerError,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskVanished,
)
from taskgate.client.options import Generation
from taskgate.client.results import Task, TaskStatus, ToolResult

UNKNOWN_TASK = -32602


def ending_of(task: Task, generation: Generation) -> ToolResult | ClientError | None:
    """The outcome of a task in a terminal status; None where the result has to be asked for separately."""
    if task.status is TaskStatus.CANCELLED:
        return TaskCancelled(task.task_id, f"task {task.task_id} was cancelled{_detail(task)}")
    if generation is Generation.STATEFUL:
        return None
    if task.status is TaskStatus.COMPLETED and task.result is not None:
        return ToolResult(dict(task.result))
    if task.status is TaskStatus.FAILED and task.error is not None:
        code = task.error.get("code")
        return ServerError(code if isinstance(code, int) else 0, str(task.error.get("message")), task.error.get("data"))
    if task.status is TaskStatus.FAILED:
        return failed(task)
    return InvalidReply(f"the server says task {task.task_id} is completed but gives no result")


def checked(task: Task, fetched: ToolResult) -> ToolResult:
    """A result that was fetched for a terminal task. Some servers hand over an empty success for work that crashed."""
    if task.status is TaskStatus.FAILED and not fetched.is_error and not fetched.content:
        raise failed(task)
    return fetched


def failed(task: Task) -> TaskFailed:
    return TaskFailed(task.task_id, f"task {task.task_id} failed{_detail(task)}")


def gone(task_id: str, remaining: float | None, grace: float) -> ClientError:
    """Why a server no longer knows a task that had `remaining` seconds to live."""
    if remaining is not None and remaining <= grace:
        return TaskExpired(task_id, f"task {task_id} expired before its result was collected")
    return TaskVanished(task_id, f"the server no longer knows task {task_id}")


def _detail(task: Task) -> str:
    return f": {task.message}" if task.message else ""
