"""Durable tasks through a whole gateway, beside what the disk itself can do.

`python -m tests.benchmarks.tasks [--tasks 10000]` (`make bench-tasks` runs the mixed load, too). It fills a gateway with tasks
that are queued, prints one line per target, kills the gateway and prints how soon the next one serves every task. The
callers run in this process, the gateway and its upstream in others, all on the same cores. The controls are what the disk and a
bare SQLite file do on the same disk in the same run (no create can be acknowledged sooner than its sync), and the same callers at
the same pace with a server that does nothing (no answer can come sooner than these cores let a process run).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop
from tests.benchmarks.measure import processor_seconds, resident_kb
from tests.benchmarks.one_reply_server import compact
from tests.benchmarks.store import HostWatch, control, control_inserts, load, measure, report
from tests.chaos.crash_setup import Setup, configuration, running_setup
from tests.harness.programs import free_port, listening, running

CONCURRENT = 64
STEADY_PER_S = (400, 1_000)
LIMITS = {"open_tasks_per_caller": 1_000_000, "pending_approvals_per_caller": 1_000_000, "queue_per_server": 1_000_000}


def in_line(port: int) -> dict[str, Any]:
    """A server that takes one call at a time: every task but the first stays open, with nothing sent."""
    server = configuration(port)["servers"]["books"]
    return {"servers": {"books": {**server, "budgets": {"max_concurrency": 1}}}, "limits": LIMITS}


class Overloaded(Exception):
    """The gateway refused a call at once because it is overloaded; no task was created."""


class Line:
    """One keep-alive connection in one session; as little as possible between the measurement and the gateway."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session = b""
        self._numbers = iter(range(1, 1 << 62))

    async def open(self) -> Line:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {}}, "clientInfo": info}
        await self.ask("initialize", params)
        return self

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        body = compact(message)
        self._writer.write(
            b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n%b"
            b"content-length: %d\r\n\r\n%b" % (self._port, self._session, len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        length = int(fields[b"content-length"])
        if b"mcp-session-id" in fields:
            self._session = b"mcp-session-id: %b\r\n" % fields[b"mcp-session-id"]
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        if "error" in answer:
            kind = Overloaded if answer["error"]["data"]["error_type"] == "overloaded" else RuntimeError
            raise kind(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        self._writer.close()


class Lines:
    """So many callers at once, each over its own connection."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._free: asyncio.Queue[Line] = asyncio.Queue()
        for line in lines:
            self._free.put_nowait(line)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        line = await self._free.get()
        try:
            return await line.ask(method, params)
        finally:
            self._free.put_nowait(line)


async def steadily(
    what: str, target: str, per_second: int, seconds: float, one: Callable[[int], Awaitable[None]]
) -> None:
    """Begin calls at this rate, whether or not earlier ones have ended; measures the latency without overload.

    Each counts from when it was due: that it was begun late, or waited for a connection, is part of what it took.
    """
    took: list[tuple[float, float]] = []

    async def timed(number: int, due: float) -> None:
        await one(number)
        took.append((due, time.perf_counter() - due))

    async with HostWatch() as host:
        started, begun = time.perf_counter(), []
        for number in range(int(per_second * seconds)):
            due = started + number / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            begun.append(asyncio.create_task(timed(number, due)))
        await asyncio.gather(*begun)
        elapsed = time.perf_counter() - started
    report(f"{what}, {per_second}/s", [each for _, each in took], elapsed, target)
    quiet = [each for due, each in took if host.was_quiet(due)]
    if len(took) > len(quiet) > 100:
        kept = elapsed * len(quiet) / len(took)
        report(f"  while the host took none of {host.taken_s:.2f} s", quiet, kept, target)


async def control_calls(per_second: int, seconds: float) -> None:
    """The same callers at the same pace with a server that does nothing: what is theirs, the cores' and the network's."""
    port = free_port()
    async with running([sys.executable, "-m", "tests.benchmarks.quick_server", str(port)], listening(port)):
        lines = [await Line(port).open() for _ in range(CONCURRENT)]
        pool, call = Lines(lines), {"name": "work", "arguments": {"note": "x" * 400}}

        async def ask(_number: int) -> None:
            await pool.ask("tools/call", call)

        await steadily("control: idle server", "-", per_second, seconds, ask)
        for line in lines:
            line.close()


async def run(setup: Setup, count: int) -> None:
    lines = [await Line(setup.gateway.port).open() for _ in range(CONCURRENT)]
    pool, made, refused = Lines(lines), list[str](), 0
    call = {
        "name": "books__once",
        "arguments": {"call": "bench", "seconds": 600, "note": "x" * 400},
        "task": {"ttl": 3_600_000},
    }

    async def create(_number: int) -> None:
        nonlocal refused
        try:
            made.append((await pool.ask("tools/call", call))["taskId"])
        except Overloaded:
            refused += 1

    async def get(number: int) -> None:
        await pool.ask("tasks/get", {"taskId": made[number]})

    async def page(_number: int) -> None:
        assert len((await lines[0].ask("tasks/list", {}))["tasks"]) == 50

    await measure(200, CONCURRENT, create)
    spent = processor_seconds(setup.gateway.pid)
    report("creates, 64 at once, flat out", *await measure(count, CONCURRENT, create), ">= 1,000/s")
    created = processor_seconds(setup.gateway.pid) - spent
    for per_second in STEADY_PER_S:
        await steadily("creates", "p99 <= 10 ms", per_second, 6, create)
    print(f"{refused} creates were refused as too many; {load()}")
    spent = processor_seconds(setup.gateway.pid)
    report("tasks/get, 16 at once, flat out", *await measure(count, 16, get), ">= 3,000/s")
    got = processor_seconds(setup.gateway.pid) - spent
    print(f"processor time of the gateway: {created / count * 1000:.2f} ms a create, {got / count * 1000:.2f} ms a get")
    rest = len(made) - count
    assert rest > 0
    await steadily("tasks/get", "p99 <= 5 ms", 500, min(4.0, rest / 500), lambda n: get(count + n))
    report("tasks/list, a page of 50", *await measure(300, 1, page), "p99 <= 20 ms")
    print(f"{len(made):,} open tasks, gateway {resident_kb(setup.gateway.pid) >> 10} MB (target: <= 300 MB)")
    for line in lines:
        line.close()
    await after_a_kill(setup, made)


async def after_a_kill(setup: Setup, made: list[str]) -> None:
    """From the end of one process to the moment at which the next one answers for every task."""
    await setup.gateway.kill()
    started = time.perf_counter()
    await setup.gateway.start_again()
    ready = time.perf_counter() - started
    line = await Line(setup.gateway.port).open()
    for task_id in (made[0], made[-1], made[len(made) // 2]):
        await line.ask("tasks/get", {"taskId": task_id})
    recovered = next(line for line in reversed(setup.gateway.log.splitlines()) if "tasks recovered" in line)
    print(f"restart: serving {ready:.2f} s after the start of the process; {recovered}")
    print(f"after the restart: gateway {resident_kb(setup.gateway.pid) >> 10} MB")
    line.close()


async def main(count: int) -> None:
    print(f"Python {platform.python_version()}, {load()}")
    with tempfile.TemporaryDirectory() as folder:
        control(Path(folder))
        control_inserts(Path(folder))
        await control_calls(max(STEADY_PER_S), 4)
        async with running_setup(Path(folder), more=in_line) as setup:
            await run(setup, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    uvloop.run(main(parser.parse_args().tasks))
