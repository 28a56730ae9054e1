"""Which caller may see a task."""

from __future__ import annotations

from taskgate.core.errors import CallerError
from taskgate.core.tasks.task import Task
from taskgate.gateway.requests.request import Request


def unknown_task() -> CallerError:
    return CallerError("unknown_task", "There is no such task, or it is no longer kept.")


def may_see(request: Request, task: Task) -> bool:
    """A task is bound to its principal. Without authentication, the unguessable id is the proof."""
    return task.principal == request.caller.principal
