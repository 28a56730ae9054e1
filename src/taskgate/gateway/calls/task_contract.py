"""Whether a call obeys the task support that its tool shows to this caller: required, forbidden or optional."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.errors import CallerError
from taskgate.core.generations.stateful import supports_tasks
from taskgate.core.generations.stateless import TASKS_EXTENSION, missing_capability
from taskgate.core.governance.task_annotation import TaskCheck, check_task
from taskgate.core.meta import meta_of
from taskgate.core.meta_keys import TASK_META
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.request import Request


def requests_handle(request: Request) -> bool:
    """Whether a stateless caller requested a task handle at once."""
    return request.envelope is not None and meta_of(request.params).get(TASK_META) is True


class TaskContract(msgspec.Struct, frozen=True):
    lookup: Lookup
    count_violation: Callable[[str], None]
    """Count a call that violated the task contract of its tool, by kind."""

    def check(self, request: Request, tool: ToolRef) -> TaskCheck:
        """Return whether the call runs as a task. Raises CallerError if it breaks the contract."""
        session = request.session
        if session is None and not request.inner and (tool.forced or requests_handle(request)):
            _require_tasks_extension(request)
            return TaskCheck.TASK
        if session is None or request.inner or not supports_tasks(session.version):
            return TaskCheck.SYNC
        present = "task" in request.params
        shown = self.lookup.view_of(request).shown(tool, session.task_aware or present) or TaskSupport.FORBIDDEN
        check = check_task(shown, task_present=present)
        if check is TaskCheck.TASK_REQUIRED:
            self.count_violation("required")
            raise _task_required(tool)
        if check is TaskCheck.TASK_FORBIDDEN:
            self.count_violation("forbidden")
            raise _task_forbidden(tool)
        if present:
            session.mark_task_use()
        return check


def _require_tasks_extension(request: Request) -> None:
    if request.envelope is not None and not request.envelope.accepts_tasks:
        raise missing_capability(
            {"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to get a task handle."
        )


def _task_required(tool: ToolRef) -> CallerError:
    return CallerError(
        "task_required",
        f"{tool.wire!r} must be called as a task. It was not executed.",
        data={
            "tool": tool.wire,
            "reason": "This operation needs time or an approval, so it must be called with task metadata.",
            "hint": 'Include the task field: {"task": {"ttl": 600000}}',
        },
    )


def _task_forbidden(tool: ToolRef) -> CallerError:
    return CallerError(
        "task_forbidden",
        f"{tool.wire!r} cannot be called as a task. It was not executed.",
        data={"tool": tool.wire, "reason": "This tool does not support task-augmented calls."},
    )
