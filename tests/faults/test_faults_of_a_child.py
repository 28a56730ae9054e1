"""A part of the fault matrix over standard streams; `make faults` walks all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.child_matrix import WAYS, Case, ChildMatrixRun, cases
from tests.virtual_time import run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_reported_executed_agrees_with_the_ledger_of_a_stdio_server(generation: str, way: str, tmp_path: Path) -> None:
    some = list(cases(generation))[2 * WAYS.index(way) :: 7]
    wrong = run(lambda: ChildMatrixRun(generation, way, some, tmp_path).run())
    assert not wrong, "\n".join(wrong[:20])


def test_the_checker_detects_a_lost_call(tmp_path: Path) -> None:
    matrix_run = ChildMatrixRun("2025", "plain", [], tmp_path)
    body = {"error": {"code": -32603, "message": "x", "data": {"executed": "no"}}}
    found = list(matrix_run._check(0, Case("exit", False, "once"), body))
    assert any("never reached" in line for line in found)
