"""A gate against regressions: function calls of frequent operations, compared with a stored baseline.

`python -m tests.benchmarks.gate` (`make gate`) fails if one of them takes a tenth more calls than `baseline.json` says; `--write`
keeps what was counted as the new baseline, which belongs into the commit that meant it. Calls are counted, not timed: in virtual
time the same commit takes the same number on every machine, busy or not, as long as the Python is the same.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.virtual_time import Call, Caller, Gateway, Upstream, run

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 1.10
STEPS = 50
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


async def calls(step: Callable[[], Awaitable[Any]], steps: int = STEPS) -> float:
    """Functions that are called in one step by caller, gateway, server and store.

    The median of many steps: what comes once a second, or with the garbage, belongs to no single one.
    """
    count, counts = 0, list[int]()

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    await step()
    sys.setprofile(counted)
    try:
        for _ in range(steps):
            before = count
            await step()
            counts.append(count - before)
    finally:
        sys.setprofile(None)
    return statistics.median(counts)


def server() -> Upstream:
    upstream = Upstream("both")

    async def echo(call: Call) -> str:
        return str(call.arguments.get("text"))

    upstream.tool("echo", echo)
    return upstream


async def as_task(caller: Caller) -> None:
    made = await caller.call("s__echo", {"text": "hi"}, task={"ttl": 60_000})
    await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})


async def measured() -> dict[str, float]:
    limits = {"open_tasks_per_caller": 1_000_000}
    async with Gateway({"limits": limits}, {"s": server()}) as gate:
        old, new = await gate.caller("2025"), await gate.caller("2026")
        await old.tools(), await new.tools()
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "plain call, 2025": lambda: old.call("s__echo", {"text": "hi"}),
            "plain call, 2026": lambda: new.call("s__echo", {"text": "hi"}),
            "list of tools": lambda: old.tools(),
            "task, made and read": lambda: as_task(old),
        }
        return {name: await calls(step) for name, step in steps.items()}


async def with_consoles(consoles: int) -> dict[str, float]:
    """The cost of plain calls while this many people have the console open."""
    async with Gateway({}, {"s": server()}) as gate:
        known = {"authorization": f"Bearer {gate.operator_token}"}
        streams = [gate.http("GET", "/api/v1/events", headers=known) for _ in range(consoles)]
        for stream in streams:
            await stream.head()
        old, new = await gate.caller("2025"), await gate.caller("2026")
        await old.tools(), await new.tools()
        return {
            "plain call, 2025": await calls(lambda: old.call("s__echo", {"text": "hi"})),
            "plain call, 2026": await calls(lambda: new.call("s__echo", {"text": "hi"})),
        }


def worse(found: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """What costs more than allowed, or is not in the baseline."""
    return [
        f"{name}: {value} beside {baseline[name]}" if name in baseline else f"{name}: not in the baseline"
        for name, value in found.items()
        if name not in baseline or value > baseline[name] * ALLOWED
    ]


def main() -> int:
    found = run(measured)
    every: dict[str, dict[str, float]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    kept = every.get(PYTHON, {})
    for name, value in found.items():
        print(f"{name:22} {value:8.0f}   baseline {kept.get(name, float('nan')):8.0f}")
    if "--write" in sys.argv:
        BASELINE.write_text(json.dumps({**every, PYTHON: found}, indent=2) + "\n")
        return 0
    problems = worse(found, kept)
    for problem in problems:
        print(f"dearer than allowed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
