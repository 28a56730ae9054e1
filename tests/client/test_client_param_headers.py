"""Which arguments travel as headers, and how their values are written there."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.client.generations.param_headers import InvalidParamHeader, header_lines, header_value, param_headers


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_annotated_arguments_become_headers_also_inside_objects() -> None:
    nested = schema(
        region={"type": "string", "x-mcp-header": "Region"},
        inner={"type": "object", "properties": {"deep": {"type": "boolean", "x-mcp-header": "Deep"}}},
        plain={"type": "string"},
    )
    headers = param_headers(nested)
    assert headers == {"Region": ("region",), "Deep": ("inner", "deep")}
    arguments = {"region": "eu", "inner": {"deep": True}, "plain": "x"}
    assert header_lines(headers, arguments) == "mcp-param-Region: eu\r\nmcp-param-Deep: true\r\n"
    assert header_lines(headers, {"region": None, "inner": "no object"}) == ""


@pytest.mark.parametrize(
    "bad",
    [
        schema(a={"type": "string", "x-mcp-header": "no spaces"}),
        schema(a={"type": "string", "x-mcp-header": ""}),
        schema(a={"type": "string", "x-mcp-header": 7}),
        schema(a={"type": "number", "x-mcp-header": "N"}),
        schema(a={"type": "object", "x-mcp-header": "O"}),
        schema(a={"type": "string", "x-mcp-header": "X"}, b={"type": "string", "x-mcp-header": "x"}),
        schema(a={"type": "array", "items": {"type": "string", "x-mcp-header": "X"}}),
        {"anyOf": [schema(a={"type": "string", "x-mcp-header": "X"})]},
    ],
)
def test_a_schema_that_breaks_the_rules_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamHeader):
        param_headers(bad)


@given(st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans()))
def test_a_header_value_is_always_one_safe_line_that_can_be_read_back(value: Any) -> None:
    written = header_value(value)
    assert written.isascii()
    assert not set(written) & set("\r\n\0")
    assert written == written.strip()
    plain = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if written != plain:
        assert base64.b64decode(written.removeprefix("=?base64?").removesuffix("?=")).decode() == plain
