"""Schemas of tools: what fits, what does not and why, and which schemas are not worth the risk."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskgate.core.catalog.schema_check import (
    MAX_VIOLATIONS,
    InvalidArguments,
    InvalidOutput,
    SchemaCheck,
    UnusableSchema,
    Violation,
)

PAY = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "maximum": 100},
        "to": {"type": "object", "properties": {"a/b": {"type": "string"}}},
        "code": {"type": "string", "pattern": "^(?=x)x+$"},
    },
    "required": ["amount"],
    "additionalProperties": False,
}


def test_what_fits_has_no_violations() -> None:
    assert SchemaCheck.compile(PAY).violations({"amount": 5, "to": {"a/b": "x"}, "code": "xx"}) == ()


@pytest.mark.parametrize(
    ("value", "violation"),
    [
        ({}, Violation("", '"amount" is a required property')),
        ({"amount": 500}, Violation("/amount", "the value is greater than the maximum of 100")),
        ({"amount": 10**40}, Violation("/amount", "the value is greater than the maximum of 100")),
        ({"amount": 1, "to": {"a/b": 5}}, Violation("/to/a~1b", 'the value is not of type "string"')),
        ({"amount": 1, "x": 2}, Violation("", "Additional properties are not allowed ('x' was unexpected)")),
        (5, Violation("", 'the value is not of type "object"')),
    ],
)
def test_a_violation_names_place_and_reason_but_not_the_value(value: Any, violation: Violation) -> None:
    assert SchemaCheck.compile(PAY).violations(value) == (violation,)


def test_only_the_first_few_are_told() -> None:
    check = SchemaCheck.compile({"type": "array", "items": {"type": "string"}})
    assert len(check.violations(list(range(100)))) == MAX_VIOLATIONS


def test_errors_say_whose_fault_it_is_and_whether_anything_ran() -> None:
    violations = (Violation("", "x"), Violation("/a", "y"))
    arguments, output = InvalidArguments("files__pay", violations), InvalidOutput("files__pay", violations)
    assert "files__pay do not fit: the whole value: x; /a: y." in arguments.message
    assert arguments.data == {"problems": [{"path": "", "reason": "x"}, {"path": "/a", "reason": "y"}]}
    assert (arguments.executed, output.executed) == ("no", "yes")


def test_older_dialects_are_honoured() -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert SchemaCheck.compile(old).violations([5]) != ()


def nested(levels: int) -> Any:
    inner: Any = {}
    for _ in range(levels):
        inner = {"properties": {"a": inner}}
    return inner


def bomb(levels: int) -> dict[str, Any]:
    parts: dict[str, Any] = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**parts, f"a{levels}": {}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (True, "not an object"),
        ("x", "not an object"),
        ({"type": 5}, "not a valid JSON schema"),
        ({"pattern": "("}, "not a valid JSON schema"),
        ({"$ref": "#/nowhere"}, "not a valid JSON schema"),
        ({"$schema": "https://example.test/odd"}, "not a valid JSON schema"),
        ({"$ref": "https://example.test/schema"}, "outside itself"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "outside itself"),
        ({"$dynamicRef": "https://example.test/schema"}, "outside itself"),
        ({"description": "x" * 300_000}, "larger than"),
        (nested(40), "nested deeper"),
        (bomb(30), "too long to apply"),
        (
            {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/a0"},
            "too long a chain",
        ),
        ({"$ref": "#"}, "without end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "without end"),
        ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "not": {"$ref": "#x"}}}}, "without end"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "without end"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_so_at_once(schema: Any, problem: str) -> None:
    start = time.monotonic()
    with pytest.raises(UnusableSchema, match=problem):
        SchemaCheck.compile(schema)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"child": {"$ref": "#"}}},
        {"allOf": [{"$ref": "#/allOf/1"}, {"type": "object"}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}},
        {"anyOf": [True, {"type": "object"}], "if": {}, "then": {}, "else": False},
        bomb(8),
        {"maximum": 10**40},
    ],
)
def test_schemas_may_refer_to_themselves_in_good_measure(schema: Any) -> None:
    assert SchemaCheck.compile(schema).violations({}) == ()


TWICE = {"properties": {"a": {"$ref": "#"}}}
TREE = {
    "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "all": {"type": "array", "items": {"$ref": "#"}}},
    "patternProperties": {"^x": {"type": "string"}},
    "prefixItems": [{}],
    "items": {},
}


def deep(levels: int, name: str = "a") -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    "schema", [{"allOf": [TWICE, TWICE]}, {"anyOf": [TWICE, {"additionalProperties": {"$ref": "#"}}]}]
)
def test_a_schema_that_doubles_with_each_level_is_refused_for_deep_values_only(schema: dict[str, Any]) -> None:
    check = SchemaCheck.compile(schema)
    assert check.violations(deep(6)) == ()
    start = time.monotonic()
    with pytest.raises(UnusableSchema, match="too long"):
        check.violations(deep(60))
    assert time.monotonic() - start < 2


def test_a_schema_that_goes_along_with_its_value_is_fine_however_deep() -> None:
    check = SchemaCheck.compile(TREE)
    assert check.violations(deep(60, "left")) == ()
    assert check.violations({"all": [{"all": [{}]}]}) == ()
    assert check.violations(deep(5000)) == ()


@pytest.mark.parametrize("target", ["#/$defs/l/5", "#/$defs/l/x", "#/type/x", "#unknown"])
def test_a_reference_to_nothing_is_an_invalid_schema(target: str) -> None:
    with pytest.raises(UnusableSchema):
        SchemaCheck.compile({"type": "object", "$ref": target, "$defs": {"l": [{}]}})
