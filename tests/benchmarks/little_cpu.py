"""A gateway that gets 5 % of a CPU: none of 10,000 calls of 16 callers may be refused (`make little-cpu`).

    python -m tests.benchmarks.little_cpu [--calls 10000] [--share 0.05] [--control]

The gateway is stopped and continued in turns by signals, as if other programs used the CPU: the loop is late, but the calls that
wait are few. Once with the default of `limits.busy_after` and long turns, once with a shorter one and turns in which no call is on
time. With `--control` the same load is sent to a gateway that counts every late call, even while other programs use the CPU. Exits
with 1 if a call was refused or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.measure import processor_seconds
from tests.benchmarks.targets import echo_server, taskgate

CALLERS: Final = 16
TURNS: Final = {"500ms": 1.0, "100ms": 0.2}
"""Seconds from one stop to the next for each value of `limits.busy_after`. The event loop measures every 10 ms how late it is, so
in a twentieth of 0.2 s no call is on time."""
EVERY_LATE_CALL: Final = ("-m", "tests.benchmarks.gateway_counting_every_late_call")


async def stop_in_turns(pid: int, turn_s: float, share: float) -> None:
    """Let a process run for this share of each turn, until cancelled."""
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(turn_s * (1 - share))
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(turn_s * share)
    finally:
        os.kill(pid, signal.SIGCONT)


async def call(url: str, calls: int) -> dict[str, Any]:
    """Send the calls from a process of its own."""
    command = [str(Path(__file__).with_name("load.py")), url, "--tool", "up__echo", "--errors", str(calls)]
    command += ["--concurrency", str(CALLERS), "--calls", str(calls)]
    load = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    output, _ = await load.communicate()
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


async def measure(name: str, launcher: tuple[str, ...], busy_after: str, calls: int, share: float) -> bool:
    """Return whether every call was answered."""
    more = {"limits": {"busy_after": busy_after}}
    async with echo_server() as upstream, taskgate(upstream, launcher, more) as target:
        assert target.pid is not None
        warm = await call(target.url, 10 * CALLERS)
        before = processor_seconds(target.pid)
        turns = asyncio.create_task(stop_in_turns(target.pid, TURNS[busy_after], share))
        try:
            began = asyncio.get_running_loop().time()
            found = await call(target.url, calls)
            took = asyncio.get_running_loop().time() - began
        finally:
            turns.cancel()
            await asyncio.gather(turns, return_exceptions=True)
        used = (processor_seconds(target.pid) - before) / took
    print(
        f"busy_after {busy_after}  {name:22} answered {found['calls']:6}  refused or failed {found['errors']:6}  "
        f"{used:5.1%} of a CPU  {took:6.1f} s  p50 {found['p50_ms']:6.0f} ms  p99 {found['p99_ms']:6.0f} ms",
        flush=True,
    )
    return warm["errors"] == 0 and found["errors"] == 0 and found["calls"] >= calls // CALLERS * CALLERS


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    answered = True
    for busy_after in TURNS:
        if options.control:
            await measure("every late call counts", EVERY_LATE_CALL, busy_after, options.calls, options.share)
        answered &= await measure("now", ("-m", "taskgate"), busy_after, options.calls, options.share)
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
