"""`make bench`: what Taskgate adds between a caller and an upstream, next to other relays, as ratios from one run.

Targets are driven in alternating rounds, because absolute figures move from machine to machine and from minute to
minute; the table shows the median round. Nothing here is a test: the numbers to reach are printed beside what was
seen.

    python -m tests.benchmarks.relay [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import measure_sessions, one_round, start_to_first_answer
from tests.benchmarks.start import python_build
from tests.benchmarks.targets import Target, echo_server, relays, taskgate
from tests.harness.absent import HOME
from tests.harness.programs import NotReady

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = ("per_second", "p50_ms", "p99_ms", "cpu_ms", "upstream_messages", "upstream_connections", "errors")
TITLES = ("calls/s", "p50 ms", "p99 ms", "CPU ms/call", "messages up/call", "new connections", "errors")
GENERATIONS = ("2025", "2026")
LONG_RESULT = 65_536


async def compare(generation: str, rounds: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Direct and every relay, alternating; the median of each figure."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(echo_server())
        targets = [Target("direct", upstream), await stack.enter_async_context(taskgate(upstream))]
        for name, relay in relays(upstream, generation).items():
            try:
                targets.append(await stack.enter_async_context(relay))
            except (NotReady, OSError) as problem:
                print(f"NOT COMPARED: {name} does not start here: {str(problem)[:400]}")
        seen: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
        for _ in range(rounds):
            for target in targets:
                seen[target.name].append(await one_round(target, upstream, generation, seconds=seconds))
    return {name: middle(reports) for name, reports in seen.items()}


async def variations(generation: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Taskgate alone under other shapes of load, each beside the direct figure."""
    shapes: dict[str, dict[str, Any]] = {
        "concurrency 1": {"concurrency": 1},
        "64 KiB results": {"fill": LONG_RESULT},
        "a form in every call": {"tool": "ask", "ask": True},
    }
    found = {}
    async with echo_server() as upstream, taskgate(upstream) as target:
        for name, shape in shapes.items():
            for one in (Target("direct", upstream), target):
                found[f"{name}, {one.name}"] = await one_round(one, upstream, generation, seconds=seconds, **shape)
    async with echo_server("--sse") as upstream, taskgate(upstream) as target:
        for one in (Target("direct", upstream), target):
            name = f"SSE-answering upstream, {one.name}"
            found[name] = await one_round(one, upstream, generation, seconds=seconds)
    return found


def middle(reports: list[dict[str, Any]]) -> dict[str, Any]:
    def median(name: str) -> Any:
        values = [report[name] for report in reports if report.get(name) is not None]
        return round(statistics.median(values), 4) if values else None

    first_error = next((report["first_error"] for report in reports if report.get("first_error")), None)
    return {name: median(name) for name in COLUMNS} | {"first_error": first_error}


def table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    width = max(len(name) for name in rows)
    print(f"\n{title}\n{'':{width}}  " + "  ".join(f"{name:>16}" for name in TITLES))
    for name, row in rows.items():
        cells = [row.get(column) for column in COLUMNS]
        print(f"{name:{width}}  " + "  ".join(f"{'' if cell is None else cell:>16}" for cell in cells))
        if row.get("first_error"):
            print(f"{'':{width}}  first error: {row['first_error'][:160]}")


def check_targets(generation: str, rows: dict[str, dict[str, Any]], single: dict[str, dict[str, Any]]) -> list[str]:
    """The targets, beside the figures of this run."""
    ours, direct = rows["taskgate"], rows["direct"]
    added = single["concurrency 1, taskgate"]["p50_ms"] - single["concurrency 1, direct"]["p50_ms"]
    lines = [
        f"{generation}: CPU {ours['cpu_ms']} ms a call (goal 0.20, stretch 0.12)",
        f"{generation}: {ours['upstream_messages']} upstream messages a call (goal 1)",
        f"{generation}: {ours['upstream_connections']} new upstream connections while calling (goal 0)",
        f"{generation}: {ours['per_second'] / direct['per_second']:.2f} of the direct calls/s (goal 0.15)",
        f"{generation}: {added:.2f} ms added to p50 at concurrency 1 (goal 0.4)",
    ]
    if "fastmcp proxy" in rows and rows["fastmcp proxy"]["per_second"]:
        ratio = ours["per_second"] / rows["fastmcp proxy"]["per_second"]
        lines.append(f"{generation}: {ratio:.0f} times the calls/s of the FastMCP proxy (goal 20)")
    return lines


def install_relays() -> None:
    """Put the other relays into their environments, or report which comparison will be missing."""
    subprocess.run([sys.executable, ROOT / "tools/peers.py", "--bench"], check=False)
    for name in ("fastmcp", "contextforge", "mcp-proxy", "supergateway"):
        if not (HOME / name / ".installed").exists():
            print(f"NOT COMPARED: {name} is not installed on this machine")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    chosen = parser.parse_args()
    install_relays()
    print(f"\n{python_build()}")
    rounds, seconds, sessions = (1, 1.0, 200) if chosen.quick else (3, 3.0, 1000)
    results: dict[str, Any] = {}
    goals: list[str] = []
    for generation in GENERATIONS:
        rows = await compare(generation, rounds, seconds)
        table(f"Generation {generation}, concurrency 16, median of {rounds}", rows)
        single = await variations(generation, seconds)
        table(f"Generation {generation}, other shapes of load", single)
        results[generation] = {"relays": rows, "shapes": single}
        goals += check_targets(generation, rows, single)
    async with echo_server() as upstream:
        results["start_s"] = await start_to_first_answer(upstream)
        results["memory"] = memory = await measure_sessions(upstream, sessions)
    goals.append(f"{results['start_s']} s from start to first answer (goal 1.0)")
    goals.append(f"{memory['idle_rss_mb']} MB resident when idle (goal 60)")
    goals.append(f"{memory['kb_per_session']} KB for each of {memory['sessions']} open sessions (goal 60)")
    print("\nGoals\n" + "\n".join(f"  {goal}" for goal in goals))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
