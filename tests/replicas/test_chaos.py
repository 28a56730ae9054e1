"""Gateways that share a store, under faults and load, checked against the ledger of the server behind them.

A short run with the tests, one fault of every quick kind; `make chaos-replicas` makes 300 of all kinds. `make
chaos-sabotage` shows that the same checks detect broken gateways.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.chaos.crash_setup import LedgerFile
from tests.mutants.mutant_list import ROOT, Mutant, Source, mutants, mutated
from tests.replicas import chaos
from tests.replicas.chaos import Cluster, Fault, Load, Made, Strike, cluster, problems, strike

NUMBER = int(os.environ.get("TASKGATE_CHAOS_FAULTS", "0"))
SEED = int(os.environ.get("TASKGATE_CHAOS_SEED", "7"))
MINUTES = int(os.environ.get("TASKGATE_CHAOS_MINUTES", "180"))
"""After this time no further fault is injected, and the results are checked."""
CALLERS = 9 if NUMBER else 4
QUICK: tuple[Fault, ...] = (chaos.kill, chaos.pause, chaos.database_restart, chaos.silence, chaos.cut_all)


def chosen() -> list[Fault]:
    """Every kind equally often, but for the rolling restart, which is one of thirty: in an order that the seed decides."""
    if not NUMBER:
        return list(QUICK)
    others = [fault for fault in chaos.FAULTS if fault is not chaos.rolling_restart]
    order = [chaos.rolling_restart] * -(-NUMBER // 30)
    order += [others[number % len(others)] for number in range(NUMBER - len(order))]  # type: ignore[misc]
    random.Random(SEED).shuffle(order)
    return order  # type: ignore[return-value]


async def under_load(three: Cluster, load: Load, faults: list[Fault]) -> None:
    """Each fault is injected while callers work, and the next one after further tasks were created and ended."""
    chance, until = random.Random(SEED), time.monotonic() + 60 * MINUTES
    callers = [asyncio.create_task(load.caller(number)) for number in range(CALLERS)]
    for number, fault in enumerate(faults):
        if time.monotonic() > until:
            print(f"time is up: {number} of {len(faults)} faults", flush=True)
            break
        await strike(three, fault, chance.randrange(len(three.gateways)))
        if NUMBER:
            print(f"{number + 1:4} {fault.__name__:17} {len(load.made):6} tasks, {_seconds(three)}", flush=True)
        now = time.time()
        async with asyncio.timeout(chaos.DEADLINE_S):
            while sum(made.began > now and made.ended < float("inf") for made in load.made.values()) < CALLERS:
                await asyncio.sleep(0.05)
    load.stopping = True
    await asyncio.gather(*callers)


def _seconds(three: Cluster) -> str:
    return f"{three.strikes[-1].ended - three.strikes[-1].began:.1f} s"


@pytest.mark.timeout(300 + 60 * NUMBER)
async def test_faults_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path) as three:
        load = Load(three, SEED)
        await under_load(three, load, chosen())
        found = await chaos.verdict(three, load)
        if NUMBER:
            kinds = Counter(fault.kind for fault in three.strikes)
            ends = Counter(str(made.shown["status"]) for made in load.made.values())
            print(f"{len(load.made)} tasks {dict(ends)}, {sum(kinds.values())} faults {dict(kinds)}, problems: {found}")
        assert not found


# The checks themselves


def test_the_checker_finds_lost_repeated_and_misreported_calls(tmp_path: Path) -> None:
    books = LedgerFile(tmp_path / "ledger.jsonl")
    rows = [("1", "w0"), ("2", "w0"), ("3", "w1"), ("4", "w3"), ("5", "w5"), ("6", "w6"), ("7", "w7"), ("8", "w8")]
    books.path.write_text(
        "".join(
            f'{{"what": "begin", "number": "{number}", "tool": "once", "call": "{call}", "at": 1.0}}\n'
            for number, call in rows
        )
    )
    ends: dict[str, dict[str, object]] = {
        "w0": {"status": "completed"},
        "w1": {"status": "completed"},
        "w2": {"status": "completed"},
        "w3": {"status": "failed", "error": "it was not executed"},
        "w4": {"status": "working"},
        "w6": {"status": "failed", "error": "it may or may not have taken effect"},
        "w7": {"status": "failed", "error": "it may or may not have taken effect"},
        "w8": {"status": "completed", "result": 1},
    }
    made = {call: Made("once", 1, began=10.0, ended=20.0, shown=shown) for call, shown in ends.items()}
    made["w6"].at = 0
    made["w8"].elsewhere = {"status": "completed", "result": 2}
    strikes = [Strike("kill", frozenset({0}), 15.0, 16.0), Strike("kill", frozenset({1}), 25.0, 26.0)]
    found = problems(made, {"w5"}, books, strikes)
    assert [line.split(" ", 1)[0] for line in found] == ["w5", "w0", "w2", "w3", "w4", "w7", "w8"]


def _kept(name: str) -> Mutant:
    return next(mutant for mutant in mutants() if mutant.name == name)


def _mutant(name: str, before: str, after: str) -> Mutant:
    return Mutant(name=name, why="", before=before, after=after, tests=())


NO_FENCE = (_kept("fence of a task"), _kept("fence of a process"))
STALE_RUNS_CONTINUE = (_mutant("runs that others have taken over", "self._runs.abandon(task_id)", "pass"),)
"""A gateway that looks whose a task is ends its own run before the fence is asked."""
CLAIM_FROM_RUNNING = (_kept("claim from a running gateway"),)
NO_WAKE_UP = (_mutant("announcement", "connection.execute(_NOTIFY, [CHANNEL, payload])", "pass"),)
NO_POLL = (
    _mutant(
        "poll while nothing comes",
        "names = await wakeups.wait(topic, max(0.0, due - clock.monotonic()))",
        "names = await wakeups.wait(topic, 3600.0)",
    ),
    _mutant("poll while hints come", "if names is None or clock.monotonic() >= due:", "if names is None:"),
)


def sabotaged(folder: Path, changes: tuple[Mutant, ...]) -> Path:
    """A copy of the source with these lines changed."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    source = Source(folder)
    for mutant in changes:
        place = source.find(mutant)
        place.file.write_text(mutated(place.file.read_text(), mutant, place.line))
    return folder / "src"


Scenario = Callable[[Cluster, int, float], Awaitable[Load]]
"""Takes a seed and how long callers wait for a task; returns the replies that they received."""


def struck_by(fault: Fault) -> Scenario:
    async def scenario(three: Cluster, seed: int, deadline_s: float) -> Load:
        load = Load(three, seed, deadline_s)
        await under_load(three, load, [fault])
        return load

    return scenario


async def owner_comes_back(three: Cluster, seed: int, deadline_s: float) -> Load:
    load = Load(three, seed, deadline_s, tools=("once_ask",), seconds=5)
    await chaos.answered_while_paused(three, load, CALLERS)
    return load


async def faults_found(
    folder: Path, changes: tuple[Mutant, ...], scenario: Scenario, rounds: int, deadline_s: float
) -> list[str]:
    """The findings of the checks for gateways of such a build under faults, in the first round with any."""
    source = await asyncio.to_thread(sabotaged, folder, changes)
    async with cluster(folder, source) as three:
        for seed in range(SEED, SEED + rounds):
            load = await scenario(three, seed, deadline_s)
            # A claim from a running gateway looks to it like an expired lease, which explains nothing here.
            strikes = [strike for strike in three.strikes if strike.kind != "lost lease"]
            if found := problems(load.made, load.refused, three.ledger, strikes):
                return found
    return []


SABOTAGES = [
    pytest.param((*NO_FENCE, *STALE_RUNS_CONTINUE), owner_comes_back, "ran 2 times", id="no fence check"),
    pytest.param(
        CLAIM_FROM_RUNNING,
        struck_by(chaos.kill),
        "nothing had happened to its gateway",
        id="claim from a running gateway",
    ),
    pytest.param((*NO_WAKE_UP, *NO_POLL), struck_by(chaos.cut), "is lost", id="wake-up lost without the poll"),
]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("changes", "scenario", "complaint"), SABOTAGES)
async def test_the_checker_finds_a_sabotaged_build(
    tmp_path: Path, changes: tuple[Mutant, ...], scenario: Scenario, complaint: str
) -> None:
    found = await faults_found(tmp_path, changes, scenario, rounds=8, deadline_s=40)
    assert any(complaint in line for line in found), found


CONTROLS = [
    pytest.param(STALE_RUNS_CONTINUE, owner_comes_back, id="with the fence"),
    pytest.param(NO_WAKE_UP, struck_by(chaos.cut), id="with the poll"),
]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("changes", "scenario"), CONTROLS)
async def test_the_unsabotaged_build_passes(tmp_path: Path, changes: tuple[Mutant, ...], scenario: Scenario) -> None:
    """The controls of the above: the rest of the change does no harm."""
    assert await faults_found(tmp_path, changes, scenario, rounds=1, deadline_s=chaos.DEADLINE_S) == []


def test_every_sabotage_finds_its_line() -> None:
    source = Source(ROOT)
    for mutant in (*NO_FENCE, *STALE_RUNS_CONTINUE, *CLAIM_FROM_RUNNING, *NO_WAKE_UP, *NO_POLL):
        source.find(mutant)
