"""The expectations of errors fail for another type, another key, or a missing value."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.raised import raises_error, raises_problem

from taskgate.config.problems import ConfigError, Problem
from taskgate.core.errors import GatewayFault


def test_an_expected_error_passes() -> None:
    with raises_error("store_unavailable", "999") as caught:
        raise GatewayFault("store_unavailable", "The schema 999 is newer.")
    assert caught.value.error_type == "store_unavailable"
    with raises_problem("pins", "maybe", file=".yaml"):
        raise ConfigError([Problem("t.yaml", 1, 1, "pins", "not maybe")])


@pytest.mark.parametrize("expected", [("internal",), ("store_unavailable", "998")], ids=["another type", "no value"])
def test_another_error_fails(expected: Any) -> None:
    with pytest.raises(AssertionError), raises_error(*expected):
        raise GatewayFault("store_unavailable", "The schema 999 is newer.")


@pytest.mark.parametrize(
    "expected", [("auth", "maybe", ".yaml"), ("pins", "always", ".yaml"), ("pins", "maybe", ".toml")]
)
def test_another_problem_fails(expected: tuple[str, str, str]) -> None:
    key, value, file = expected
    with pytest.raises(AssertionError), raises_problem(key, value, file=file):
        raise ConfigError([Problem("t.yaml", 1, 1, "pins", "not maybe")])


def test_no_error_fails() -> None:
    for expectation in (raises_error("internal"), raises_problem("pins")):
        with pytest.raises(pytest.fail.Exception), expectation:
            pass
