"""Reading what a person typed into a form, against every kind of field a server may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskgate.cli.printing import clean
from taskgate.cli.question_prompt import NotValid, answer_question, choices_of, read_value
from taskgate.client import Question


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ({"type": "string"}, "hi", "hi"),
        ({"type": "integer"}, "12", 12),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "string", "enum": ["a", "b"]}, "2", "b"),
        ({"type": "string", "enum": ["a", "b"]}, "a", "a"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["Ann", "Bob"]}, "1", "a"),
        ({"type": "string", "oneOf": [{"const": "x", "title": "The X"}]}, "1", "x"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "1, c", ["a", "c"]),
        ({"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}}, "1", ["x"]),
        ({"type": "string", "format": "email"}, "a@b", "a@b"),
        ({"type": "string", "pattern": "["}, "anything", "anything"),
    ],
)
def test_valid_input_becomes_a_value_of_the_schema(field: dict[str, Any], typed: str, value: Any) -> None:
    assert read_value(field, typed) == value


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ({"type": "integer"}, "1.5"),
        ({"type": "number"}, "much"),
        ({"type": "integer", "minimum": 3}, "2"),
        ({"type": "integer", "maximum": 3}, "4"),
        ({"type": "boolean"}, "perhaps"),
        ({"type": "string", "enum": ["a"]}, "9"),
        ({"type": "string", "minLength": 3}, "ab"),
        ({"type": "string", "maxLength": 1}, "ab"),
        ({"type": "string", "format": "email"}, "nobody"),
        ({"type": "string", "format": "date"}, "tomorrow"),
        ({"type": "string", "pattern": "^x+$"}, "y"),
    ],
)
def test_invalid_input_is_explained(field: dict[str, Any], typed: str) -> None:
    with pytest.raises(NotValid):
        read_value(field, typed)


def test_a_field_without_choices_has_none() -> None:
    assert choices_of({"type": "string"}) == {}


def typing(*lines: str) -> Any:
    left: Iterator[str] = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


FORM = {
    "message": "Who?",
    "requestedSchema": {
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 4}},
        "required": ["name"],
    },
}


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (("y", "Ann", ""), {"action": "accept", "content": {"name": "Ann", "age": 4}}),
        (("y", "", "Ann", "7"), {"action": "accept", "content": {"name": "Ann", "age": 7}}),
        (("n",), {"action": "decline"}),
        ((), {"action": "cancel"}),
    ],
)
def test_a_form_is_filled_in_declined_or_cancelled(lines: tuple[str, ...], answer: dict[str, Any]) -> None:
    assert answer_question(Question("1", "elicitation/create", FORM), typing(*lines)) == answer


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https://a.test/\u202egnp"])
def test_a_suspicious_url_is_declined_without_a_prompt(url: str) -> None:
    question = Question("1", "elicitation/create", {"mode": "url", "message": "m", "url": url})
    assert answer_question(question, typing("y")) == {"action": "decline"}


def test_a_page_already_visited_counts_as_accepted() -> None:
    question = Question("1", "elicitation/create", {"mode": "url", "message": "m", "url": "https://a.test/x"})
    assert answer_question(question, typing("d")) == {"action": "accept"}


def test_text_from_a_server_is_cleaned_for_the_terminal() -> None:
    assert clean("a\x1b[2Jb\u202ec\td\n") == "a\ufffd[2Jb\ufffdc\td\n"
