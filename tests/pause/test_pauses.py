"""Nothing that a peer sends holds the event loop up for longer than 20 ms, however large it is."""

from __future__ import annotations

import pytest
from tests.harness.cpu_time import PAUSE_S, least_cpu
from tests.pause.steps import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_peer_cannot_hold_the_loop_up(case: Case) -> None:
    for size, step in case.steps():
        assert least_cpu(step) < PAUSE_S, f"{case.name} of size {size}"
