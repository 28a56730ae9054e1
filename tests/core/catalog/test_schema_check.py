"""Schemas of tools: which values are valid, why others are not, and which schemas are refused as too expensive."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from tests.harness.cpu_time import PAUSE_S, least_cpu

from taskgate.core.catalog.schema_check import (
    MAX_DEPTH,
    MAX_EXPLAINED,
    MAX_PATTERNS,
    InvalidArguments,
    InvalidOutput,
    SchemaCheck,
    UnusableSchema,
    Violation,
)
from taskgate.core.catalog.schema_fault import UNKNOWN_PLACE
from taskgate.core.catalog.schema_work import SchemaWork, TooMuchWork

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


def test_a_valid_value_has_no_violations() -> None:
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


def test_only_the_first_violation_is_reported() -> None:
    check = SchemaCheck.compile({"type": "array", "items": {"type": "string"}})
    assert check.violations(["a", 1, 2]) == (Violation("/1", 'the value is not of type "string"'),)


def test_errors_state_who_caused_them_and_executed() -> None:
    violations = (Violation("", "x"), Violation("/a", "y"))
    arguments, output = InvalidArguments("files__pay", violations), InvalidOutput("files__pay", violations)
    assert "files__pay do not match the schema: the whole value: x; /a: y." in arguments.message
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
            {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(1450)}, "$ref": "#/$defs/a0"},
            "too long a chain",
        ),
        ({"$ref": "#"}, "without end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "without end"),
        ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "not": {"$ref": "#x"}}}}, "without end"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "without end"),
    ],
)
def test_an_unusable_schema_is_reported_at_once(schema: Any, problem: str) -> None:
    with pytest.raises(UnusableSchema, match=problem):
        SchemaCheck.compile(schema)


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
def test_recursive_schemas_are_accepted_within_limits(schema: Any) -> None:
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
    with pytest.raises(UnusableSchema, match="too long"):
        check.violations(deep(60))


def test_a_schema_that_recurses_with_its_value_is_accepted_at_any_depth() -> None:
    check = SchemaCheck.compile(TREE)
    assert check.violations(deep(60, "left")) == ()
    assert check.violations({"all": [{"all": [{}]}]}) == ()
    assert check.violations(deep(5000), b"{}" * 5000) == ()


@pytest.mark.parametrize("target", ["#/$defs/l/5", "#/$defs/l/x", "#/type/x", "#unknown"])
def test_a_reference_to_nothing_is_an_invalid_schema(target: str) -> None:
    with pytest.raises(UnusableSchema):
        SchemaCheck.compile({"type": "object", "$ref": target, "$defs": {"l": [{}]}})


@pytest.mark.parametrize(
    ("schema", "value", "violation"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, Violation("", "it does not match `anyOf`")),
        (
            {"properties": {"a": {"anyOf": [{"type": "string"}]}, "b": {"oneOf": [{"type": "null"}, {"minimum": 3}]}}},
            {"a": "fits", "b": 1},
            Violation("/b", "it does not match `oneOf`"),
        ),
        (
            {"$defs": {"row": {"not": {"type": "null"}}}, "items": {"$ref": "#/$defs/row"}},
            [1, 2, None],
            Violation("/2", "it does not match `not`"),
        ),
        (
            {"properties": {"a b/c": {"allOf": [{"anyOf": [{"$ref": "#/$defs/n"}]}]}}, "$defs": {"n": {"minimum": 3}}},
            {"a b/c": 1},
            Violation("/a b~1c", "it does not match `anyOf`"),
        ),
        ({"prefixItems": [True], "items": False}, [1, 2], Violation("/1", "nothing is allowed here")),
        (
            {"additionalProperties": {"type": "string"}},
            {"x": {}},
            Violation("/x", 'the value is not of type "string"'),
        ),
        (
            {"patternProperties": {"^a": {}}, "additionalProperties": False},
            {"a": 1, "b": 2},
            Violation("", "Additional properties are not allowed ('b' was unexpected)"),
        ),
        (
            {"patternProperties": {"^a": {"type": "null"}}},
            {"a": 1},
            Violation("", "it does not match `patternProperties`"),
        ),
    ],
)
def test_the_first_violation_is_found_without_trying_alternatives(
    schema: Any, value: Any, violation: Violation
) -> None:
    assert SchemaCheck.compile(schema).violations(value) == (violation,)


def test_a_distant_violation_is_reported_without_its_place() -> None:
    check = SchemaCheck.compile({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    value = ["x"] * 2_000 + [5]
    assert len(json.dumps(value)) < MAX_EXPLAINED
    (found,) = check.violations(value)
    assert (found.path, found.reason) == ("", UNKNOWN_PLACE)


def test_fault_in_a_large_value_is_reported_without_its_place() -> None:
    """Looking for the place takes many times as long as the check."""
    check = SchemaCheck.compile({"items": {"type": "string"}})
    for count, path in ((1_000, "/1000"), (MAX_EXPLAINED, "")):
        (found,) = check.violations(["x"] * count + [5])
        assert found.path == path


def alternatives(levels: int, leaf: Any) -> dict[str, Any]:
    """Each definition is one of two uses of the next: what a validator collects doubles with each level."""
    parts = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**parts, f"a{levels}": leaf}, "items": {"$ref": "#/$defs/a0"}}


LINES = [["x" * 50] * n for n in (20, 200, 2_000, 20_000)]
HOSTILE: dict[str, tuple[Any, Any]] = {
    "alternatives": (alternatives(12, {"type": "integer"}), LINES),
    "many bad items": ({"items": {"type": "integer"}}, LINES),
    "enum of objects": (
        {"items": {"enum": [{"a": n} for n in range(1450)]}},
        [[{"a": 5}] * n for n in (20, 2_000, 20_000)],
    ),
    "backtracking": (
        {"items": {"pattern": "^(?=x)(x+)+$"}},
        [["x" * n + "!"] for n in (100, 5_000, 100_000, 1_000_000)],
    ),
    "counting": ({"items": {"pattern": "[xy]*x[xy]{300}z"}}, [["xy" * n] for n in (100, 5_000, 500_000)]),
    "many patterns": (
        {"patternProperties": {f"^{n}.*{n}$": {"type": "null"} for n in range(100)}},
        [{f"{k}a{k}": 5 for k in range(n)} for n in (100, 10_000, 100_000)],
    ),
    "required": ({"items": {"required": [f"k{n}" for n in range(5000)]}}, [[{}] * n for n in (10, 1_000, 100_000)]),
    "recursive": (
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]},
        [deep(n) for n in (5, 12, 20, 60)],
    ),
    "unique": ({"uniqueItems": True}, [[{"a": k} for k in range(n)] for n in (100, 10_000, 100_000)]),
    "nested bad": (
        {
            "$defs": {"n": {"properties": {"c": {"items": {"$ref": "#/$defs/n"}}, "v": {"type": "string"}}}},
            "$ref": "#/$defs/n",
        },
        [{"c": [{"c": [{"v": 1}] * n}] * n} for n in (3, 30, 200)],
    ),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_no_schema_and_value_block_the_event_loop(which: str) -> None:
    schema, values = HOSTILE[which]
    assert least_cpu(lambda: SchemaCheck.compile(schema)) < PAUSE_S
    check = SchemaCheck.compile(schema)
    for value in values:
        text = json.dumps(value).encode()

        def step(value: Any = value, text: bytes = text) -> None:
            with suppress(UnusableSchema):
                check.violations(value, text)

        assert least_cpu(step) < PAUSE_S, f"{len(text)} bytes"


COSTLY = {
    "patterns": {"properties": {f"p{n}": {"pattern": r"\p{L}{20}" + str(n)} for n in range(100)}},
    "too many patterns": {"properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(101)}},
    "parts": {"properties": {f"p{n}": {"type": "string"} for n in range(1490)}},
    "too many parts": {"properties": {f"p{n}": {} for n in range(20_000)}},
    "every with every": {
        "properties": {f"p{n}": {} for n in range(1350)},
        "patternProperties": {f"q{n}": {} for n in range(99)},
    },
    "one bound": {"pattern": "((a{50}){50}){50}"},
}


@pytest.mark.parametrize("which", COSTLY)
def test_compiling_a_schema_does_not_block_the_event_loop(which: str) -> None:
    def step() -> None:
        with suppress(UnusableSchema):
            SchemaCheck.compile(COSTLY[which])

    assert least_cpu(step) < PAUSE_S


def test_large_ordinary_output_is_checked() -> None:
    row = {
        "type": "object",
        "properties": {f"c{n}": {"type": "integer"} for n in range(20)},
        "required": ["c0"],
    }
    check = SchemaCheck.compile({"type": "object", "properties": {"rows": {"type": "array", "items": row}}})
    value: dict[str, Any] = {"rows": [{f"c{n}": n for n in range(20)} for _ in range(3000)]}
    text = json.dumps(value).encode()
    assert len(text) > 500_000
    assert check.violations(value, text) == ()
    value["rows"][10]["c3"] = "x"
    assert check.violations(value, text) == (Violation("", UNKNOWN_PLACE),)


def test_more_patterns_than_are_read_make_a_schema_unusable() -> None:
    with pytest.raises(UnusableSchema, match="patterns"):
        SchemaCheck.compile({"properties": {f"p{n}": {"pattern": "x"} for n in range(MAX_PATTERNS + 1)}})


def test_a_value_that_would_take_too_long_is_not_checked() -> None:
    check = SchemaCheck.compile({"items": {"allOf": [{"properties": {f"p{n}": {}}} for n in range(200)]}})
    with pytest.raises(UnusableSchema, match="too long to apply to"):
        check.violations([{}] * 30_000)


def test_a_value_of_many_parts_counts_as_deeply_nested() -> None:
    """It is not traversed, so the cost of a recursive schema is computed for the deepest value."""
    tree = {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}
    check = SchemaCheck.compile(tree)
    assert check.violations({"a": {"a": {}}}) == ()
    with pytest.raises(UnusableSchema):
        check.violations([0] * 500_000)


def test_a_missing_part_is_invalid() -> None:
    check = SchemaCheck.compile(PAY)
    assert check.fits("#", {"amount": 1})
    assert check.fits("#/properties/amount", 5)
    assert not check.fits("#/properties/nothing", 5)


def test_a_violation_that_takes_too_long_to_locate_is_reported_without_its_place() -> None:
    check = SchemaCheck.compile({"items": {"type": "integer"}})
    assert check.violations([*range(4000), "x"]) == (Violation("", UNKNOWN_PLACE),)


def test_too_many_subschemas_for_one_value_are_refused_early() -> None:
    parts: list[Any] = [{"additionalProperties": {"allOf": [{}] * 99}} for _ in range(120)]
    with pytest.raises(TooMuchWork):
        SchemaWork({"allOf": parts}).heaviest(MAX_DEPTH)
