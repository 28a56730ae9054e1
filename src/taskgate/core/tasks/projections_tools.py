"""A task in replies of the gateway's own tools: snake_case keys and five statuses.

Callers of these tools need not know MCP tasks. A task is `working` while it waits for an approval or for input;
`waiting_for` names which. A task whose result is no longer kept is `expired`.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

from taskgate.core import wire
from taskgate.core.tasks.deadlines import is_gone
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso

# How a task looks in the replies of the helper and facade tools: snake_case, five plain words.
#
# Callers here know no MCP tasks. A task stays `working` through approvals and questions; `waiting_for` says for whom.
# What is no longer kept is `expired`.

MAX_SHOWN_ARGUMENTS: Final = 4_096
STATUSES: Final = ("working", "completed", "failed", "cancelled", "expired")


def shown_status(task: Task, now_ms: int) -> str:
    if is_gone(task, now_ms):
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
    """The states to look for when a caller filters by one of the words; an unknown word finds nothing.

    A completed task whose result is an error is shown as failed, so both words look among the completed ones too, and
    the caller of this function keeps the rows whose `status` is the word.
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
    # Whatever ended long enough ago is shown as expired.
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
    """The object in the reply that tells a caller its call became a task."""
    return {
        "task_id": task.id,
        "status": shown_status(task, now_ms),
        "created_at": iso(task.created_ms),
        "server": task.server,
        "tool": task.tool,
    }


def shown_task(task: Task, now_ms: int) -> dict[str, Any]:
    """The object in the replies of `get_task` and `list_tasks`."""
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
        shown["error"] = task.status_message or "The tool answered with an error; get_task_result shows it."
    if task.state.is_terminal and task.executed is not None:
        shown["executed"] = task.executed.value
    return shown


def _shown_arguments(task: Task) -> Any:
    """What the call was asked with, by which its caller tells it from others; None where it is too long to show."""
    if not task.arguments or len(task.arguments) > MAX_SHOWN_ARGUMENTS:
        return None
    return wire.parse_strictly(task.arguments)
