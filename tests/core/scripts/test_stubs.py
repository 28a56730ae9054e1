"""Stubs of tools: valid Python, in a stable order, safe with hostile definitions."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.stubs import DescribedTool, parameter_order, stub_of, stubs_of

NAME = PythonName("files", "read", "files__read")


def tool(properties: dict[str, Any], required: Any = (), **more: Any) -> DescribedTool:
    return DescribedTool(NAME, "", {"properties": properties, "required": list(required), **more})


def signature(of: DescribedTool) -> str:
    return stub_of(of).splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "string"}}, "list[str]"),
        ({"type": "object"}, "dict"),
        ({"properties": {}}, "dict"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"oneOf": [{"type": "string"}, {"x": 1}]}, "Any"),
        ({"anyOf": []}, "Any"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"const": 3}, "Literal[3]"),
        ({"enum": []}, "Any"),
        ({"enum": [str(number) for number in range(20)]}, "str"),
        ({"enum": [{}, 1]}, "Any"),
        ({"$ref": "#/$defs/name"}, "str"),
        ({"$ref": "#/$defs/loop"}, "Any"),
        ({"$ref": "#/$defs/missing/x"}, "Any"),
        ({"$ref": "other.json"}, "Any"),
        ({"type": 3}, "Any"),
        ({"type": "strange"}, "Any"),
        (True, "Any"),
    ],
)
def test_schema_types_become_python_types(schema: Any, written: str) -> None:
    defs = {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    of = DescribedTool(NAME, "", {"properties": {"x": schema}, "required": ["x"], "$defs": defs})
    assert signature(of) == f"async def read(x: {written}): ..."


def test_required_parameters_come_first_and_defaults_are_shown() -> None:
    properties = {
        "a": {"type": "integer", "default": 3},
        "b": {"type": "string"},
        "c": {"default": "x" * 100},
        "d": True,
    }
    of = tool(properties, ["b"])
    assert signature(of) == "async def read(b: str, a: int = 3, c: Any = None, d: Any = None): ..."
    assert parameter_order(of.input_schema) == ("b", "a", "c", "d")


def test_nested_shapes_are_comments() -> None:
    entry = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name"],
    }
    of = DescribedTool(
        NAME, "Lists.", {"properties": {"options": entry, "tags": {"items": {"type": "string"}}}}, {"items": entry}
    )
    text = stub_of(of)
    assert '# options: {"name": str, "size"?: int}' in text
    assert '# returns [{"name": str, "size"?: int}, ...]' in text
    assert "# Lists." in text
    assert "# tags" not in text


def test_result_without_members_has_its_type() -> None:
    assert "# returns str" in stub_of(DescribedTool(NAME, "", {}, {"type": "string"}))


def test_many_members_are_cut() -> None:
    members: dict[str, Any] = {f"m{number}": {} for number in range(50)}
    assert ", ...}" in stub_of(tool({"x": {"properties": members}}))


def test_nesting_of_shapes_is_limited() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"x": deep}}
    text = stub_of(tool({"x": deep, "y": {"type": "array", "items": {"type": "array", "items": deep}}}))
    assert len(text) < 500


def test_names_that_python_does_not_accept_are_passed_by_call_tool() -> None:
    text = stub_of(tool({"odd-name": {}, "class": {}, "é": {}, "ok": {}}))
    assert 'also "odd-name", "class", "\\u00e9": await call_tool("files__read", {...})' in text
    assert "async def read(ok: Any = None)" in text


def test_invalid_properties_are_ignored() -> None:
    assert signature(DescribedTool(NAME, "", {"properties": 3, "required": 4})) == "async def read(): ..."


def test_description_is_one_visible_line() -> None:
    text = stub_of(DescribedTool(NAME, 'a\r\n"""\nimport os\u2028\u202ex\x00' + "y" * 5000, {}))
    assert len(text.splitlines()) == 2
    assert text.isascii() or "…" in text
    assert "\u202e" not in text
    assert len(text) < 600


def test_order_size_and_what_does_not_fit() -> None:
    tools = [DescribedTool(PythonName(server, name, f"{server}__{name}"), "", {}) for server in "ba" for name in "yx"]
    every = stubs_of(tools, 10_000)
    assert every.text.index("class a:") < every.text.index("class b:")
    assert (every.tools, every.size, every.omitted) == (4, len(every.text.encode()), ())
    assert stubs_of(reversed(tools), 10_000) == every
    some = stubs_of(tools, every.size // 2)
    assert some.tools == 2
    assert some.omitted == ("b__x", "b__y")
    ast.parse(some.text)


_KEYS = st.sampled_from(
    ["type", "properties", "items", "enum", "anyOf", "$ref", "default", "required", "const"]
) | st.text(max_size=4)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.text(max_size=30),
    st.dictionaries(_KEYS, _JSON, max_size=4),
    st.none() | st.dictionaries(_KEYS, _JSON, max_size=3),
)
def test_stubs_of_any_definition_are_python(
    description: str, input_schema: dict[str, Any], output: dict[str, Any] | None
) -> None:
    stubs = stubs_of([DescribedTool(NAME, description, input_schema, output)], 100_000)
    tree = ast.parse(stubs.text)
    assert len(tree.body) == 1
