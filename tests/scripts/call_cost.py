"""Measure what a call of a script costs: `python -m tests.scripts.call_cost [CALLS]`.

A real gateway makes so many calls for a caller, each as a task whose result the caller requests, and as many in one script, in turn
and several times. Printed is the CPU time of the gateway with its workers for one call of each kind, and the difference.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.activity.callers import http_session
from tests.chaos.stage import Stage, set_stage

CALLS, ROUNDS = 100, 3
LIMIT_MS = 1.5
ON: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "limits": {"open_tasks_per_caller": 5000},
}


def cpu_ms(pid: int) -> float:
    """Of a process and its descendants, ended ones included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return ticks * 1000 / os.sysconf("SC_CLK_TCK") + sum(cpu_ms(int(child)) for child in children)


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


async def measured(stage: Stage, count: int) -> tuple[float, float]:
    """The median cost of a call of each kind, in milliseconds."""
    pid = stage.gateway.pid
    costs: dict[Any, list[float]] = {plain: [], scripted: []}
    async with http_session(stage.gateway) as caller:
        for work in (plain, scripted):
            await work(caller, 20)
        for _ in range(ROUNDS):
            for work, found in costs.items():
                before = cpu_ms(pid)
                await work(caller, count)
                found.append((cpu_ms(pid) - before) / count)
    return statistics.median(costs[plain]), statistics.median(costs[scripted])


async def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    with tempfile.TemporaryDirectory() as folder:
        async with set_stage(Path(folder), more=ON) as stage:
            alone, in_script = await measured(stage, count)
    print(f"CPU of one call: {alone:.2f} ms as a task of its caller, {in_script:.2f} ms in a script")
    print(f"difference: {in_script - alone:.2f} ms (limit {LIMIT_MS} ms)")
    return 0 if in_script - alone <= LIMIT_MS else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
