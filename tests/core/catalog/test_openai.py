"""Function definitions and the way back from a model's call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.names import NameStyle, NameTable, encode_alias
from taskgate.core.catalog.openai import MAX_ARGUMENTS, export_functions
from taskgate.core.errors import CallerError

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    (("files", "read_file"), {"name": "read_file", "description": "Reads a file.", "inputSchema": SCHEMA}),
    (("files", "räume auf"), {"name": "räume auf", "title": "Tidy up", "inputSchema": {}}),
    (("files", "bare"), {"name": "bare", "description": 5}),
]
NAMES = NameTable.build([pair for pair, _ in TOOLS])
EXPORT = export_functions(TOOLS, NAMES)


def test_a_tool_becomes_a_function_definition() -> None:
    assert EXPORT.definitions[0] == {
        "type": "function",
        "function": {"name": "files__read_file", "description": "Reads a file.", "parameters": SCHEMA},
    }
    assert EXPORT.definitions[1]["function"]["description"] == "Tidy up"
    assert EXPORT.definitions[2]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert EXPORT.definitions[2]["function"]["description"] == ""


def test_the_flat_form_has_no_inner_object() -> None:
    assert export_functions(TOOLS[:1], NAMES, flat=True).definitions[0]["name"] == "files__read_file"


def test_a_refused_or_repeated_tool_is_not_exported() -> None:
    names = NameTable.build([("a", "x"), ("a", "X"), ("a", "y")])
    export = export_functions([(("a", "x"), {}), (("a", "y"), {}), (("a", "y"), {})], names)
    assert [definition["function"]["name"] for definition in export.definitions] == ["a__y"]


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c1", "type": "function", "function": {"name": "files__read_file", "arguments": '{"path": "/a"}'}},
        {"call_id": "c1", "type": "function_call", "name": "files__read_file", "arguments": '{"path": "/a"}'},
        {"id": "c1", "function": {"name": encode_alias("files", "read_file"), "arguments": {"path": "/a"}}},
        {"id": "c1", "function": {"name": "mcp.files.read_file", "arguments": {"path": "/a"}}},
    ],
)
def test_a_models_call_finds_its_tool(call: dict[str, Any]) -> None:
    found = EXPORT.call_of(call)
    assert (found.id, found.server, found.tool, found.arguments) == ("c1", "files", "read_file", {"path": "/a"})


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    call = EXPORT.call_of({"function": {"name": "files__bare", "arguments": arguments}})
    assert call.arguments == {}
    assert call.id == ""


@pytest.mark.parametrize(
    ("call", "error_type"),
    [
        ({}, "invalid_tool_call"),
        ({"function": 5}, "invalid_tool_call"),
        ({"function": {"name": 5}}, "invalid_tool_call"),
        ({"function": {"name": "files__write"}}, "unknown_tool"),
        ({"function": {"name": "files__bare", "arguments": "{"}}, "invalid_arguments"),
        ({"function": {"name": "files__bare", "arguments": "[1]"}}, "invalid_arguments"),
        ({"function": {"name": "files__bare", "arguments": "[" * 100_000}}, "invalid_arguments"),
        ({"function": {"name": "files__bare", "arguments": " " * (MAX_ARGUMENTS + 1)}}, "invalid_arguments"),
    ],
)
def test_a_call_that_cannot_be_read_is_refused(call: dict[str, Any], error_type: str) -> None:
    with pytest.raises(CallerError) as caught:
        EXPORT.call_of(call)
    assert caught.value.error_type == error_type


@given(
    st.lists(st.tuples(st.sampled_from(["a", "files", "x-y"]), st.text(min_size=1, max_size=80)), max_size=6),
    st.sampled_from(NameStyle),
)
def test_every_exported_name_is_legal_and_leads_back(pairs: list[tuple[str, str]], style: NameStyle) -> None:
    export = export_functions([(pair, {}) for pair in pairs], NameTable.build(pairs, style))
    for definition in export.definitions:
        name = definition["function"]["name"]
        assert len(name) <= 64
        assert name.replace("_", "").replace("-", "").isalnum() or set(name) <= set("_-")
        assert name.isascii()
        call = export.call_of({"function": {"name": name}})
        assert (call.server, call.tool) == export.pairs[name]
    assert len({d["function"]["name"] for d in export.definitions}) == len(export.definitions)
