"""Completion: the sources of suggestions, their order, and which values are never stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.completion import memory, schema_values
from taskgate.core.completion.memory import CompletionPlace, Usage, UsageMemory, worth_learning
from taskgate.core.completion.ranking import CandidateIndex, Completion, complete, merge_with_upstream
from taskgate.core.completion.schema_values import values_from_schema
from taskgate.core.redaction.looks_secret import looks_secret

DAY = 86_400.0


def props(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ({"enum": ["red", "green", 3, None, ["x"], ""]}, ("red", "green", "3")),
        ({"const": "only"}, ("only",)),
        ({"type": "boolean"}, ("true", "false")),
        ({"type": ["boolean", "null"]}, ("true", "false")),
        ({"examples": ["a", "b"], "default": "c"}, ("a", "b", "c")),
        ({"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]}, ("x", "y")),
        ({"anyOf": [{"enum": ["p"]}, {"type": "null"}]}, ("p",)),
        ({"type": "array", "items": {"enum": ["i", "j"]}}, ("i", "j")),
        ({"$ref": "#/$defs/a~1b"}, ("r",)),
        ({"$ref": "#/$defs/loop"}, ("l",)),
        ({"$ref": "#/$defs/none/deeper"}, ()),
        ({"$ref": "https://example.test/schema"}, ()),
        ({"enum": "red", "anyOf": 5, "type": "string"}, ()),
        ({"enum": ["a", "a"]}, ("a",)),
        (5, ()),
    ],
)
def test_values_of_a_schema_are_suggested(part: Any, values: tuple[str, ...]) -> None:
    schema = {**props(arg=part), "$defs": {"a/b": {"enum": ["r"]}, "loop": {"const": "l", "$ref": "#/$defs/loop"}}}
    assert values_from_schema(schema, "arg") == values


def test_a_dotted_name_selects_a_nested_property_unless_a_property_has_that_name() -> None:
    schema = props(**{"deep": props(kind={"enum": ["k"]}), "a.b": {"enum": ["dotted"]}})
    assert values_from_schema(schema, "deep.kind") == ("k",)
    assert values_from_schema(schema, "a.b") == ("dotted",)
    assert values_from_schema(schema, "missing") == ()
    assert values_from_schema(None, "x") == ()
    assert values_from_schema({"properties": 5}, "x") == ()


def test_a_schema_bomb_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb: dict[str, Any] = {"const": "x"}
    bomb["anyOf"] = [bomb] * 10
    assert values_from_schema(props(a=bomb), "a") == ("x",)
    monkeypatch.setattr(schema_values, "MAX_CANDIDATES", 3)
    assert len(values_from_schema(props(a={"enum": list("abcdef")}), "a")) == 3


INDEX = CandidateIndex.build(["alpha", "Alpine", "beta", "gamma-alpha", "repository", "release", "alpha"])


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("al", ("alpha", "Alpine", "gamma-alpha")),
        ("AL", ("alpha", "Alpine", "gamma-alpha")),
        ("alpha", ("alpha", "gamma-alpha")),
        ("gam", ("gamma-alpha",)),
        ("repostory", ("repository",)),
        ("rlease", ("release",)),
        ("zzz", ()),
        ("a\nb", ()),
        ("posit", ("repository",)),
        ("erlease", ("release",)),
        ("", ("alpha", "Alpine", "beta", "gamma-alpha", "release", "repository")),
    ],
)
def test_prefix_matches_come_before_substrings_before_fuzzy_matches(typed: str, values: tuple[str, ...]) -> None:
    assert complete(INDEX, typed) == Completion(values, len(values), False)


def test_used_values_come_first_within_their_kind_of_match() -> None:
    used = {"alps": Usage(1, 0.0), "Alpine": Usage(5, 0.0), "gamma-alpha": Usage(50, 0.0)}
    assert complete(INDEX, "al", used).values == ("Alpine", "alps", "alpha", "gamma-alpha")
    assert complete(INDEX, "alpha", {"alpha": Usage(1, 0.0)}).values == ("alpha", "gamma-alpha")


def test_recent_use_outweighs_old_and_context_outweighs_both() -> None:
    old, new = Usage(6, 0.0), Usage(2, 60 * DAY)
    assert complete(INDEX, "", {"x-old": old, "x-new": new}, now=60 * DAY).values[:2] == ("x-new", "x-old")
    fits = Usage(1, 0.0, frozenset({("owner", "ann")}))
    used = {"x-new": new, "x-fits": fits}
    assert complete(INDEX, "", used, now=60 * DAY, given={"owner": "ann"}).values[:2] == ("x-fits", "x-new")
    assert complete(INDEX, "", used, now=60 * DAY, given={"owner": "bob"}).values[:2] == ("x-new", "x-fits")


def test_at_most_a_hundred_are_given_and_the_rest_is_counted() -> None:
    many = CandidateIndex.build(f"item{i:04}" for i in range(500))
    found = complete(many, "item", {f"item-used{i}": Usage(1, 0.0) for i in range(120)})
    assert len(found.values) == 100
    assert (found.total, found.has_more) == (620, True)
    assert complete(many, "item", limit=5).as_result() == {
        "values": [f"item{i:04}" for i in range(5)],
        "total": 500,
        "hasMore": True,
    }


def test_substring_search_stops_when_there_are_enough_matches() -> None:
    many = CandidateIndex.build(f"{i:04}-inside" for i in range(3000))
    assert len(many.matches("inside", enough=10)) == 100


def test_the_upstreams_values_come_first_and_none_twice() -> None:
    ours = Completion(("b", "c", "d"), 3, False)
    assert merge_with_upstream(ours, ["a", "b", "a"]) == Completion(("a", "b", "c", "d"), 4, False)
    assert merge_with_upstream(ours, ["a"], total=50, has_more=True) == Completion(("a", "b", "c", "d"), 53, True)
    assert merge_with_upstream(ours, []) == ours
    full = merge_with_upstream(ours, [f"u{i}" for i in range(100)])
    assert (len(full.values), full.total, full.has_more) == (100, 103, True)


_words = st.text(st.sampled_from("abcAB-"), max_size=6)


@given(
    st.lists(_words, max_size=30),
    _words,
    st.dictionaries(_words, st.builds(Usage, st.integers(1, 9), st.floats(0, 9)), max_size=5),
)
def test_suggestions_are_distinct_counted_and_known(values: list[str], typed: str, used: dict[str, Usage]) -> None:
    found = complete(CandidateIndex.build(values), typed, used, now=10.0, limit=10)
    assert len(set(found.values)) == len(found.values) <= 10
    assert set(found.values) <= {*values, *used}
    assert found.total >= len(found.values)
    assert found.has_more is (found.total > len(found.values))
    assert all(value in found.values or found.has_more for value in values if value and value.startswith(typed))


PLACE = CompletionPlace("files", "read", "path")


def test_each_caller_remembers_only_its_own() -> None:
    remembered = UsageMemory()
    remembered.learn("ann", "files", "read", {"path": "/a", "mode": "text", "count": 5, "flag": True, "o": {}}, 1.0)
    remembered.learn("ann", "files", "read", {"path": "/a"}, 2.0)
    assert remembered.used("ann", PLACE) == {"/a": Usage(2, 2.0)}
    assert remembered.used("ann", CompletionPlace("files", "read", "count")) == {
        "5": Usage(1, 1.0, frozenset({("path", "/a"), ("mode", "text")}))
    }
    assert remembered.used("ann", CompletionPlace("files", "read", "flag")) == {}
    assert remembered.used("bob", PLACE) == {}
    remembered.forget("ann")
    assert remembered.used("ann", PLACE) == {}


def test_learning_can_be_switched_off() -> None:
    remembered = UsageMemory()
    remembered.learn("ann", "files", "read", {"path": "/a"}, 1.0)
    remembered.switch(False)
    remembered.learn("ann", "files", "read", {"path": "/b"}, 1.0)
    assert remembered.used("ann", PLACE) == {}
    remembered.switch(True)
    remembered.learn("ann", "files", "read", {"path": "/c"}, 1.0)
    assert list(remembered.used("ann", PLACE)) == ["/c"]


def test_memory_is_bounded_and_forgets_the_least_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_CALLERS", "MAX_PLACES", "MAX_VALUES"):
        monkeypatch.setattr(memory, limit, 2)
    remembered = UsageMemory()
    for value in ("/a", "/b", "/a", "/c"):
        remembered.learn("ann", "files", "read", {"path": value}, 1.0)
    assert list(remembered.used("ann", PLACE)) == ["/a", "/c"]
    for name in ("x", "y"):
        remembered.learn("ann", "files", name, {"path": "/a"}, 1.0)
    assert remembered.used("ann", PLACE) == {}
    for caller in ("bob", "cat"):
        remembered.learn(caller, "files", "read", {"path": "/a"}, 1.0)
    assert remembered.used("ann", CompletionPlace("files", "y", "path")) == {}


SECRETS = [
    ("password", "hunter2"),
    ("userPassword", "x"),
    ("api_key", "abc"),
    ("apiKey", "abc"),
    ("Authorization", "x"),
    ("x", "Bearer abc"),
    ("session_id", "abc"),
    ("pin", "1234"),
    ("key", "abc"),
    ("x", "sk-proj1234567890"),
    ("x", "ghp_abcdefghijklmnop"),
    ("x", "AKIAIOSFODNN7EXAMPLE"),
    ("x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi"),
    ("x", "-----BEGIN PRIVATE KEY-----"),
    ("x", "https://user:pass@example.test/"),
    ("x", "https://example.test/?token=abc"),
    ("x", "4111 1111 1111 1111"),
    ("x", "d41d8cd98f00b204e9800998ecf8427e"),
    ("x", "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA=="),
    ("x", "aBcDeFgHiJkLmNoPqRsTuV"),
]


@pytest.mark.parametrize(("argument", "value"), SECRETS)
def test_values_that_look_like_secrets_are_never_learned(argument: str, value: str) -> None:
    assert looks_secret(argument, value)
    remembered = UsageMemory()
    remembered.learn("ann", "files", "read", {argument: value, "mode": "text"}, 1.0)
    assert remembered.used("ann", CompletionPlace("files", "read", argument)) == {}
    assert remembered.used("ann", CompletionPlace("files", "read", "mode"))["text"].beside == frozenset()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("path", "/home/ann/reports/2024/summary-of-the-year.txt"),
        ("branch", "feature/make-the-import-faster-2024"),
        ("passenger", "Ann"),
        ("repository", "modelcontextprotocol/python-sdk"),
        ("order", "4111 1111 1111 1112"),
        ("count", "1234567890123"),
        ("count", "123456789012"),
        ("uri", "file:///tmp/a%20b"),
        ("name", "getUserAccountInformation"),
    ],
)
def test_ordinary_values_are_learned(argument: str, value: str) -> None:
    assert worth_learning(argument, value)


@pytest.mark.parametrize("value", ["", " ", "a\nb", "x" * 257])
def test_useless_values_are_not_learned(value: str) -> None:
    assert not worth_learning("path", value)
