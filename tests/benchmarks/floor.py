"""`make bench-floor`: a governed call beside a bare relay of the same bytes (`bare_relay.py`), as ratios from one run.

The two are driven in turn, so that other load on the machine meets both. Printed for each generation: CPU time, user
instructions where they can be counted, their ratios, and the Python build, on which all of them depend.

Callgrind runs both some fifty times slower. What the gateway does once a second is therefore counted while it is idle and
subtracted, and its limits per second are divided (`gateway_in_slow_time.py`). The table then has a further line: a call that
leaves an audit row and a row of history, as the first calls of each second do.

    python -m tests.benchmarks.floor [--rounds 5] [--calls 4000] [--callgrind] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.benchmarks.gateway_in_slow_time import HISTORY_SAMPLE
from tests.benchmarks.instructions import Count, callgrind_counts, counted, kernel_counts
from tests.benchmarks.start import python_build
from tests.benchmarks.targets import HERE, Target, echo_server, taskgate
from tests.harness.programs import free_port, listening, running

UNDER_CALLGRIND = (str(HERE / "instructions.py"),)
IN_SLOW_TIME = (str(HERE / "gateway_in_slow_time.py"),)
IDLE_S = 5.0
NEVER_LATE: dict[str, Any] = {"limits": {"busy_after": "10m"}}
WITH_ROWS = "small result with rows"
GENERATIONS = ("2025", "2026")
SHAPES = {"small result": 0, "64 KiB result": 65_536}
GOALS = {
    "small result": {"instructions": 4.0, "cpu_us": 3.0},
    "64 KiB result": {"instructions": 2.5, "cpu_us": 2.5},
}
ROUND_DEADLINE = 600.0


@asynccontextmanager
async def bare_relay(upstream: str, launcher: tuple[str, ...] = ()) -> AsyncIterator[Target]:
    port, upstream_port = free_port(), urlsplit(upstream).port
    command: list[str | Path] = [sys.executable, *launcher, HERE / "bare_relay.py", str(port), str(upstream_port)]
    async with running(command, listening(port)) as program:
        yield Target("bare relay", f"http://127.0.0.1:{port}/mcp", program.pid)


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads, from the scheduler, which counts nanoseconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def one_round(
    target: Target,
    generation: str,
    calls: int,
    fill: int,
    counter: str | None,
    *,
    tool: str = "echo",
    idle_instructions_per_s: float = 0.0,
) -> dict[str, float]:
    """The cost of one call, from a fixed number of them after a warm-up."""
    assert target.pid is not None
    command = [sys.executable, str(HERE / "load.py"), target.url, "--generation", generation, "--wait"]
    command += ["--tool", f"{target.prefix}{tool}", "--calls", str(calls), "--fill", str(fill)]
    load = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert load.stdout is not None
    assert load.stdin is not None
    async with asyncio.timeout(ROUND_DEADLINE):
        await load.stdout.readline()
        counting = counted(target.pid, callgrind=counter == "callgrind") if counter else nullcontext(Count())
        async with counting as count:
            before, began = cpu_seconds(target.pid), time.monotonic()
            load.stdin.write(b"\n")
            await load.stdout.readline()
            report: dict[str, Any] = json.loads(await load.stdout.readline())
            spent, took = cpu_seconds(target.pid) - before, time.monotonic() - began
        await load.wait()
    if report["errors"] or not report["calls"]:
        raise SystemExit(f"{target.name}: {report['errors']} calls failed: {report['first_error']}")
    cost = {"cpu_us": spent / report["calls"] * 1e6}
    if count.instructions is not None:
        cost["instructions"] = (count.instructions - took * idle_instructions_per_s) / report["calls"]
    return cost


async def idle_instructions_per_s(target: Target) -> float:
    """What a target executes in a second without calls, counted with callgrind after it has served some."""
    assert target.pid is not None
    for generation in GENERATIONS:
        await one_round(target, generation, 50, 0, None)
    began = time.monotonic()
    async with counted(target.pid, callgrind=True) as count:
        await asyncio.sleep(IDLE_S)
    assert count.instructions is not None
    return count.instructions / (time.monotonic() - began)


async def measured(rounds: int, calls: int, counter: str | None) -> dict[str, dict[str, dict[str, float]]]:
    """The median cost of a call, by generation and shape, for the gateway and for the bare relay."""
    slow = counter == "callgrind"
    launcher = UNDER_CALLGRIND if slow else ()
    settings = {**NEVER_LATE, "history": {"sample": HISTORY_SAMPLE}} if slow else {}
    program = IN_SLOW_TIME if slow else ("-m", "taskgate")
    found: dict[str, dict[str, dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(echo_server())
        floor = await stack.enter_async_context(bare_relay(upstream, launcher))
        gateway = await stack.enter_async_context(taskgate(upstream, (*launcher, *program), settings))
        shapes = [(shape, fill, gateway) for shape, fill in SHAPES.items()]
        if slow:
            with_rows = await stack.enter_async_context(taskgate(upstream, (*launcher, "-m", "taskgate"), NEVER_LATE))
            shapes.append((WITH_ROWS, 0, with_rows))
        idle = {target.name: 0.0 for target in (floor, gateway)}
        if slow:
            idle[gateway.name] = await idle_instructions_per_s(gateway)
        for generation in GENERATIONS:
            for shape, fill, relay in shapes:
                seen: dict[str, list[dict[str, float]]] = {floor.name: [], relay.name: []}
                for _ in range(rounds):
                    for target in (floor, relay):
                        cost = await one_round(
                            target, generation, calls, fill, counter, idle_instructions_per_s=idle[target.name]
                        )
                        seen[target.name].append(cost)
                found[f"{generation}, {shape}"] = {name: middle(costs) for name, costs in seen.items()}
    return found


def middle(costs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}


def table(found: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"{'':28}{'cost of a call':>14}{'bare relay':>14}{'taskgate':>14}{'ratio':>8}{'goal':>6}")
    for name, costs in found.items():
        floor, gateway = costs["bare relay"], costs["taskgate"]
        for measure, value in gateway.items():
            if measure == "cpu_us" and "instructions" in gateway and callgrind_slows(gateway):
                continue
            goal = GOALS.get(name.split(", ")[1], {}).get(measure, "")
            ratio = value / floor[measure]
            print(f"{name:28}{measure:>14}{floor[measure]:>14,.0f}{value:>14,.0f}{ratio:>8.1f}{goal:>6}")


def callgrind_slows(cost: dict[str, float]) -> bool:
    """Whether the CPU time is callgrind's: no processor executes so few instructions in a microsecond."""
    return cost["instructions"] / cost["cpu_us"] < 200


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000, help="in each round")
    parser.add_argument(
        "--callgrind", action="store_true", help="count instructions with callgrind (slow; needs valgrind)"
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    chosen = parser.parse_args()
    if chosen.callgrind and not callgrind_counts():
        raise SystemExit("valgrind is not installed; without --callgrind, CPU time is measured.")
    counter = "callgrind" if chosen.callgrind else "perf" if kernel_counts() else None
    print(f"Python: {python_build()}")
    print(f"Instructions: {counter or 'not counted (this kernel has no counter; --callgrind counts with valgrind)'}")
    found = await measured(chosen.rounds, chosen.calls, counter)
    table(found)
    if chosen.json:
        chosen.json.write_text(json.dumps({"python": python_build(), "costs": found}, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
