"""The output schema that a tool is listed with if a notice of the gateway may replace the tool's output.

A call that takes long or needs approval returns a notice with its task; a result that exceeds its server's limit loses its
structured content. Clients validate structured content against the listed schema, so the listed schema allows the tool's own
output and the notice. The gateway validates a tool's output against the tool's own schema.

Two shapes:

- A plain object schema at the root is kept, with its properties, definitions and unknown keywords, because clients generate
  types from them. The notice is declared by `patternProperties` and not as a further property: a property would be a field of the
  generated type, and would turn a mapping (`additionalProperties` without `properties`) into a record. The required properties
  move into an `anyOf` beside the notice.
- Any other root becomes the first alternative of a union.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NOTICE: Final = "taskgate_notice"
"""The only member of the structured content of a notice."""

_NOTICE_MEMBER: Final[Mapping[str, Any]] = {
    "description": "Instead of the tool's own output: the call continues as a task, or its output was too large.",
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["task", "cut"]},
        "message": {"type": "string"},
        "task_id": {"type": "string"},
        "status": {"type": "string"},
        "original_bytes": {"type": "integer"},
        "limit_bytes": {"type": "integer"},
    },
    "required": ["kind", "message"],
}
_NOTICE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {NOTICE: _NOTICE_MEMBER},
    "required": [NOTICE],
    "additionalProperties": False,
}
_NOT_PLAIN: Final = frozenset(
    (
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
    )
)
"""Keywords at the root that may reject a notice, or that the first shape would have to merge with."""

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
    """The schema has its own base URI (`$id`), so its references would resolve differently in another place."""


def task_notice(task_id: str, status: str, message: str) -> dict[str, Any]:
    return {NOTICE: {"kind": "task", "message": message, "task_id": task_id, "status": status}}


def cut_notice(original_bytes: int, limit_bytes: int, message: str) -> dict[str, Any]:
    return {NOTICE: {"kind": "cut", "message": message, "original_bytes": original_bytes, "limit_bytes": limit_bytes}}


def describes_objects(schema: Any) -> bool:
    """Whether the schema describes objects, as the stateful generation requires."""
    return isinstance(schema, Mapping) and schema.get("type") == "object"


def with_notice(schema: Any) -> dict[str, Any] | None:
    """Return a schema for the tool's own output and for the notice. None if there is none; the tool is then listed
    without a schema.
    """
    if not isinstance(schema, Mapping):
        return None
    return _beside_own(schema) if _is_plain_object(schema) else _union(schema)


def _is_plain_object(schema: Mapping[str, Any]) -> bool:
    required, properties = schema.get("required", []), schema.get("properties", {})
    return (
        describes_objects(schema)
        and _NOT_PLAIN.isdisjoint(schema)
        and isinstance(required, list)
        and isinstance(properties, Mapping)
        and NOTICE not in properties
        and NOTICE not in required
    )


def _beside_own(schema: Mapping[str, Any]) -> dict[str, Any]:
    listed = {key: value for key, value in schema.items() if key != "required"}
    listed["patternProperties"] = {f"^{NOTICE}$": dict(_NOTICE_MEMBER)}
    if schema.get("required"):
        listed["anyOf"] = [{"required": schema["required"]}, {"required": [NOTICE]}]
    return listed


def _union(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Definitions move to the root under their names, so references to them stay valid; other local references are
    redirected to the tool's schema in its new place.
    """
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
        # An anchor is found by its name in any place.
        return reference
    if any(pointer.startswith(f"/{holder}/") for holder in _HOISTED):
        return reference
    return _OWN_PLACE + pointer
