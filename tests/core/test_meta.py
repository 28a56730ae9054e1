"""Editing `_meta` inside raw params leaves every other byte unchanged."""

from __future__ import annotations

import json

import pytest

from taskgate.core import wire
from taskgate.core.meta import insert_first, meta_of, with_meta
from taskgate.core.wire import Raw


@pytest.mark.parametrize(
    ("params", "meta"), [(None, {}), ([], {}), ({}, {}), ({"_meta": 1}, {}), ({"_meta": {"a": 1}}, {"a": 1})]
)
def test_meta_is_read_from_anything(params: object, meta: dict[str, int]) -> None:
    assert meta_of(params) == meta


def test_keys_are_put_and_dropped_and_an_empty_meta_disappears() -> None:
    members = wire.members_of(b'{"x":  1,"_meta":{"a": 1,"b":2}}')
    edited = with_meta(members, {"c": Raw(b"3")}, drop=("a",))
    assert json.loads(wire.join(edited)) == {"x": 1, "_meta": {"b": 2, "c": 3}}
    assert "_meta" not in with_meta(members, {}, drop=("a", "b"))
    assert "_meta" in members, "the original is not touched"


def test_a_meta_that_is_no_object_is_replaced() -> None:
    edited = with_meta(wire.members_of(b'{"_meta":5}'), {"c": Raw(b"3")})
    assert json.loads(wire.join(edited)) == {"_meta": {"c": 3}}


@pytest.mark.parametrize(("body", "after"), [(b"{}", {"k": 1}), (b' { "a": 2 }', {"k": 1, "a": 2})])
def test_a_member_is_inserted_in_front(body: bytes, after: dict[str, int]) -> None:
    assert json.loads(insert_first(body, b'"k":1')) == after
