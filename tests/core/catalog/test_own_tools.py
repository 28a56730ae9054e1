"""One description is both the schema that a caller sees and the check of what it sends."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from tests.harness.raised import raises_error

from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace, wait_parameter
from taskgate.core.catalog.rendering import Audience
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation

FACE = ToolFace(
    cast("OwnToolName", "do_it"),
    "Does it.",
    (
        Parameter("text", ArgumentKind.TEXT, "Some text.", required=True),
        Parameter("word", ArgumentKind.TEXT, "A word.", choices=("a", "b")),
        wait_parameter(100, "How long."),
        Parameter("count", ArgumentKind.WHOLE, "Any number."),
        Parameter("flag", ArgumentKind.YES_NO, "Yes or no.", default=False),
        Parameter("object", ArgumentKind.OBJECT, "An object."),
        Parameter("list", ArgumentKind.TEXTS, "A list."),
        Parameter("anything", ArgumentKind.MESSAGE, "Anything."),
    ),
)


def test_defaults_are_filled_in_and_missing_ones_stay_missing() -> None:
    assert FACE.read({"text": "x"}) == {"text": "x", "timeout_ms": 100, "flag": False}


def test_null_for_an_optional_parameter_means_that_it_was_left_out() -> None:
    left_out = dict.fromkeys(("word", "timeout_ms", "count", "flag", "object", "list", "anything"))
    assert FACE.read({"text": "x", **left_out}) == {"text": "x", "timeout_ms": 100, "flag": False}
    with pytest.raises(CallerError):
        FACE.read({"text": None})


def test_valid_arguments_are_kept() -> None:
    given: dict[str, Any] = {
        "text": "x",
        "word": "a",
        "timeout_ms": 5,
        "count": -3,
        "flag": True,
        "object": {"a": 1},
        "list": ["a"],
        "anything": [None],
    }
    assert FACE.read(given) == given


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        ([], "must be an object"),
        (None, 'needs "text"'),
        ({"text": 1}, "a string"),
        ({"text": "x" * 10_001}, "a string"),
        ({"text": "x", "word": "c"}, "one of a, b"),
        ({"text": "x", "timeout_ms": 0}, "from 1 to"),
        ({"text": "x", "timeout_ms": True}, "from 1 to"),
        ({"text": "x", "count": 1.5}, "a whole number"),
        ({"text": "x", "flag": "yes"}, "true or false"),
        ({"text": "x", "object": []}, "an object"),
        ({"text": "x", "list": [1]}, "a list of strings"),
        ({"text": "x", "txt": 1}, "Did you mean 'text'"),
        ({"text": "x", "zzzzzz": 1}, "it takes text"),
    ],
)
def test_invalid_arguments_are_refused_with_the_expected_type(arguments: Any, expected_text: str) -> None:
    with pytest.raises(CallerError) as refusal:
        FACE.read(arguments)
    assert expected_text in refusal.value.message


@pytest.mark.parametrize(("given", "read"), [(5000, 5000), (5000.0, 5000), (1500.5, 1501)])
def test_a_time_to_wait_is_any_number(given: float, read: int) -> None:
    assert FACE.read({"text": "x", "timeout_ms": given})["timeout_ms"] == read


def test_unknown_arguments_of_a_tool_without_parameters_are_refused() -> None:
    with pytest.raises(CallerError) as refusal:
        ToolFace(cast("OwnToolName", "ping"), "Pings.").read({"a": 1})
    assert "it takes nothing" in refusal.value.message


def test_the_listed_schema_agrees_with_the_check() -> None:
    shown = json.loads(FACE.rendered(Audience(Generation.STATEFUL)))
    schema = shown["inputSchema"]
    assert schema["required"] == ["text"]
    timeout = schema["properties"]["timeout_ms"]
    assert timeout.pop("description").startswith("How long. A reply is held no longer than your client waits")
    assert timeout == {
        "type": "number",
        "default": 100,
        "minimum": 1,
        "maximum": 86_400_000,
    }
    assert schema["properties"]["word"]["enum"] == ["a", "b"]
    assert schema["properties"]["list"]["items"] == {"type": "string"}
    assert schema["properties"]["anything"]["type"] == "string"
    assert shown["execution"] == {"taskSupport": "forbidden"}


def test_the_stateless_generation_has_no_execution_key() -> None:
    shown = json.loads(ToolFace(cast("OwnToolName", "ping"), "Pings.").rendered(Audience(Generation.STATELESS)))
    assert "execution" not in shown
    assert "required" not in shown["inputSchema"]


def test_a_parameter_of_any_type_is_described() -> None:
    assert Parameter("x", ArgumentKind.MESSAGE, "X.")._expected() == "text, or a content block"


def test_a_number_without_bounds_is_described() -> None:
    with raises_error("invalid_params", '"n"') as caught:
        Parameter("n", ArgumentKind.WHOLE, "How many.").read("x")
    assert not any(character.isdigit() for character in caught.value.message)
    with raises_error("invalid_params", '"n"', "1", "9"):
        Parameter("n", ArgumentKind.WHOLE, "How many.", minimum=1, maximum=9).read(10)
