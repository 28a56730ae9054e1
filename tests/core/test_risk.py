"""The risk that hints declare, and what the gateway takes over from them."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.risk import Risk, declared_risk, effective_risk, highest

R, W, U, D = Risk


@pytest.mark.parametrize(
    ("annotations", "declared"),
    [
        ({"readOnlyHint": True}, R),
        ({"readOnlyHint": True, "destructiveHint": True}, R),
        ({"destructiveHint": False}, W),
        ({"readOnlyHint": False, "destructiveHint": False}, W),
        ({"destructiveHint": True}, D),
        ({"readOnlyHint": False}, D),
        ({"readOnlyHint": "true"}, U),
        ({"readOnlyHint": 1}, U),
        ({}, U),
        (None, U),
        ([], U),
    ],
)
def test_declared_risk(annotations: Any, declared: Risk) -> None:
    assert declared_risk(annotations) is declared


@pytest.mark.parametrize(
    ("declared", "trusted", "stated", "expected"),
    [
        (R, True, None, R),
        (R, False, None, U),
        (W, False, None, U),
        (U, False, None, U),
        (D, False, None, D),
        (D, False, R, R),
        (U, True, W, W),
        (R, True, D, D),
    ],
)
def test_effective_risk(declared: Risk, trusted: bool, stated: Risk | None, expected: Risk) -> None:
    assert effective_risk(declared, trusted=trusted, stated=stated) is expected


def test_highest_of_some_risks() -> None:
    assert [highest(each) for each in ([R], [R, D, U], [W, U], [U, W, R])] == [R, D, U, U]
