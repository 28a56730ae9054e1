"""What a tool is listed with: its `taskSupport`, and its output schema where a notice of ours may come instead of a result."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, assert_never

from taskgate.core.governance.decision import Action

# Which `taskSupport` a tool shows, and whether a call obeys it.
#
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


# The output schema that a tool is listed with, where a caller may get a notice of ours in the place of the tool's own
# output.
#
# A call that takes long or waits for people is answered with a notice that names its task; a result beyond its server's
# budget comes without its structured content. Clients check structured content against the listed schema and throw away
# what does not fit, so the listed schema allows both: what the tool's own schema allows, and our notice, and nothing
# else. What a tool gives is still checked against its own.

NOTICE: Final = "taskgate_notice"
"""The one member of the structured content of a notice."""

_NOTICE_SCHEMA: Final[Mapping[str, Any]] = {
    "description": "Instead of the tool's own output: the call goes on as a task, or its output was too large.",
    "type": "object",
    "properties": {
        NOTICE: {
            "type": "object",
            "properties": {
                "kind": {"enum": ["task", "cut"]},
                "message": {"type": "string"},
                "task_id": {"type": "string"},
                "status": {"type": "string"},
                "original_bytes": {"type": "integer"},
                "limit_bytes": {"type": "integer"},
            },
            "required": ["kind", "message"],
        }
    },
    "required": [NOTICE],
    "additionalProperties": False,
}

_HOISTED: Final = ("$defs", "definitions")
_ONE: Final = frozenset(
    (
        *("items", "additionalItems", "unevaluatedItems", "contains", "contentSchema"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("not", "if", "then", "else"),
    )
)
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED: Final = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies", *_HOISTED))
_OWN_PLACE: Final = "#/anyOf/0"
MAX_DEPTH: Final = 100


class _CannotMove(Exception):
    """The schema says where it is found, so a copy in another place would mean something else."""


def task_notice(task_id: str, status: str, message: str) -> dict[str, Any]:
    return {NOTICE: {"kind": "task", "message": message, "task_id": task_id, "status": status}}


def cut_notice(original_bytes: int, limit_bytes: int, message: str) -> dict[str, Any]:
    return {NOTICE: {"kind": "cut", "message": message, "original_bytes": original_bytes, "limit_bytes": limit_bytes}}


def describes_objects(schema: Any) -> bool:
    """What the stateful generation demands of an output schema, and the only kind that its clients can read."""
    return isinstance(schema, Mapping) and schema.get("type") == "object"


def with_notice(schema: Any) -> dict[str, Any] | None:
    """The union of a tool's own output schema and our notice; None if it cannot be made, and the tool is better listed without.

    Its definitions move to the root under their names, so references to them stay as they are; any other local reference is
    turned to the tool's schema in its new place.
    """
    if not isinstance(schema, Mapping):
        return None
    try:
        own = _moved(schema, 0)
    except _CannotMove:
        return None
    union: dict[str, Any] = {}
    if "$schema" in own:
        union["$schema"] = own.pop("$schema")
    if describes_objects(schema):
        union["type"] = "object"
    union["anyOf"] = [own, dict(_NOTICE_SCHEMA)]
    for holder in _HOISTED:
        if isinstance(own.get(holder), dict):
            union[holder] = own.pop(holder)
    return union


def _moved(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if depth > MAX_DEPTH or "$id" in schema:
        raise _CannotMove
    return {key: _moved_value(key, value, depth) for key, value in schema.items()}


def _moved_value(key: str, value: Any, depth: int) -> Any:
    if key in ("$ref", "$recursiveRef", "$dynamicRef"):
        return _turned(value)
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _moved(inner, depth + 1) for name, inner in value.items()}
    if key in _MANY and isinstance(value, list):
        return [_moved(inner, depth + 1) for inner in value]
    if key in _ONE:
        return _moved(value, depth + 1)
    return value


def _turned(reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return reference
    pointer = reference[1:]
    if pointer and not pointer.startswith("/"):
        # An anchor: found by its name wherever it is.
        return reference
    if any(pointer.startswith(f"/{holder}/") for holder in _HOISTED):
        return reference
    return _OWN_PLACE + pointer
