"""Which `taskSupport` a tool shows to a caller, and whether a call obeys it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

from taskgate.core.governance.decision import Action

# Two tables over the same four facts: what the gates decided, what the upstream can do, whether the caller knows
# tasks, and the operator's `annotation_mode`. `auto` is kind to callers that do not know tasks, `strict` is the plain
# matrix for everyone, `dual` shows `optional` to all. Nothing is logged here: `annotation_line` makes the sentence, the
# gateway writes it.


class TaskSupport(StrEnum):
    """MCP's three values. Absent on the wire means forbidden."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


class AnnotationMode(StrEnum):
    """`tasks.annotation_mode`."""

    AUTO = "auto"
    STRICT = "strict"
    DUAL = "dual"


class TaskCheck(StrEnum):
    """Whether a call obeys what its tool shows."""

    SYNC = "sync"
    TASK = "task"
    TASK_REQUIRED = "task_required"
    TASK_FORBIDDEN = "task_forbidden"


def shown_support(
    mode: AnnotationMode,
    action: Action,
    *,
    upstream_tasks: bool,
    upstream_support: TaskSupport | None = None,
    task_aware: bool = True,
    forced: bool = False,
) -> TaskSupport | None:
    """The value a tool shows to this caller, or None when it is not listed at all."""
    match mode:
        case AnnotationMode.STRICT:
            return _strict(action, upstream_tasks, upstream_support, forced)
        case AnnotationMode.DUAL:
            return None if action is Action.DENY else TaskSupport.OPTIONAL
        case AnnotationMode.AUTO:
            if action is Action.DENY:
                return None
            if action is Action.FORWARD and not forced:
                return TaskSupport.OPTIONAL
            return TaskSupport.REQUIRED if task_aware else TaskSupport.OPTIONAL
        case _:
            assert_never(mode)


def check_task(shown: TaskSupport, *, task_present: bool) -> TaskCheck:
    """Whether a call with or without `task` obeys what the tool showed to this caller."""
    if task_present:
        return TaskCheck.TASK_FORBIDDEN if shown is TaskSupport.FORBIDDEN else TaskCheck.TASK
    return TaskCheck.TASK_REQUIRED if shown is TaskSupport.REQUIRED else TaskCheck.SYNC


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


def annotation_line(tool: str, shown: TaskSupport | None, action: Action, *, upstream_tasks: bool, forced: bool) -> str:
    """The log sentence for one tool."""
    facts = [f"yaml_action={action.value}"]
    if action is Action.FORWARD:
        facts.append(f"upstream_tasks={'true' if upstream_tasks else 'false'}")
    if forced:
        facts.append("force_required=true")
    return f"Tool annotation: {tool} -> {shown.value if shown else 'not listed'} ({', '.join(facts)})"


def _strict(action: Action, upstream_tasks: bool, upstream: TaskSupport | None, forced: bool) -> TaskSupport:
    if action is Action.DENY:
        return TaskSupport.FORBIDDEN
    if forced or action in (Action.APPROVE, Action.POLICY):
        return TaskSupport.REQUIRED
    if not upstream_tasks:
        return TaskSupport.FORBIDDEN
    return upstream if upstream is not None else TaskSupport.OPTIONAL


def _at(holder: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(holder, Mapping):
            return None
        holder = holder.get(key)
    return holder
