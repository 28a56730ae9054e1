"""Chains of corrected scripts with crashes in between: no call that may run only once runs twice, and every report is complete."""

from __future__ import annotations

import pytest
from tests.scripts.correction_chains import run_chains
from tests.virtual_time import run

SEEDS = 20


def chains(monkeypatch: pytest.MonkeyPatch, seed: int, calls: int) -> None:
    outcome = run(lambda: run_chains(monkeypatch, seed, calls))
    assert outcome.wrong == [], f"seed {seed}"
    assert outcome.calls >= calls
    assert outcome.crashes > 0


def test_chains_of_corrections_repeat_nothing_and_report_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    chains(monkeypatch, 1, 60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_ten_thousand_calls_in_chains_of_corrections(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chains(monkeypatch, 100 + seed, 10_000 // SEEDS)
