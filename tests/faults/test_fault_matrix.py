"""A part of the fault matrix; `make faults` walks all of it."""

from __future__ import annotations

import pytest
from tests.faults.matrix import SHORT_STATUSES, WAYS, Case, Fault, MatrixRun, faults
from tests.virtual_time import run

SHORT_BODIES = ("nothing", "error without id", "error with our id", "result with our id")


def cases(generation: str) -> list[Case]:
    rounds = (1, 2) if generation == "2026" else (1,)
    return [
        Case(fault, tool, number, sends)
        for number in rounds
        for tool in ("once", "read")
        for sends in (1, 99)
        for fault in faults(SHORT_STATUSES, SHORT_BODIES)
        if sends == 99 or not fault.is_answer
    ]


def part(way: str) -> slice:
    """Every way walks other cases, so that together they come to more than half of them; an odd step meets those that ran and those
    that did not, which alternate."""
    return slice(2 * WAYS.index(way), None, 7)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_reported_executed_agrees_with_the_ledger_of_the_server(generation: str, way: str) -> None:
    wrong = run(lambda: MatrixRun(generation, way, cases(generation)[part(way)]).run())
    assert not wrong, "\n".join(wrong[:20])


def test_the_checker_detects_a_server_that_violates_the_table() -> None:
    """A server that executes a call and then answers 403 defeats any table; the ledger shows it."""
    wrong = run(lambda: MatrixRun("2025", "plain", [Case(Fault(403, "nothing", True), "once")]).run())
    assert any("reported `no`, and it ran 1 times" in line for line in wrong)
