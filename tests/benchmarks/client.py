"""Measures the client library: CPU per plain call, CPU for ten thousand followed tasks, time to the first call.

    python tests/benchmarks/client.py [--tasks 10000] [--seconds 15] [--calls 4000]

Prints one JSON line per measurement with its target, and exits with 1 if one is missed. The server runs in another
process, so only the client's own CPU time counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FIRST_CALL = """
import time; begun = time.perf_counter()
import asyncio
from taskgate.client import connect
async def main():
    async with connect({url!r}) as session:
        await session.call_tool("echo", {{"text": "x"}})
        print(time.perf_counter() - begun)
asyncio.run(main())
"""


def start_server() -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.benchmarks.quick_server", str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/mcp"
        time.sleep(0.02)
    raise SystemExit("the benchmark's server did not start")


async def cpu_per_call(url: str, generation: str, calls: int) -> float:
    """Milliseconds of CPU for one plain call over a warm session, one after another: the quietest of five rounds."""
    from taskgate.client import connect

    async with connect(url, generation=generation) as session:
        for _ in range(200):
            await session.call_tool("echo", {"text": "warm"})
        rounds = []
        for _ in range(5):
            begun = time.process_time()
            for number in range(calls // 5):
                text = f"nonce-{number}"
                assert (await session.call_tool("echo", {"text": text})).text == text
            rounds.append((time.process_time() - begun) / (calls // 5) * 1000)
        return min(rounds)


async def cpu_for_tasks(url: str, generation: str, tasks: int, seconds: float) -> tuple[float, float]:
    """The share of one core that `tasks` followed tasks cost at a poll interval of 5 s, and the polls a second."""
    from taskgate.client import connect

    async with connect(url, generation=generation) as session:
        polls = 0
        following = session._following
        read_task = following.read_task

        async def counted(*arguments: Any) -> Any:
            nonlocal polls
            polls += 1
            return await read_task(*arguments)

        for begin in range(0, tasks, 100):
            await asyncio.gather(*(session.call_tool_as_task("work") for _ in range(begin, min(begin + 100, tasks))))
        await asyncio.sleep(5.5)  # every task has had its first turn, so the polls are spread
        following.read_task = counted  # type: ignore[assignment]
        cpu, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - begun
        return (time.process_time() - cpu) / elapsed, polls / elapsed


def first_call(url: str) -> float:
    """Seconds from the first import to the first answer, in a fresh process: the best of five."""
    command = [sys.executable, "-c", FIRST_CALL.format(url=url)]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5))


def report(name: str, value: float, target: float, **more: Any) -> bool:
    met = value <= target
    print(json.dumps({"what": name, "value": round(value, 4), "target": target, "met": met, **more}), flush=True)
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--calls", type=int, default=4_000)
    options = parser.parse_args()
    server, url = start_server()
    try:
        met = [report("seconds from import to first call", first_call(url), 0.3)]
        for generation in ("stateful", "stateless"):
            cost = asyncio.run(cpu_per_call(url, generation, options.calls))
            met += [report("CPU ms per plain call", cost, 0.15, generation=generation)]
            share, rate = asyncio.run(cpu_for_tasks(url, generation, options.tasks, options.seconds))
            what = f"cores for {options.tasks} tasks"
            met += [report(what, share, 0.3, generation=generation, polls_per_second=round(rate))]
    finally:
        server.kill()
        server.wait()
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
