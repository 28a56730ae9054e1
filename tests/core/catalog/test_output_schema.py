"""The union of a tool's output schema and our notice: nothing that was valid becomes invalid, and nothing else becomes valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.harness.any_json import any_json

from taskgate.core.catalog.tool_listing import NOTICE, cut_notice, task_notice, with_notice

WORDS = ("a", "b", "value", "$ref", "$id", NOTICE, "kind", "task", "message")
NOTICES = [task_notice("tg_1", "working", "It goes on."), cut_notice(5000, 1024, "It was cut.")]
NODE = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/Value"}, "next": {"$ref": "#"}},
    "required": ["value"],
    "$defs": {"Value": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Deep"}]}, "Deep": {"type": "string"}},
    "additionalProperties": False,
}


def fits(schema: Any, value: Any) -> bool:
    return Draft202012Validator(schema).is_valid(value)


names = st.sampled_from(["a", "b", "value", "$ref", NOTICE])
leaves = st.sampled_from(
    [
        {},
        True,
        {"type": "string"},
        {"type": "integer", "minimum": 3},
        {"enum": ["x", 1, None]},
        {"const": {"$ref": "#/$defs/A"}},
        {"$ref": "#/$defs/A"},
        {"$ref": "#/definitions/B"},
        {"$ref": "#named"},
    ]
)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda one: {"not": one}, inner),
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": more,
            },
            st.dictionaries(names, inner, max_size=3),
            st.lists(names, max_size=2, unique=True),
            st.one_of(st.just(False), inner),
        ),
    )


bodies = st.recursive(leaves, schemas, max_leaves=6)
output_schemas = st.builds(
    lambda body, is_object, other: {
        **(body if isinstance(body, dict) else {}),
        **({"type": "object"} if is_object else {}),
        "$defs": {"A": {"type": "integer"}, "Named": {"$anchor": "named", "type": "boolean"}, "taskgate": other},
        "definitions": {"B": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}},
    },
    bodies,
    st.booleans(),
    leaves,
)
values = st.one_of(
    any_json(WORDS),
    st.dictionaries(names, st.one_of(any_json(WORDS), st.integers(), st.just("x")), max_size=3),
    st.sampled_from(NOTICES),
)


@given(output_schemas, values)
def test_the_union_allows_what_the_tool_allows_and_our_notice_and_nothing_else(schema: Any, value: Any) -> None:
    union = with_notice(schema)
    assert union is not None
    Draft202012Validator.check_schema(union)
    assert fits(union, value) is (fits(schema, value) or fits(with_notice({"not": {}}), value))


@given(output_schemas)
def test_every_notice_is_valid_and_objects_stay_objects(schema: Any) -> None:
    union = with_notice(schema)
    assert union is not None
    assert all(fits(union, notice) for notice in NOTICES)
    assert union.get("type") == schema.get("type") or schema.get("type") != "object"


def test_only_notices_pass_where_the_tool_allows_nothing() -> None:
    nothing = with_notice({"not": {}})
    assert all(fits(nothing, notice) for notice in NOTICES)
    for other in ({}, {NOTICE: {}}, {NOTICE: {"kind": "task"}}, {**NOTICES[0], "more": 1}, [], "x", None):
        assert not fits(nothing, other)


@pytest.mark.parametrize("value", [{"value": 1}, {"value": "x", "next": {"value": 2, "next": {"value": "y"}}}])
def test_recursive_schemas_with_definitions_mean_what_they_meant(value: Any) -> None:
    union = with_notice(NODE)
    assert union is not None
    assert union["type"] == "object"
    assert set(union["$defs"]) == {"Value", "Deep"}
    assert fits(union, value)
    assert not fits(union, {"value": 1, "next": {"value": None}})
    assert not fits(union, {"value": 1, "next": {**NOTICES[0]}})


def test_schemas_that_say_where_they_are_found_are_left_alone() -> None:
    assert with_notice({"$id": "https://example.test/x", "type": "object"}) is None
    assert with_notice({"type": "object", "properties": {"a": {"$id": "https://example.test/y"}}}) is None
    assert with_notice("nonsense") is None
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    assert with_notice(deep) is None


def test_a_property_called_like_a_keyword_is_no_reference() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}
    union = with_notice(schema)
    assert union is not None
    assert fits(union, {"$ref": "#", "$id": "x"})
    assert not fits(union, {"$ref": 1})


def test_the_dialect_stays_at_the_root_and_references_go_where_they_went() -> None:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    inner = {"far": {"$ref": "https://example.test/x"}, "near": {"$ref": "#here"}, "own": {"$ref": "#/properties/far"}}
    union = with_notice({"$schema": dialect, "type": "object", "properties": inner})
    assert union is not None
    assert union["$schema"] == dialect
    assert "$schema" not in union["anyOf"][0]
    moved = union["anyOf"][0]["properties"]
    assert [moved[name]["$ref"] for name in inner] == [
        "https://example.test/x",
        "#here",
        "#/anyOf/0/properties/far",
    ]
