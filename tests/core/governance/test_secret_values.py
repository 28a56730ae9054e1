"""Secrets of a configuration are hidden by value and by name, whole, in part, and in every encoding."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.redaction.secret_values import LONGEST_NEEDLE, SecretValues, has_secret_name

LONG = '-----BEGIN KEY-----\nabc"def/ghi+jkl\n-----END KEY-----'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing here", "nothing here"),
        ("Bearer hunter2!", f"Bearer {HIDDEN}!"),
        ("hunter2hunter2", f"{HIDDEN}{HIDDEN}"),
        ("hunter2-and-more", HIDDEN),
        (f"x {LONG} y", f"x {HIDDEN} y"),
        (f'the value "{LONG[:40]}" is wrong', f'the value "{HIDDEN}" is wrong'),
        (LONG[: LONGEST_NEEDLE - 1], LONG[: LONGEST_NEEDLE - 1]),
        (json.dumps({"a": LONG}), json.dumps({"a": HIDDEN})),
        (f"http://x/{quote(LONG, safe='')}", f"http://x/{HIDDEN}"),
        ("abc within a text is too short", "abc within a text is too short"),
    ],
)
def test_values_are_hidden_within_texts(text: str, shown: str) -> None:
    assert SecretValues(["hunter2", "hunter2-and-more", LONG, "abc", ""]).text(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": {"b": ["abc", "x hunter2", "plain"]}}, {"a": {"b": [HIDDEN, f"x {HIDDEN}", "plain"]}}),
        ({"headers": {"X": "plain"}, "env": {"Y": {"deep": 1}}}, {"headers": {"X": HIDDEN}, "env": {"Y": HIDDEN}}),
        ({"client_secret": "plain", "API_KEY": "plain"}, {"client_secret": HIDDEN, "API_KEY": HIDDEN}),
        ({"tokens": [{"id": "ann", "sha256": "00"}]}, {"tokens": [{"id": "ann", "sha256": HIDDEN}]}),
        ({"passwords": ("a", "b")}, {"passwords": [HIDDEN, HIDDEN]}),
        ({"max_tokens": 5, "port": 8080, "share": 0.5}, {"max_tokens": 5, "port": HIDDEN, "share": 0.5}),
        ({"key": None, "token": True}, {"key": None, "token": True}),
        ("http://u:p@host/x", f"http://{HIDDEN}@host/x"),
        ("http://host/u@x", "http://host/u@x"),
        ("a@b", "a@b"),
        ({1: frozenset({"plain"})}, {"1": ["plain"]}),
    ],
)
def test_configurations_are_shown_without_secrets(value: Any, shown: Any) -> None:
    assert SecretValues(["hunter2", "abc", "8080"]).shown(value) == shown


def test_without_values_only_names_are_hidden() -> None:
    assert SecretValues(()).text("hunter2") == "hunter2"
    assert SecretValues(()).shown({"a": "hunter2", "password": "hunter2"}) == {"a": "hunter2", "password": HIDDEN}
    assert has_secret_name("Proxy-Authorization")
    assert not has_secret_name("display_name")


@given(st.text(), st.text(min_size=6), st.text())
def test_no_value_survives_in_any_text(before: str, value: str, after: str) -> None:
    shown = SecretValues([value]).text(before + value + after)
    assert value not in shown.replace(HIDDEN, "\0") or value in HIDDEN
