"""The output schema that a tool is listed with, where a caller may get a notice of ours in the place of the tool's own output.

A call that takes long or waits for people is answered with a notice that names its task; a result beyond its server's budget
comes without its structured content. Clients check structured content against the listed schema and throw away what does not fit,
so the listed schema allows both: what the tool's own schema allows, and our notice, and nothing else. What a tool gives is still
checked against its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
