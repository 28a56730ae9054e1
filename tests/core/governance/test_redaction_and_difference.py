"""Redacting fields and showing differences: a redacted value is never shown, and no value is changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.globs import PatternError
from taskgate.core.redaction.difference import MAX_CHANGES, ChangeKind, FieldChange, difference
from taskgate.core.redaction.fields import HIDDEN, NOTHING_HIDDEN, Redacted, compile_redaction

VALUE = {
    "token": "t0p",
    "Token": "t0p",
    "user": {"password": "t0p", "name": "ann", "deep": {"password": "shown"}},
    "cards": [{"number": "t0p", "kind": "visa"}, {"number": "t0p", "kind": "amex"}],
    "a.password": "t0p",
}


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        ([], []),
        (["token"], ["token", "Token"]),
        (["*.password"], ["user.password", "a.password"]),
        (["**.password"], ["user.password", "user.deep.password", "a.password"]),
        (["cards.number"], ["cards.0.number", "cards.1.number"]),
        (["cards.*.number"], ["cards.0.number", "cards.1.number"]),
        (["cards.1"], ["cards.1"]),
        (["cards.1.number"], ["cards.1.number"]),
        (["user"], ["user"]),
        (["user.**"], ["user.password", "user.name", "user.deep"]),
        (["**"], ["token", "Token", "user", "cards", "a.password"]),
        (["nothing.here"], []),
        (["t?k[e]n"], ["token", "Token"]),
    ],
)
def test_fields_are_hidden_by_path(fields: list[str], hidden: list[str]) -> None:
    before = copy.deepcopy(VALUE)
    redacted = compile_redaction(fields).redact(VALUE)
    assert list(redacted.hidden) == hidden
    assert before == VALUE


def test_what_is_hidden_is_replaced_and_the_rest_is_kept() -> None:
    shown = compile_redaction(["token", "*.password"]).redact(VALUE).value
    assert shown["token"] == HIDDEN
    assert shown["user"] == {"password": HIDDEN, "name": "ann", "deep": {"password": "shown"}}
    assert shown["cards"] == VALUE["cards"]


@pytest.mark.parametrize("bad", ["", "a..b", ".a", "[x", "a.[x"])
def test_an_invalid_field_path_is_an_error(bad: str) -> None:
    with pytest.raises(PatternError):
        compile_redaction([bad])


def test_redacting_inside_a_hidden_place_shows_nothing() -> None:
    assert compile_redaction(["user"]).redact({"x": 1}, under=["user", "deep"]) == Redacted(HIDDEN, ("",))
    assert compile_redaction(["cards.number"]).redact("t0p", under=["cards", "0", "number"]).value == HIDDEN
    assert NOTHING_HIDDEN.redact(VALUE) == Redacted(VALUE, ())


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ([], set()),
        (["token"], {"t0p"}),
        (["user.password"], {"t0p"}),
        (["user"], {"t0p", "ann", "shown"}),
        (["cards.0"], {"t0p", "visa"}),
        (["cards.*.kind", "user.name"], {"visa", "amex", "ann"}),
        (["limit"], {"5000", "0.5"}),
        (["open", "nothing", "marked"], set()),
    ],
)
def test_hidden_texts_and_numbers_are_collected_as_text(fields: list[str], values: set[str]) -> None:
    """Not true, false or null, which could be anywhere in a text, and not what is hidden already."""
    value = {**VALUE, "limit": [5000, {"of": 0.5}], "open": True, "nothing": None, "marked": HIDDEN}
    assert compile_redaction(fields).hidden_values(value) == values


def test_redaction_without_fields_hides_nothing() -> None:
    assert not NOTHING_HIDDEN.hides
    assert not compile_redaction([]).hides
    assert compile_redaction(["token"]).hides


SECRET = "s3cr3t"
inner = st.recursive(
    st.sampled_from([SECRET, 1, None, "open"]),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from(["password", "PassWord", "x", "a.password"]), below, max_size=3)
    ),
    max_leaves=15,
)


def only_under_password(value: Any, inside: bool = False) -> Any:
    """The same value with the secret only below a key called password."""
    if isinstance(value, dict):
        return {k: only_under_password(v, inside or k.lower().endswith("password")) for k, v in value.items()}
    if isinstance(value, list):
        return [only_under_password(item, inside) for item in value]
    return value if inside or value != SECRET else "open"


@given(inner, inner)
def test_a_hidden_value_never_leaks(one: Any, other: Any) -> None:
    redaction = compile_redaction(["**.password"])
    before, after = only_under_password({"v": one}), only_under_password({"v": other})
    kept = copy.deepcopy(before)
    assert SECRET not in json.dumps(redaction.redact(before).value)
    assert SECRET not in repr(difference(before, after, redaction))
    assert before == kept


def test_a_difference_names_every_place() -> None:
    before = {"to": "ann", "amount": 5, "tags": ["a", "b"], "gone": {"x": 1}, "same": [1]}
    after = {"to": "bob", "amount": "5", "tags": ["a", "c", "d"], "new": None, "same": [1]}
    assert difference(before, after).changes == (
        FieldChange("to", ChangeKind.CHANGED, "ann", "bob"),
        FieldChange("amount", ChangeKind.CHANGED, 5, "5"),
        FieldChange("tags.1", ChangeKind.CHANGED, "b", "c"),
        FieldChange("tags.2", ChangeKind.ADDED, None, "d"),
        FieldChange("gone", ChangeKind.REMOVED, {"x": 1}, None),
        FieldChange("new", ChangeKind.ADDED, None, None),
    )


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), (None, False), ([], {})])
def test_values_of_other_types_differ(one: Any, other: Any) -> None:
    assert difference({"a": one}, {"a": other})
    assert not difference({"a": one}, {"a": one})


def test_a_hidden_value_is_compared_but_not_shown() -> None:
    redaction = compile_redaction(["token", "user.password"])
    changed = difference({"token": "a", "user": {}}, {"token": "b", "user": {"password": "p"}}, redaction)
    assert changed.changes == (
        FieldChange("token", ChangeKind.CHANGED, HIDDEN, HIDDEN, hidden=True),
        FieldChange("user.password", ChangeKind.ADDED, None, HIDDEN, hidden=True),
    )
    assert difference({"user": 1}, {"user": {"password": "p"}}, redaction).changes == (
        FieldChange("user", ChangeKind.CHANGED, 1, {"password": HIDDEN}, hidden=True),
    )


def test_too_many_changes_are_counted_instead_of_shown() -> None:
    made = difference(list(range(MAX_CHANGES + 7)), [None] * (MAX_CHANGES + 7))
    assert (len(made.changes), made.left_out) == (MAX_CHANGES, 7)
