"""The output schema a tool is listed with allows the tool's own output and our notice, and keeps a plain root as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.harness.any_json import any_json

from taskgate.core.catalog.output_schema import NOTICE, cut_notice, task_notice, with_notice

WORDS = ("a", "b", "value", "$ref", "$id", NOTICE, "kind", "task", "message")
NOTICES = [task_notice("tg_1", "working", "It goes on."), cut_notice(5000, 1024, "It was cut.")]
NODE = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/Value"}, "next": {"$ref": "#"}},
    "required": ["value"],
    "$defs": {"Value": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Deep"}]}, "Deep": {"type": "string"}},
    "additionalProperties": False,
}


def test_notices_name_their_kind_and_its_facts() -> None:
    assert task_notice("tg_1", "working", "m")[NOTICE] == {
        "kind": "task", "message": "m", "task_id": "tg_1", "status": "working"
    }  # fmt: skip
    assert cut_notice(9, 5, "m")[NOTICE] == {"kind": "cut", "message": "m", "original_bytes": 9, "limit_bytes": 5}


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
def test_listed_schema_allows_own_output_and_notices_and_nothing_else(schema: Any, value: Any) -> None:
    listed = with_notice(schema)
    assert listed is not None
    Draft202012Validator.check_schema(listed)
    if isinstance(value, dict) and NOTICE in value:
        # The name is reserved: under it a plain root allows notices only.
        notice = fits(with_notice({"not": {}}), {NOTICE: value[NOTICE]})
        assert not fits(listed, value) or notice or fits(schema, value)
    else:
        assert fits(listed, value) is fits(schema, value)


@given(output_schemas)
def test_every_notice_is_valid_and_objects_stay_objects(schema: Any) -> None:
    union = with_notice(schema)
    assert union is not None
    assert all(fits(union, notice) for notice in NOTICES)
    assert union.get("type") == schema.get("type") or schema.get("type") != "object"


def test_only_notices_pass_where_the_tool_allows_nothing() -> None:
    nothing = with_notice({"not": {}})
    assert all(fits(nothing, notice) for notice in NOTICES)
    others: tuple[Any, ...] = ({}, {NOTICE: {}}, {NOTICE: {"kind": "task"}}, {**NOTICES[0], "more": 1}, [], "x", None)
    for other in others:
        assert not fits(nothing, other)


@pytest.mark.parametrize("value", [{"value": 1}, {"value": "x", "next": {"value": 2, "next": {"value": "y"}}}])
def test_recursive_schemas_with_definitions_keep_their_meaning(value: Any) -> None:
    for schema in (NODE, {**NODE, "minProperties": 1}):
        listed = with_notice(schema)
        assert listed is not None
        assert listed["type"] == "object"
        assert set(listed["$defs"]) == {"Value", "Deep"}
        assert fits(listed, value)
        assert not fits(listed, {"value": 1, "next": {"value": None}})
        assert not fits(listed, {"value": 1, "other": 2})


RESULT = {
    "type": "object",
    "title": "Answer",
    "properties": {"result": {"$ref": "#/$defs/Row"}, "own": {"$ref": "#/properties/result"}},
    "required": ["result"],
    "$defs": {"Row": {"type": "integer"}},
    "x-fastmcp-wrap-result": True,
}


@pytest.mark.parametrize("extra", [{}, {"additionalProperties": False}, {"additionalProperties": {"type": "string"}}])
@pytest.mark.parametrize("address", [{}, {"$id": "https://example.test/x"}])
def test_plain_root_keeps_properties_and_unknown_keywords(extra: Any, address: Any) -> None:
    own = {**address, **RESULT, **extra}
    listed = with_notice(own)
    assert listed is not None
    assert {key: listed.get(key) for key in own if key != "required"} == {
        key: value for key, value in own.items() if key != "required"
    }
    assert "required" not in listed
    assert fits(listed, {"result": 1, "own": 2})
    assert not fits(listed, {})
    assert not fits(listed, {"result": "x"})
    assert all(fits(listed, notice) for notice in NOTICES)


def test_mapping_stays_a_mapping() -> None:
    """A property in a schema without properties would turn the mapping that a client builds from it into a record."""
    listed = with_notice({"type": "object", "additionalProperties": {"type": "integer"}})
    assert listed is not None
    assert "properties" not in listed
    assert "anyOf" not in listed
    assert fits(listed, {"a": 1})
    assert not fits(listed, {"a": "x"})
    assert all(fits(listed, notice) for notice in NOTICES)


@pytest.mark.parametrize(
    "keyword",
    [
        {"allOf": [{"required": ["a"]}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"minProperties": 2},
        {"maxProperties": 0},
        {"patternProperties": {"": {"type": "integer"}}},
        {"propertyNames": {"maxLength": 1}},
        {"not": {"required": [NOTICE]}},
        {"if": True, "then": {"required": ["a"]}},
        {"enum": [{"a": 1}]},
        {"properties": {NOTICE: {"type": "integer"}}},
        {"required": [NOTICE]},
    ],
)
def test_root_that_may_reject_a_notice_becomes_a_union(keyword: Any) -> None:
    listed = with_notice({"type": "object", **keyword})
    assert listed is not None
    assert set(listed) == {"type", "anyOf"}
    assert all(fits(listed, notice) for notice in NOTICES)


def test_schemas_with_an_address_of_their_own_cannot_be_part_of_a_union() -> None:
    assert with_notice({"$id": "https://example.test/x", "type": "string"}) is None
    assert with_notice({"anyOf": [{"$id": "https://example.test/y"}]}) is None
    assert with_notice("nonsense") is None
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    assert with_notice(deep) is None


def test_a_property_called_like_a_keyword_is_no_reference() -> None:
    schema = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}},
        "minProperties": 1,
    }
    union = with_notice(schema)
    assert union is not None
    assert fits(union, {"$ref": "#", "$id": "x"})
    assert not fits(union, {"$ref": 1})


def test_union_keeps_the_dialect_at_its_root_and_redirects_references() -> None:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    inner = {"far": {"$ref": "https://example.test/x"}, "near": {"$ref": "#here"}, "own": {"$ref": "#/properties/far"}}
    union = with_notice({"$schema": dialect, "type": "object", "properties": inner, "minProperties": 1})
    assert union is not None
    assert union["$schema"] == dialect
    assert "$schema" not in union["anyOf"][0]
    moved = union["anyOf"][0]["properties"]
    assert [moved[name]["$ref"] for name in inner] == [
        "https://example.test/x",
        "#here",
        "#/anyOf/0/properties/far",
    ]
