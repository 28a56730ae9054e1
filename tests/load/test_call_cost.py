"""Ordinary calls cost at most a tenth more than the recorded baseline, counted in function calls."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.benchmarks.gate import BASELINE, PYTHON, measured, with_consoles, worse
from tests.virtual_time import run

KEPT = json.loads(BASELINE.read_text())


@pytest.mark.skipif(PYTHON not in KEPT, reason="the baseline was counted on another Python")
def test_no_call_exceeds_the_baseline_cost() -> None:
    assert worse(run(measured), KEPT[PYTHON]) == [], (
        "keep it with `python -m tests.benchmarks.gate --write` if it is meant"
    )


def test_a_call_costs_the_same_with_fifty_consoles_open() -> None:
    none, fifty = [run(partial(with_consoles, consoles)) for consoles in (0, 50)]
    for name, count in none.items():
        assert abs(fifty[name] - count) <= count * 0.02, (name, none, fifty)


def test_the_cost_check_detects_higher_costs_and_stale_baselines() -> None:
    assert worse({"a": 109, "b": 10}, {"a": 100, "b": 10}) == []
    assert worse({"a": 111}, {"a": 100}) == ["a: 111 beside 100"]
    assert worse({"new": 1}, {}) == ["new: not in the baseline"]
