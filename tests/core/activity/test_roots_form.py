"""Roots as a form: what is shown, what counts as an answer, and what the server gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core.errors import CallerError
from taskgate.core.questions.answers import form_problem
from taskgate.core.questions.roots_form import MAX_ADDRESS, MAX_ROOTS, roots_answer, roots_form


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([], []),
        (["file:///a"], [{"uri": "file:///a"}]),
        ([{"uri": "file:///a", "name": "A"}, "file:///b"], [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]),
    ],
)
def test_addresses_and_named_addresses_become_roots(given: list[Any], sent: list[Any]) -> None:
    assert json.loads(roots_answer("accept", {"roots": given}).result or b"") == {"roots": sent}
    assert form_problem(roots_form("files")["requestedSchema"], {"roots": given}) is None


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"roots": "file:///a"},
        {"roots": ["file:///a"], "more": 1},
        {"roots": ["/a"]},
        {"roots": ["https://example.test"]},
        {"roots": [7]},
        {"roots": [{"uri": "file:///a", "name": 7}]},
        {"roots": [{"uri": "file:///a", "mode": "rw"}]},
        {"roots": [{"name": "A"}]},
        {"roots": ["file://" + "a" * MAX_ADDRESS]},
        {"roots": ["file:///a"] * (MAX_ROOTS + 1)},
    ],
)
def test_a_value_that_is_not_a_list_of_roots_is_refused(content: Any) -> None:
    with pytest.raises(CallerError):
        roots_answer("accept", content)


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declining_roots_is_an_error_with_the_reason(action: str) -> None:
    assert json.loads(roots_answer(action, None).error or b"")["code"] == -1
    assert json.loads(roots_answer(action, None, "not today").error or b"")["message"] == "not today"
    with pytest.raises(CallerError):
        roots_answer(action, {"roots": []})


def test_the_form_names_the_server() -> None:
    assert roots_form("files")["message"].startswith("files requests the folders")
