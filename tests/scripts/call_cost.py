"""Measure what a call of a script costs: `python -m tests.scripts.call_cost [ROUNDS]`.

A real gateway makes calls for a caller, each as a task whose result the caller requests, and as many in one script, in turn
and in many rounds. Printed is the CPU time of the gateway with its workers for one call of each kind, and the difference. The
kernel counts it in nanoseconds, threads that have ended included. Other work on the machine only adds to it, so the lower
quartile of the rounds is used.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.activity.callers import http_session
from tests.chaos.crash_setup import Setup, running_setup

CALLS, ROUNDS = 50, 24
LIMIT_MS = 1.5
ON: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "limits": {"open_tasks_per_caller": 5000},
}


def cpu_ms(pid: int) -> float:
    """Of a process and its descendants. Those that have ended count with the resolution of their parent's clock ticks."""
    # Linux numbers the CPU clocks of processes in this way; they count all threads, also those that have ended.
    own = time.clock_gettime_ns((~pid << 3) | 2) / 1e6
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = sum(map(int, fields[13:15])) * 1000 / os.sysconf("SC_CLK_TCK")
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return own + ended + sum(cpu_ms(int(child)) for child in children)


async def plain(caller: Any, count: int) -> None:
    for number in range(count):
        params = {"name": "books__read", "arguments": {"call": f"plain {number}"}, "task": {"ttl": 600_000}}
        task = (await caller.ask("tools/call", params))["task"]["taskId"]
        await caller.ask("tasks/result", {"taskId": task})


async def scripted(caller: Any, count: int) -> None:
    code = f"for n in range({count}):\n    await books.read(call='script ' + str(n))\n'ended'"
    params = {"name": "run_script", "arguments": {"code": code}, "task": {"ttl": 600_000}}
    task = (await caller.ask("tools/call", params))["task"]["taskId"]
    result = await caller.ask("tasks/result", {"taskId": task})
    assert result["structuredContent"]["result"] == "ended", result


async def measured(setup: Setup, rounds: int) -> dict[str, list[float]]:
    """What one call of each kind cost in each round, in milliseconds."""
    pid = setup.gateway.pid
    costs: dict[str, list[float]] = {"plain": [], "scripted": []}
    async with http_session(setup.gateway) as caller:
        for number in range(-1, rounds):
            for work in (plain, scripted):
                before = cpu_ms(pid)
                await work(caller, CALLS)
                if number >= 0:  # the first round loads modules and starts the worker
                    costs[work.__name__].append((cpu_ms(pid) - before) / CALLS)
    return costs


def lower_quartile(found: list[float]) -> float:
    return statistics.quantiles(found, n=4, method="inclusive")[0]


async def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        async with running_setup(Path(folder), more=ON) as setup:
            costs = await measured(setup, rounds)
    alone, in_script = map(lower_quartile, costs.values())
    medians = [statistics.median(found) for found in costs.values()]
    print(f"CPU of one call: {alone:.3f} ms as a task of its caller, {in_script:.3f} ms in a script (lower quartile)")
    print(f"medians of {rounds} rounds: {medians[0]:.3f} ms and {medians[1]:.3f} ms")
    print(f"difference: {in_script - alone:.3f} ms (limit {LIMIT_MS} ms)")
    return 0 if in_script - alone <= LIMIT_MS else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
