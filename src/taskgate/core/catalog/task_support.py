"""What a server declares about tasks: `taskSupport` of a tool, and the capabilities for tasks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class TaskSupport(StrEnum):
    """MCP's three values. A missing value means forbidden."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


def upstream_support(tool: Mapping[str, Any]) -> TaskSupport | None:
    """Return what the server declares for a tool: `execution.taskSupport` first, then `annotations.taskSupport`."""
    for holder in (tool.get("execution"), tool.get("annotations")):
        if isinstance(holder, Mapping):
            declared = holder.get("taskSupport")
            if isinstance(declared, str) and declared in TaskSupport.__members__.values():
                return TaskSupport(declared)
    return None


def annotated(tool: Mapping[str, Any], support: TaskSupport) -> dict[str, Any]:
    """Return a copy of the tool with `support` in both places; other fields are unchanged."""
    made = dict(tool)
    for holder in ("execution", "annotations"):
        before = tool.get(holder)
        made[holder] = {**(before if isinstance(before, Mapping) else {}), "taskSupport": support.value}
    return made


def supports_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether a server's capabilities allow `tools/call` as a task, in MCP's form or the older flat one."""
    requests = _at(capabilities, "tasks", "requests")
    if not isinstance(requests, Mapping):
        return False
    nested = _at(requests, "tools", "call")
    return isinstance(nested, Mapping) or nested is True or requests.get("tools/call") is True


def sends_task_status(capabilities: Mapping[str, Any]) -> bool:
    """Whether a server sends status notifications for tasks."""
    return _at(capabilities, "notifications", "tasks", "status") is True


def _at(holder: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(holder, Mapping):
            return None
        holder = holder.get(key)
    return holder
