"""Ten thousand tasks that run at once on one server, and what another caller of the same server notices.

Run it by hand: `python -m tests.benchmarks.running_tasks [--tasks 10000] [--without-tasks]`. The server makes tasks of its
own (2026), or with `--without-tasks` simply does not answer. The gateway is a process of its own; callers and server run here.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import statistics
import time
from typing import Any

import uvloop
from tests.benchmarks.measure import resident_kb
from tests.benchmarks.one_reply_server import Connection, NoReply, Result
from tests.benchmarks.tasks import LIMITS, Line, Lines
from tests.harness.gateway import running_gateway

CALLERS = 50
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "sleep")]
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


class Server:
    """Echoes at once, and sleeps until it is woken."""

    def __init__(self, makes_tasks: bool) -> None:
        self.makes_tasks = makes_tasks
        self.sent = 0
        self.polls = 0
        self.awake = False
        self.connections = 0
        self._numbers = itertools.count(1)

    def connection(self) -> Connection:
        server = self

        class Counted(Connection):
            def connection_made(self, transport: Any) -> None:
                server.connections += 1
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                server.connections -= 1

        return Counted(self.answer)

    def answer(self, message: dict[str, Any]) -> Result:
        method, params = message["method"], message.get("params") or {}
        if method == "server/discover":
            extensions: dict[str, Any] = {TASKS_EXTENSION: {}} if self.makes_tasks else {}
            capabilities = {"tools": {}, "extensions": extensions}
            return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        if method == "tools/list":
            return {"resultType": "complete", "tools": TOOLS, "ttlMs": 60_000, "cacheScope": "public"}
        if method == "tools/call" and params["name"] == "echo":
            return {"resultType": "complete", "content": [{"type": "text", "text": "echo"}]}
        if method == "tools/call":
            self.sent += 1
            if not self.makes_tasks:
                raise NoReply
            return {"resultType": "task", **self._task(f"t{next(self._numbers)}")}
        if method == "tasks/get":
            self.polls += 1
            return {"resultType": "complete", **self._task(params["taskId"])}
        return None

    def _task(self, task_id: str) -> dict[str, Any]:
        now = "2026-01-01T00:00:00Z"
        shown = {"taskId": task_id, "createdAt": now, "lastUpdatedAt": now, "ttlMs": None, "pollIntervalMs": 1000}
        if self.awake:
            done = {"resultType": "complete", "content": [{"type": "text", "text": "rested"}]}
            return {**shown, "status": "completed", "result": done}
        return {**shown, "status": "working"}


async def neighbour(port: int, seconds: float) -> str:
    """The latency of a new caller that makes plain calls to the same server, one after the other."""
    line = await Line(port).open()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await line.ask("tools/call", {"name": "work__echo", "arguments": {}})
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.005)
    cuts = statistics.quantiles(times, n=100)
    return f"{len(times)} plain calls: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, longest {max(times):.1f} ms"


async def patiently(lines: Lines, call: dict[str, Any]) -> dict[str, Any]:
    """An overloaded gateway returns a time after which to retry."""
    while True:
        try:
            return await lines.ask("tools/call", call)
        except RuntimeError as refused:
            if "overloaded" not in str(refused):
                raise
            await asyncio.sleep(1)


async def states(lines: Lines, made: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}

    async def look(task_id: str) -> None:
        status = (await lines.ask("tasks/get", {"taskId": task_id}))["status"]
        found[status] = found.get(status, 0) + 1

    for begin in range(0, len(made), 500):
        await asyncio.gather(*(look(task_id) for task_id in made[begin : begin + 500]))
    return found


async def run(count: int, makes_tasks: bool) -> None:
    server = Server(makes_tasks)
    listening = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    config = {"servers": {"work": {"url": f"http://127.0.0.1:{port}/mcp"}}, "limits": LIMITS}
    async with running_gateway(config) as gateway:
        callers = [await Line(gateway.port).open() for _ in range(CALLERS)]
        lines = Lines(callers)
        print("before:", await neighbour(gateway.port, 3))
        call = {"name": "work__sleep", "arguments": {}, "task": {"ttl": 3_600_000}}
        began = time.perf_counter()
        replies = await asyncio.gather(*(patiently(lines, call) for _ in range(count)))
        made = [(reply.get("task") or reply)["taskId"] for reply in replies]
        print(f"{count:,} tasks accepted in {time.perf_counter() - began:.1f} s")
        print("while they run:", await neighbour(gateway.port, 10))
        print(f"sent {server.sent:,}, connections to the server {server.connections}, polls {server.polls:,}")
        print(f"states: {await states(lines, made)}; gateway {resident_kb(gateway.pid) >> 10} MB")
        if not makes_tasks:
            print("the last one says:", (await lines.ask("tasks/get", {"taskId": made[-1]})).get("statusMessage"))
            return
        server.awake, began = True, time.perf_counter()
        found: dict[str, int] = {}
        while found != {"completed": count} and time.perf_counter() - began < 180:
            await asyncio.sleep(5)
            found = await states(lines, made)
        print(f"woken: {found} after {time.perf_counter() - began:.0f} s")
    listening.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--without-tasks", action="store_true")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    uvloop.run(run(given.tasks, not given.without_tasks))
