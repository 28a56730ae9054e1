"""Scripts of one caller delay those of others by one step at most, and limits of CPU time make steps wait."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, ended, shop, started, structured
from tests.virtual_time import Gateway, virtual_time

from taskgate import clock
from taskgate.gateway.requests.cpu_limit import CpuLimit
from taskgate.gateway.scripts.fair_turns import FairTurns, StepTurns, limited_caller
from taskgate.scripts.worker_pool import WorkerPool
from taskgate.store.operations.task_queries import FindTask


def tokens(*names: str) -> dict[str, Any]:
    return {"tokens": [{"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]}


def record_steps(monkeypatch: pytest.MonkeyPatch, took_s: float = 1.0) -> list[bytes]:
    """The requests of all steps, in the order in which they begin. Each takes a second of the virtual clock."""
    begun: list[bytes] = []
    really: Callable[..., Any] = WorkerPool._run_in

    async def run_in(self: WorkerPool, worker: Any, exchange: Any) -> Any:
        begun.append(exchange.request)
        await asyncio.sleep(took_s)
        return await really(self, worker, exchange)

    monkeypatch.setattr(WorkerPool, "_run_in", run_in)
    return begun


ENDLESS = "while True:\n    await sleep(0)"
MANY = {"limits": {"open_tasks_per_caller": 2_000, "script_time": "10h", "script_calls": 1_000_000}}


@virtual_time
@pytest.mark.parametrize("scripts", [60, pytest.param(1_000, marks=pytest.mark.long)])
async def test_first_step_waits_for_at_most_one_step_of_other_callers(
    monkeypatch: pytest.MonkeyPatch, scripts: int
) -> None:
    async with Gateway({**ON, **MANY, **tokens("greedy", "modest")}, {"shop": shop()}) as gate:
        begun = record_steps(monkeypatch)
        greedy = await gate.caller("2025", token="greedy")
        for _ in range(scripts):
            await started(gate, greedy, ENDLESS)
        await gate.advance(1.5 * scripts)
        modest = await gate.caller("2025", token="modest")
        before = len(begun)
        assert before > scripts
        task = await started(gate, modest, "'modest'")
        assert structured(await ended(modest, task))["result"] == "modest"
        [place] = [number for number, request in enumerate(begun) if b"'modest'" in request]
        assert place - before <= 1


@virtual_time
async def test_callers_of_an_address_without_a_token_share_their_turns() -> None:
    """Opening sessions is free, so it gives no further turns."""
    async with Gateway(ON, {"shop": shop()}) as gate:
        names = set()
        for _ in range(3):
            task = await gate.life.app.store.ask(FindTask(await started(gate, await gate.caller("2025"), ENDLESS)))
            assert task is not None
            names.add(limited_caller(task))
        assert len(names) == 1


@virtual_time
async def test_waiting_for_a_turn_costs_no_execution_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"limits": {"script_time": "10s", "open_tasks_per_caller": 500}}
    async with Gateway({**ON, **limits}, {"shop": shop()}) as gate:
        record_steps(monkeypatch, took_s=2.0)
        caller = await gate.caller("2025")
        tasks = [await started(gate, caller, f"await sleep(0)\nawait sleep(0)\n{number}") for number in range(40)]
        results = [structured(await ended(caller, task)) for task in tasks]
        assert [result["result"] for result in results] == list(range(40))


class Used:
    """Budgets with two limits of CPU time."""

    def __init__(self, of_caller: float | None, of_tenant: float | None) -> None:
        self.script_cpu_of_callers, self.script_cpu_of_tenants = CpuLimit(), CpuLimit()
        self.script_cpu_of_callers.adopt(of_caller)
        self.script_cpu_of_tenants.adopt(of_tenant)


async def steps_of(turns: StepTurns, caller: str, done: list[tuple[str, float]], cpu_s: float, steps: int) -> None:
    for _ in range(steps):
        async with turns.turn(caller):
            await clock.sleep(cpu_s)
            turns.charge(caller, cpu_s)
            done.append((caller, clock.monotonic()))


@virtual_time
async def test_steps_beyond_the_cpu_limit_of_a_caller_wait_and_do_not_fail() -> None:
    done: list[tuple[str, float]] = []
    turns: Any = StepTurns(2, Used(6.0, None))  # type: ignore[arg-type]
    began = clock.monotonic()
    await asyncio.gather(*(steps_of(turns, "a", done, 2.0, 1) for _ in range(30)), steps_of(turns, "b", done, 2.0, 3))
    # 60 s of CPU time at 6 s a minute: the first minute's part at once.
    assert 8 * 60 <= done[-1][1] - began <= 10 * 60
    assert [at for caller, at in done if caller == "b"][-1] - began <= 10
    assert len(done) == 33


@virtual_time
async def test_steps_beyond_the_cpu_limit_of_a_tenant_wait() -> None:
    done: list[tuple[str, float]] = []
    turns: Any = StepTurns(2, Used(None, 6.0))  # type: ignore[arg-type]
    began = clock.monotonic()
    callers = ["acme/a", "acme/b", "acme/c", "d"]
    await asyncio.gather(*(steps_of(turns, caller, done, 2.0, 5) for caller in callers))
    ends = {caller: at - began for caller, at in done}
    assert ends["d"] <= 20
    assert max(ends[caller] for caller in callers[:3]) >= 200


@virtual_time
async def test_cpu_limit_of_the_configuration_is_in_force_and_a_reload_lifts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"limits": {"script_cpu_per_caller": 1}}
    async with Gateway({**ON, **limits}, {"shop": shop()}) as gate:
        begun = record_steps(monkeypatch)
        monkeypatch.setattr(StepTurns, "charge", _charging(StepTurns.charge, 30.0))
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await sleep(0)\n'end'")
        await gate.advance(600)
        assert len(begun) == 1
        assert (await caller.request("tasks/get", {"taskId": task})).result["status"] == "working"
        await gate.advance(1_800)
        assert structured(await ended(caller, task))["result"] == "end"
        again = await started(gate, caller, "await sleep(0)\n'again'")
        await gate.reload(ON)
        await gate.advance(60)
        assert structured(await ended(caller, again))["result"] == "again"


def _charging(really: Callable[..., None], cpu_s: float) -> Callable[..., None]:
    return lambda turns, caller, _: really(turns, caller, cpu_s)


@virtual_time
async def test_turn_that_is_not_waited_for_any_more_is_given_to_another() -> None:
    turns = FairTurns(1)
    got: list[str] = []

    async def one(name: str) -> None:
        async with turns.turn(name):
            got.append(name)
            await clock.sleep(1)

    first, gone, last = (asyncio.create_task(one(name)) for name in ("first", "gone", "last"))
    await asyncio.sleep(0.5)
    gone.cancel()
    await asyncio.gather(first, last)
    assert got == ["first", "last"]
