"""Does a call obey what its tool showed this caller about tasks? Required, forbidden, or as the caller likes."""

from __future__ import annotations

from typing import Final

from taskgate.core.catalog.annotate import TaskCheck, TaskSupport, check_task
from taskgate.core.errors import CallerError
from taskgate.core.generations.stateful_2025 import speaks_tasks
from taskgate.core.generations.stateless_2026 import TASKS_EXTENSION, missing_capability
from taskgate.core.meta import meta_of
from taskgate.gateway.calls.context import Context
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.request import Request

TASK_META: Final = "taskgate/task"
"""With this key set to true in `_meta` a stateless caller asks for a task handle at once."""


def wants_handle(request: Request) -> bool:
    """Whether a stateless caller asked for a handle at once. On the path of every call."""
    return request.envelope is not None and meta_of(request.params).get(TASK_META) is True


def task_contract(context: Context, request: Request, tool: ToolRef) -> TaskCheck:
    """Does the call obey what the tool showed this caller about tasks?"""
    session = request.session
    if session is None and not request.inner and (tool.forced or wants_handle(request)):
        return _stateless_contract(request)
    if session is None or request.inner or not speaks_tasks(session.version):
        return TaskCheck.SYNC
    present = "task" in request.params
    shown = context.view_of(request).shown(tool, session.task_aware or present) or TaskSupport.FORBIDDEN
    check = check_task(shown, task_present=present)
    if check is TaskCheck.TASK_REQUIRED:
        context.count_validation_error("required")
        raise CallerError(
            "task_required",
            f"{tool.wire!r} must be called as a task. It was not executed.",
            data={
                "tool": tool.wire,
                "reason": "This operation needs time or an approval, so it must be called with task metadata.",
                "hint": 'Include the task field: {"task": {"ttl": 600000}}',
            },
        )
    if check is TaskCheck.TASK_FORBIDDEN:
        context.count_validation_error("forbidden")
        raise CallerError(
            "task_forbidden",
            f"{tool.wire!r} cannot be called as a task. It was not executed.",
            data={"tool": tool.wire, "reason": "This tool does not support task-augmented calls."},
        )
    if present:
        session.uses_tasks()
    return check


def _stateless_contract(request: Request) -> TaskCheck:
    """A task and nothing else, by the operator's wish or the caller's: this generation has its own word for a caller that cannot
    follow one.
    """
    if request.envelope is not None and not request.envelope.wants_tasks:
        raise missing_capability(
            {"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to get a task handle."
        )
    return TaskCheck.TASK
