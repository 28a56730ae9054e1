"""The `taskSupport` that a tool shows to a caller, and whether a call conforms to it.

Both depend on what the gates decided, what the server supports, whether the caller declared tasks, and the operator's
`annotation_mode`: `auto` makes exceptions for callers without tasks, `strict` applies the plain matrix to all callers,
`dual` shows `optional` to all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.settings.governance import Action
from taskgate.core.settings.tasks import AnnotationMode


class TaskCheck(StrEnum):
    """Whether a call conforms to what its tool shows."""

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
    """Return the value that a tool shows to this caller, or None if it is not listed."""
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
    """Return whether a call with or without `task` conforms to what the tool showed to this caller."""
    if task_present:
        return TaskCheck.TASK_FORBIDDEN if shown is TaskSupport.FORBIDDEN else TaskCheck.TASK
    return TaskCheck.TASK_REQUIRED if shown is TaskSupport.REQUIRED else TaskCheck.SYNC


def annotation_line(tool: str, shown: TaskSupport | None, action: Action, *, upstream_tasks: bool, forced: bool) -> str:
    """Return the log message for one tool."""
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
