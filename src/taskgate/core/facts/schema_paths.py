"""Whether a tool's input schema can have an argument at the path of a condition, and which names it declares there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OPEN: Final = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "if", "patternProperties"})
"""A schema with any of these may allow what it does not declare as a property."""


def may_have(schema: Any, path: tuple[str, ...]) -> bool:
    """Return False only if the schema declares other names at some step of the path, and nothing that may allow this one."""
    if not path or not isinstance(schema, Mapping) or not _OPEN.isdisjoint(schema):
        return True
    step, rest = path[0], path[1:]
    if step == "*":
        return may_have(schema.get("items"), rest)
    declared = schema.get("properties")
    if not isinstance(declared, Mapping) or not declared:
        return True
    if step in declared:
        return may_have(declared[step], rest)
    return isinstance(schema.get("additionalProperties"), Mapping)


def declared_names(schema: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that the schema declares where the path leaves it."""
    if not path or not isinstance(schema, Mapping):
        return ()
    step, rest = path[0], path[1:]
    if step == "*":
        return declared_names(schema.get("items"), rest)
    declared = schema.get("properties")
    if not isinstance(declared, Mapping):
        return ()
    return declared_names(declared[step], rest) if step in declared else tuple(map(str, declared))
