"""Values that a tool's input schema suggests for an argument.

Enumerations, constants, examples, defaults and booleans, also behind local references and alternatives. Schemas come
from servers, so the search is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CANDIDATES = 10_000
_MAX_STEPS = 500


def values_from_schema(schema: Any, argument: str) -> tuple[str, ...]:
    """Return everything that the input schema suggests for an argument, in order. A dotted name refers to nested
    objects.
    """
    steps = _Steps(schema)
    parts: list[Any] = [schema]
    for name in argument.split(".") if not _has_property(schema, argument) else [argument]:
        parts = [inner for part in parts for inner in steps.properties(part, name)]
    found = (text for part in parts for value in steps.values(part) if (text := _text(value)) is not None)
    unique: dict[str, None] = {}
    for text in found:
        unique.setdefault(text)
        if len(unique) >= MAX_CANDIDATES:
            break
    return tuple(unique)


def _has_property(schema: Any, name: str) -> bool:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return isinstance(properties, Mapping) and name in properties


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return None


class _Steps:
    """Walks one schema and counts steps, because references may be circular."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.left = _MAX_STEPS

    def properties(self, schema: Any, name: str) -> Iterator[Any]:
        for part in self.parts(schema):
            properties = part.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                yield properties[name]

    def values(self, schema: Any) -> Iterator[Any]:
        for part in self.parts(schema):
            if "const" in part:
                yield part["const"]
            for keyword in ("enum", "examples"):
                listed = part.get(keyword)
                yield from listed if isinstance(listed, list) else ()
            if "default" in part:
                yield part["default"]
            kind = part.get("type")
            if kind == "boolean" or (isinstance(kind, list) and "boolean" in kind):
                yield from (True, False)
            if "items" in part:
                yield from self.values(part["items"])

    def parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """The schema itself and the schemas it is composed of."""
        waiting = [schema]
        while waiting and self.left > 0:
            part = waiting.pop(0)
            self.left -= 1
            if not isinstance(part, Mapping):
                continue
            yield part
            if isinstance(part.get("$ref"), str):
                waiting.append(self.referred(part["$ref"]))
            for keyword in ("anyOf", "oneOf", "allOf"):
                alternatives = part.get(keyword)
                waiting += alternatives if isinstance(alternatives, list) else []

    def referred(self, reference: str) -> Any:
        """Return the target of a local reference; remote references are never followed."""
        if not reference.startswith("#/"):
            return None
        found = self.root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found
