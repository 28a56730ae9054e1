"""What a server declares about tasks: `taskSupport` of a tool, and the capabilities for tasks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

# Two tables over the same four facts: what the gates decided, what the upstream can do, whether the caller knows
# tasks, and the operator's `annotation_mode`. `auto` is kind to callers that do not know tasks, `strict` is the plain
# matrix for everyone, `dual` shows `optional` to all. Nothing is logged here: `annotation_line` makes the sentence, the
# gateway writes it.


class TaskSupport(StrEnum):
    """MCP's three values. Absent on the wire means forbidden."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


def upstream_support(tool: Mapping[str, Any]) -> TaskSupport | None:
    """What the upstream says about a tool: `execution.taskSupport` first, then `annotations.taskSupport`."""
    for holder in (tool.get("execution"), tool.get("annotations")):
        if isinstance(holder, Mapping):
            said = holder.get("taskSupport")
            if isinstance(said, str) and said in TaskSupport.__members__.values():
                return TaskSupport(said)
    return None


def annotated(tool: Mapping[str, Any], support: TaskSupport) -> dict[str, Any]:
    """A copy of the tool that shows `support` in both places; every other field is kept as it came."""
    made = dict(tool)
    for holder in ("execution", "annotations"):
        before = tool.get(holder)
        made[holder] = {**(before if isinstance(before, Mapping) else {}), "taskSupport": support.value}
    return made


def supports_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether an upstream's capabilities say that `tools/call` may be a task, in MCP's spelling or the older flat
    one."""
    requests = _at(capabilities, "tasks", "requests")
    if not isinstance(requests, Mapping):
        return False
    nested = _at(requests, "tools", "call")
    return isinstance(nested, Mapping) or nested is True or requests.get("tools/call") is True


def sends_task_status(capabilities: Mapping[str, Any]) -> bool:
    """Whether an upstream announces status notifications for tasks."""
    return _at(capabilities, "notifications", "tasks", "status") is True


def _at(holder: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(holder, Mapping):
            return None
        holder = holder.get(key)
    return holder
