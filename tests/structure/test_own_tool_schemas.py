"""The input schemas of the gateway's own tools are minimal: frameworks that build types from them must not lose the whole list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from taskgate.core.catalog.rendering import Audience
from taskgate.core.generations.generation import Generation
from taskgate.gateway.own_tools.table import TOOLS

KEYWORDS = {"type", "description", "properties", "required", "items", "enum", "default", "minimum", "maximum"}
TYPES = {"string", "integer", "number", "boolean", "object", "array"}


def schemas_in(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas_in(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas_in(schema["items"], f"{path}[]")


@pytest.mark.parametrize("name", TOOLS)
def test_every_property_has_one_type_and_there_are_no_unions(name: str) -> None:
    schema = json.loads(TOOLS[name].face.rendered(Audience(Generation.STATEFUL)))["inputSchema"]
    assert schema["type"] == "object"
    for path, found in schemas_in(schema, name):
        assert found.get("type") in TYPES, path
        assert set(found) - {"additionalProperties"} <= KEYWORDS, path
        assert found["type"] != "array" or "items" in found, path
