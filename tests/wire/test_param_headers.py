"""Parameter headers: validation of schemas, headers to send, and mismatches."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.mcp.param_headers import (
    InvalidParamHeader,
    ParamHeader,
    ParamType,
    header_values,
    mismatch,
    param_headers_of,
)


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def annotated(header: Any = "Region", kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": header, **more}


DEEP = schema(
    region=annotated(),
    deep=schema(count=annotated("Count", "integer"), flag=annotated("Flag", "boolean")),
    free={"type": "string"},
)
PARAMS = param_headers_of(DEEP)


def test_annotated_properties_are_found_along_properties() -> None:
    assert (
        ParamHeader("mcp-param-region", ("region",), ParamType.STRING),
        ParamHeader("mcp-param-count", ("deep", "count"), ParamType.INTEGER),
        ParamHeader("mcp-param-flag", ("deep", "flag"), ParamType.BOOLEAN),
    ) == PARAMS


@pytest.mark.parametrize(
    "good",
    [
        None,
        {},
        {"properties": 5},
        schema(a=5),
        schema(**{"x-mcp-header": {"type": "string"}}),
        schema(a={"type": "object", "default": {"x-mcp-header": "X"}, "enum": [{"x-mcp-header": "X"}]}),
        {"anyOf": [schema(**{"x-mcp-header": {"type": "string"}})]},
        {"type": "object", "examples": [{"x-mcp-header": "X"}], "allOf": [{"type": "object"}]},
    ],
)
def test_schema_without_annotations_has_no_headers(good: Any) -> None:
    assert param_headers_of(good) == ()


def nested(levels: int) -> Any:
    inner: Any = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


def listed(levels: int) -> Any:
    inner: Any = []
    for _ in range(levels):
        inner = [inner]
    return {"allOf": inner}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({**schema(), "x-mcp-header": "X"}, "the whole input"),
        (schema(a=annotated("")), "not an HTTP token"),
        (schema(a=annotated("a b")), "not an HTTP token"),
        (schema(a=annotated("a\r\nb")), "not an HTTP token"),
        (schema(a=annotated(5)), "not an HTTP token"),
        (schema(a=annotated(kind="number")), "not of type string, integer or boolean"),
        (schema(a=annotated(kind=["string", "null"])), "not of type string, integer or boolean"),
        (schema(a=annotated(kind=None)), "not of type string, integer or boolean"),
        (schema(a=annotated("X"), b=annotated("x")), "share the header"),
        (schema(a={"type": "array", "items": annotated()}), "under 'items'"),
        ({"anyOf": [schema(a=annotated())]}, "under 'anyOf'"),
        ({"$defs": {"a": annotated()}}, "under '.defs'"),
        ({"additionalProperties": annotated()}, "under 'additionalProperties'"),
        (schema(a=annotated(items=annotated("Y"))), "under 'items'"),
        (nested(70), "nested deeper"),
        (listed(70), "under 'allOf'"),
    ],
)
def test_invalid_annotation_is_reported(bad: Any, problem: str) -> None:
    with pytest.raises(InvalidParamHeader, match=problem):
        param_headers_of(bad)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu", "deep": {"count": 4, "flag": True}}, {"region": "eu", "count": "4", "flag": "true"}),
        ({"region": None, "deep": {"count": 4.0, "flag": False}}, {"count": "4", "flag": "false"}),
        ({"region": "", "deep": None}, {"region": ""}),
        ({"region": "é"}, {"region": "=?base64?w6k=?="}),
        ({"region": " padded"}, {"region": "=?base64?IHBhZGRlZA==?="}),
        ({"region": "=?base64?literal?="}, {"region": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="}),
        ({"region": "a\nb"}, {"region": "=?base64?YQpi?="}),
        ({"region": 5, "deep": {"count": True, "flag": "true"}}, {}),
        ({"deep": {"count": 1.5}}, {}),
        ({"deep": {"count": "4"}}, {}),
        ({"deep": [1]}, {}),
    ],
)
def test_headers_match_arguments(arguments: dict[str, Any], headers: dict[str, str]) -> None:
    expected = {f"mcp-param-{name}": value for name, value in headers.items()}
    assert header_values(PARAMS, arguments) == expected
    assert mismatch(PARAMS, arguments, expected) is None


@pytest.mark.parametrize(
    ("arguments", "headers", "problem"),
    [
        ({"region": "eu"}, {}, "is missing"),
        ({"region": "eu"}, {"region": "us"}, "differs"),
        ({"region": "eu"}, {"region": "EU"}, "differs"),
        ({"region": None}, {"region": "eu"}, "although the argument is not"),
        ({}, {"flag": "true"}, "although the argument is not"),
        ({"region": "a"}, {"region": "=?base64?YQ?="}, "not properly encoded"),
        ({"region": "a"}, {"region": "=?base64?!?="}, "not properly encoded"),
        ({"region": "a"}, {"region": "=?base64?/w==?="}, "not properly encoded"),
        ({"region": "a"}, {"region": "=?base64?YR==?="}, "not properly encoded"),
        ({"deep": {"count": 42}}, {"count": "43"}, "differs"),
        ({"deep": {"count": 42}}, {"count": "0x2a"}, "differs"),
        ({"deep": {"count": 42}}, {"count": "42.5"}, "differs"),
    ],
)
def test_mismatch_is_reported(arguments: dict[str, Any], headers: dict[str, str], problem: str) -> None:
    received = {f"mcp-param-{name}": value for name, value in headers.items()}
    assert problem in str(mismatch(PARAMS, arguments, received))


def test_integers_are_compared_as_numbers_and_other_headers_ignored() -> None:
    received = {"mcp-param-count": "42.0", "mcp-param-other": "x"}
    assert mismatch(PARAMS, {"deep": {"count": 42}}, received) is None
