"""Arguments of a script's call by position, by name, and with a timeout."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.scripts.bind_arguments import ArgumentError, BoundArguments, bind_arguments


@pytest.mark.parametrize(
    ("parameters", "positional", "keywords", "expected"),
    [
        (["a", "b"], [1], {"b": 2}, BoundArguments({"a": 1, "b": 2}, None)),
        (["a"], [], {"other": 1}, BoundArguments({"other": 1}, None)),
        (["a"], [], {"a": 1, "timeout": 2}, BoundArguments({"a": 1}, 2.0)),
        (["a", "timeout"], [1], {"timeout": 2}, BoundArguments({"a": 1, "timeout": 2}, None)),
        ([], [], {"timeout": None}, BoundArguments({}, None)),
    ],
)
def test_valid_arguments_are_bound_to_parameters(
    parameters: list[str], positional: list[Any], keywords: dict[str, Any], expected: BoundArguments
) -> None:
    assert bind_arguments(parameters, positional, keywords) == expected


@pytest.mark.parametrize(
    ("positional", "keywords"),
    [
        ([1, 2], {}),
        ([1], {"a": 2}),
        ([], {"timeout": 0}),
        ([], {"timeout": -1}),
        ([], {"timeout": True}),
        ([], {"timeout": "5"}),
        ([], {"timeout": float("nan")}),
    ],
)
def test_invalid_arguments_are_refused(positional: list[Any], keywords: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        bind_arguments(["a"], positional, keywords)
