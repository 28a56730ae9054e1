"""The gateway is killed again and again at random moments, under load of every class and every kind of caller.

Afterwards nothing that was acknowledged is lost, nothing that may run once ran twice, unknown is reported only where it is
correct, and an outcome once read stays the same. The short run is part of `make test-programs`; `make chaos` kills two hundred
times.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from tests.activity.callers import http_session
from tests.chaos.checker import CallReport, complaints
from tests.chaos.crash_setup import Execution, running_setup
from tests.chaos.load import Load

KILLS_PER_STORE = 25


async def kill_repeatedly(
    folder: Path, kills: int, callers: int, seed: int, fate: str | None = None, max_wait_s: float = 60.0
) -> list[str]:
    """Kill this many times, let every call end, kill once more, and read every outcome again."""
    chance = random.Random(seed)
    is_stateless = bool(seed % 2)
    async with running_setup(folder, fate, "2026" if is_stateless else "2025") as setup:
        load, crashed = Load(setup.gateway, seed, asking=is_stateless), []
        busy = asyncio.create_task(load.run(callers))
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.05, 1.2))
            crashed.append(time.time())
            await setup.gateway.kill()
            await setup.gateway.start_again(fate)
        load.stop()
        await asyncio.wait_for(busy, 120)
        await load.settle(max_wait_s)
        await setup.gateway.kill()
        await setup.gateway.start_again(fate)
        await load.settle(max_wait_s)
        settled = [call for call in load.reports if call.task_id is not None]
        reported = sum(1 for call in settled if call.unknown)
        asked = sum(1 for call in settled if call.kind == "2026 asked")
        print(
            f"{kills} kills, {len(load.reports)} calls, {len(settled)} acknowledged tasks ({asked} of them asked), "
            f"{reported} unknown"
        )
        assert len(settled) > kills
        return complaints(load.reports, setup.ledger.executions(), crashed)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_nothing_acknowledged_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    assert await kill_repeatedly(tmp_path, kills=2, callers=6, seed=1) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_lost_or_run_twice_after_two_hundred_kills(tmp_path: Path, seed: int) -> None:
    assert await kill_repeatedly(tmp_path, kills=KILLS_PER_STORE, callers=16, seed=100 + seed) == []


SABOTAGED = [
    pytest.param("no-intent", "may run once", id="one that writes no intent"),
    pytest.param("early-reply+0.5", "acknowledged as", id="one that promises before it writes"),
]


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("fate", "expected"), SABOTAGED)
async def test_the_checker_detects_a_sabotaged_build_under_load(tmp_path: Path, fate: str, expected: str) -> None:
    found = await kill_repeatedly(tmp_path, kills=2, callers=12, seed=7, fate=fate, max_wait_s=0.5)
    assert any(expected in complaint for complaint in found), found


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        SABOTAGED[0],
        # The write is still missing when the process is killed, regardless of the delay.
        pytest.param("early-reply+600", "acknowledged as", id="one that promises before it writes"),
    ],
)
async def test_the_checker_detects_a_sabotaged_build(tmp_path: Path, fate: str, expected: str) -> None:
    """One call is enough if it has been sent, and its task id just reported, at the moment of the kill."""
    async with running_setup(tmp_path, fate) as setup:
        load, made = Load(setup.gateway, seed=7), CallReport("c1", "once", "2025 task", time.time())
        load.reports.append(made)
        async with http_session(setup.gateway, capabilities={"tasks": {}}) as caller:
            params = {"name": "books__once", "arguments": {"call": "c1", "seconds": 0.3}, "task": {"ttl": 60_000}}
            made.task_id = (await caller.ask("tools/call", params))["taskId"]
        if fate == "no-intent":
            async with asyncio.timeout(120):
                while not setup.ledger.count("c1"):
                    await asyncio.sleep(0.01)
        killed = time.time()
        await setup.gateway.kill()
        await setup.gateway.start_again()
        await load.settle(max_wait_s=10)
        found = complaints(load.reports, setup.ledger.executions(), [killed])
    assert any(expected in complaint for complaint in found), found


def run(began: float, ended: float | None = None) -> Execution:
    return Execution("once", "c1", began, ended)


def call(tool: str = "once", status: str = "completed", *answers: str, task_id: str | None = "tg_1") -> CallReport:
    return CallReport("c1", tool, "2025 task", 100.0, task_id, status, list(answers))


@pytest.mark.parametrize(
    ("given", "runs", "expected"),
    [
        pytest.param(call("once", "completed", "a", "a"), [run(101, 102)], None, id="all is well"),
        pytest.param(call("once", "completed", "a"), [run(101), run(103)], "may run once", id="ran twice"),
        pytest.param(call("once", "completed", "a", "b"), [run(101)], "changed", id="bytes changed"),
        pytest.param(call("once", "completed", "a"), [], "never ran", id="invented"),
        pytest.param(call("once", "working"), [], "never ended", id="forgotten"),
        pytest.param(call("read", "failed", "Outcome unknown"), [run(101)], "may be repeated", id="needless unknown"),
        pytest.param(call("once", "failed", "Outcome unknown"), [run(101, 102)], "had arrived", id="late unknown"),
        pytest.param(call("once", "failed", "Outcome unknown"), [run(109)], None, id="honest unknown"),
        pytest.param(call("read", "failed", "no"), [run(101)], "without need", id="gave up early"),
        pytest.param(call("once", "failed", task_id=None), [run(101)], None, id="nothing was promised"),
    ],
)
def test_the_checker_distinguishes_correct_from_wrong_histories(
    given: CallReport, runs: list[Execution], expected: str | None
) -> None:
    found = complaints([given], {"c1": runs}, kills=[110.0])
    assert [expected in text for text in found] == ([True] if expected else [])  # type: ignore[operator]


@pytest.mark.parametrize(("kills", "complaints_expected"), [((110.0, 120.0), 1), ((110.0, 120.0, 130.0), 0)])
def test_a_repeatable_call_may_be_unknown_after_three_kills(kills: tuple[float, ...], complaints_expected: int) -> None:
    runs = [run(at - 1) for at in kills]
    found = complaints([call("read", "failed", "Outcome unknown")], {"c1": runs}, kills=kills)
    assert len(found) == complaints_expected
