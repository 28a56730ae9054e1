"""A task in replies of the gateway's own tools: snake_case keys and five statuses.

Callers of these tools need not know MCP tasks. A task is `working` while it waits for an approval or for input;
`waiting_for` names which. A task whose result is no longer kept is `expired`.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

from taskgate.core import wire
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso

MAX_SHOWN_ARGUMENTS: Final = 4_096
STATUSES: Final = ("working", "completed", "failed", "cancelled", "expired")


def shown_status(task: Task, now_ms: int) -> str:
    if is_expired(task, now_ms):
        return "expired"
    match task.state:
        case TaskState.COMPLETED:
            return "failed" if task.outcome is not None and task.outcome.is_error else "completed"
        case TaskState.CANCELLED:
            return "cancelled"
        case TaskState.EXPIRED:
            return "expired"
        case TaskState.FAILED | TaskState.REJECTED | TaskState.OUTCOME_UNKNOWN:
            return "failed"
        case (
            TaskState.QUEUED
            | TaskState.AWAITING_APPROVAL
            | TaskState.APPROVED
            | TaskState.RUNNING
            | TaskState.INPUT_REQUIRED
        ):
            return "working"
        case _:
            assert_never(task.state)


def states_shown_as(word: str) -> frozenset[TaskState]:
    """Return the states to query when a caller filters by a status; none for an unknown status.

    A completed task whose result is an error is shown as failed, so both statuses include the completed state, and the
    caller of this function filters the rows by `status`.
    """
    return frozenset(_STATES_BY_WORD.get(word, ()))


_STATES_BY_WORD: Final = {
    "working": (
        TaskState.QUEUED,
        TaskState.AWAITING_APPROVAL,
        TaskState.APPROVED,
        TaskState.RUNNING,
        TaskState.INPUT_REQUIRED,
    ),
    "completed": (TaskState.COMPLETED,),
    "failed": (TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED, TaskState.OUTCOME_UNKNOWN),
    "cancelled": (TaskState.CANCELLED,),
    # A task that ended long ago is shown as expired.
    "expired": (
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.REJECTED,
        TaskState.EXPIRED,
        TaskState.OUTCOME_UNKNOWN,
    ),
}


def proxy_task(task: Task, now_ms: int) -> dict[str, Any]:
    """Build the object in the reply to a call that became a task."""
    return {
        "task_id": task.id,
        "status": shown_status(task, now_ms),
        "created_at": iso(task.created_ms),
        "server": task.server,
        "tool": task.tool,
    }


def shown_task(task: Task, now_ms: int) -> dict[str, Any]:
    """Build the object in the replies of `get_task` and `list_tasks`."""
    shown = {
        "task_id": task.id,
        "status": shown_status(task, now_ms),
        "created_at": iso(task.created_ms),
        "last_updated_at": iso(task.updated_ms),
        "server": task.server,
        "tool": task.tool,
        "ttl": task.ttl_ms,
    }
    arguments = _shown_arguments(task)
    if arguments is not None:
        shown["args"] = arguments
    if task.status_message is not None:
        shown["status_message"] = task.status_message
    if task.progress is not None:
        shown["progress"] = task.progress
    if task.progress_total is not None:
        shown["progress_total"] = task.progress_total
    if task.state is TaskState.AWAITING_APPROVAL:
        shown["waiting_for"] = "approval"
    elif task.state is TaskState.INPUT_REQUIRED:
        shown["waiting_for"] = "input"
    if task.outcome is not None and task.outcome.is_error:
        shown["is_error"] = True
        shown["error"] = task.status_message or "The tool returned an error; call get_task_result to see it."
    if task.state.is_terminal and task.executed is not None:
        shown["executed"] = task.executed.value
    return shown


def _shown_arguments(task: Task) -> Any:
    """The arguments of the call, by which a caller distinguishes its tasks; None if they are too long."""
    if not task.arguments or len(task.arguments) > MAX_SHOWN_ARGUMENTS:
        return None
    return wire.parse_strictly(task.arguments)
