"""Paths of conditions that a schema cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.facts.schema_paths import declared_names, may_have

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"anyOf": [{"type": "object"}]},
        "true": True,
        "closed": {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
    },
}


@pytest.mark.parametrize(
    ("path", "expected", "names"),
    [
        ("amount", True, ()),
        ("amout", False, tuple(SCHEMA["properties"])),
        ("amount.x", True, ()),
        ("to.city", True, ()),
        ("to.town", False, ("city",)),
        ("items.*.price", True, ()),
        ("items.*.prize", False, ("price",)),
        ("labels.x", True, ()),
        ("any.x", True, ()),
        ("true.x", True, ()),
        ("closed.b", True, ("a",)),
    ],
)
def test_path_that_a_schema_may_have(path: str, expected: bool, names: tuple[str, ...]) -> None:
    steps = tuple(path.split("."))
    assert (may_have(SCHEMA, steps), declared_names(SCHEMA, steps)) == (expected, names)


@pytest.mark.parametrize("schema", [None, True, [], {}, {"properties": {}}, {"properties": []}, {"$ref": "#/x"}])
def test_schema_that_declares_nothing_may_have_anything(schema: Any) -> None:
    assert may_have(schema, ("a",))
    assert declared_names(schema, ("a",)) == ()
