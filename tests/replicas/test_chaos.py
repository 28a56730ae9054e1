"""Gateways that share a store, under random faults and load, judged by the books of the server behind them.

A short run with the tests; `make chaos-replicas` makes 300 faults. A fault: a gateway is killed, paused for longer than its lease,
restarted in good order, or every connection to the database is cut. What is judged: no accepted task is lost, nothing that may run
once ran twice, a task that completed ran, and one that failed says whether it may have run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from tests.chaos.stage import LedgerFile
from tests.harness.gateway import Gateway
from tests.replicas.test_faults import Database
from tests.replicas.test_two_gateways import OVER, Pair, pair

FAULTS = int(os.environ.get("TASKGATE_CHAOS_FAULTS", "4"))
SEED = int(os.environ.get("TASKGATE_CHAOS_SEED", "7"))
CALLERS = 3
LONGER_THAN_A_LEASE_S = 2.5
DEADLINE_S = 120


@dataclass
class Load:
    """Callers that make tasks at whichever gateway takes them, until told to stop."""

    both: Pair
    accepted: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By call: the id of the task that was acknowledged, and its tool."""
    stopping: bool = False

    async def caller(self, number: int, chance: random.Random) -> None:
        count = 0
        while not self.stopping:
            gateway = chance.choice((self.both.a, self.both.b))
            tool, call = chance.choice(("once", "read")), f"w{number}-{count}"
            count += 1
            try:
                async with asyncio.timeout(20):
                    self.accepted[call] = (await self.both.begin(gateway, tool, call, seconds=0.3), tool)
            except (AssertionError, OSError, httpx2.HTTPError, TimeoutError, ValueError, IndexError, KeyError):
                await asyncio.sleep(0.1)  # not acknowledged: nothing was promised


async def disturb(both: Pair, database: Database, chance: random.Random) -> None:
    victim = chance.choice((both.a, both.b))
    match chance.choice(("kill", "pause", "restart", "cut")):
        case "kill":
            await victim.kill()
            await victim.start()
        case "pause":
            os.kill(victim.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(LONGER_THAN_A_LEASE_S)  # the length of the fault
            finally:
                os.kill(victim.pid, signal.SIGCONT)
        case "restart":
            await victim.stop()
            await victim.start()
        case _:
            database.cut()
    await _serves(victim)


async def _serves(gateway: Gateway) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await gateway.is_ready():
            await asyncio.sleep(0.1)


def problems(ends: dict[str, dict[str, object]], tools: dict[str, str], ledger: LedgerFile) -> list[str]:
    """What the books and the answers do not agree about."""
    found = []
    runs = {call: len(executions) for call, executions in ledger.executions().items()}
    for call, count in runs.items():
        if call.startswith("w") and tools.get(call) == "once" and count > 1:
            found.append(f"{call} may run once and ran {count} times")
    for call, shown in ends.items():
        if shown.get("status") not in OVER:
            found.append(f"{call} was accepted and never ended: {shown}")
        elif shown["status"] == "completed" and not runs.get(call):
            found.append(f"{call} is said to be completed and never ran")
        elif shown["status"] == "failed" and "may or may not have" not in str(shown) and runs.get(call):
            found.append(f"{call} is said not to have run, and ran: {shown}")
    return found


async def test_random_faults_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    async with pair(tmp_path) as both:
        database, load = Database(both), Load(both)
        callers = [asyncio.create_task(load.caller(n, random.Random(SEED + n))) for n in range(CALLERS)]
        for _ in range(FAULTS):
            before = len(load.accepted)
            await disturb(both, database, chance)
            async with asyncio.timeout(DEADLINE_S):
                while len(load.accepted) < before + CALLERS:
                    await asyncio.sleep(0.05)
        load.stopping = True
        await asyncio.gather(*callers)
        ends = {}
        for call, (task_id, _) in load.accepted.items():
            async with asyncio.timeout(DEADLINE_S):
                ends[call] = await both.until(both.b, task_id, *OVER)
        tools = {call: tool for call, (_, tool) in load.accepted.items()}
        assert not problems(ends, tools, both.ledger)


def test_the_checker_finds_what_was_lost_run_twice_or_told_wrongly(tmp_path: Path) -> None:
    books = LedgerFile(tmp_path / "ledger.jsonl")
    rows = [("1", "w0"), ("2", "w0"), ("3", "w1"), ("4", "w3")]
    books.path.write_text(
        "".join(
            f'{{"what": "begin", "number": "{number}", "tool": "once", "call": "{call}", "at": 1.0}}\n'
            for number, call in rows
        )
    )
    tools = dict.fromkeys(("w0", "w1", "w2", "w3", "w4"), "once")
    ends: dict[str, dict[str, object]] = {
        "w0": {"status": "completed"},
        "w1": {"status": "completed"},
        "w2": {"status": "completed"},
        "w3": {"status": "failed", "error": "it was not executed"},
        "w4": {"status": "working"},
    }
    assert [line.split(" ", 1)[0] for line in problems(ends, tools, books)] == ["w0", "w2", "w3", "w4"]
