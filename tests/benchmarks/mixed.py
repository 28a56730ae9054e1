"""A whole gateway under mixed load: tasks created and polled, completions, lists and plain calls, with thousands of tasks open.

Run it by hand: `python -m tests.benchmarks.mixed [--tasks 10000] [--seconds 10]`. It prints one line per target: task create
p99 <= 10 ms, task get p99 <= 50 ms, completion p99 <= 100 ms at 1,000 requests a second, and what happens at four times that
load. The controls are a bare SQLite file on the same disk, and callers at the same pace with a server that does nothing.
With `--overload` it sends four times what the gateway can process and counts answered, refused and late requests. The callers
run in this process, the gateway and its server in others, all on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from tests.benchmarks.measure import processor_seconds
from tests.benchmarks.one_reply_server import compact
from tests.benchmarks.store import HostWatch, control_inserts, load
from tests.benchmarks.tasks import control_calls
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running

RATE = 1_000
OVERLOAD = 4 * RATE
LINES = 64
SCHEMA_WORDS = 2_000
QUICK, WORDS, WAITING = "busy__quick", "busy__words", "line__wait_in_line"
LIMITS = {"open_tasks_per_caller": 1_000_000, "pending_approvals_per_caller": 1_000_000, "queue_per_server": 1_000_000}
TARGETS = {"create": 10.0, "get": 50.0, "complete": 100.0}


class Line:
    """One keep-alive connection in one session."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.session = ""
        self.number = 0
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self, session: str = "") -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=64 * 1024 * 1024)
        self.session = session
        if not session:
            await self.ask(
                "initialize",
                {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tasks": {}},
                    "clientInfo": {"name": "b", "version": "1"},
                },
            )

    async def ask(self, method: str, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.number += 1
        number = f"{id(self)}-{self.number}"
        body = compact({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"
            f"Content-Length: {len(body)}\r\n"
        )
        if self.session:
            head += f"Mcp-Session-Id: {self.session}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)
        return await self._reply()

    async def _reply(self) -> tuple[int, dict[str, Any]]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
        if b"mcp-session-id" in fields:
            at = head.lower().index(b"mcp-session-id: ") + 16
            self.session = head[at : head.index(b"\r\n", at)].decode()
        if b"content-length" in fields:
            body = await self.reader.readexactly(int(fields[b"content-length"]))
        else:
            body = await self._chunks()
        if fields.get(b"content-type", b"").startswith(b"text/event-stream"):
            data = [line[5:] for line in body.split(b"\n") if line.startswith(b"data:") and line[5:].strip()]
            body = data[-1]
        return status, json.loads(body) if body else {}

    async def _chunks(self) -> bytes:
        found = b""
        while True:
            size = int(await self.reader.readline(), 16)
            found += await self.reader.readexactly(size)
            await self.reader.readline()
            if size == 0:
                return found


class Mix:
    """The requests of each caller, and how long they took."""

    def __init__(self, lines: list[Line], tasks: list[tuple[Line, str]]) -> None:
        self.lines = lines
        self.tasks: dict[Line, deque[tuple[float, str]]] = {}
        for line, task in tasks:
            self.tasks.setdefault(line, deque()).append((0.0, task))
        self.took: dict[str, list[tuple[float, float]]] = {}
        """When each was due, and how long it took."""
        self.host = HostWatch()
        self.outcomes: Counter[str] = Counter()

    def again(self) -> Mix:
        """The same callers, which keep the times of their next polls; the counts begin at zero."""
        fresh = Mix(self.lines, [])
        fresh.tasks = self.tasks
        return fresh

    def another(self, line: Line) -> str | None:
        """Each task in its turn, and as seldom as the gateway requested: it delays polls that come too early."""
        own = self.tasks[line]
        if own[0][0] > time.perf_counter():
            return None
        return own.popleft()[1]

    def next(self, line: Line) -> tuple[str, str, dict[str, Any]]:
        dice = random.random()
        if dice < 0.10:
            return "create", "tools/call", {"name": WAITING, "arguments": {}, "task": {"ttl": 3_600_000}}
        task = self.another(line) if dice < 0.40 else None
        if task is not None:
            return "get", "tasks/get", {"taskId": task}
        if 0.40 <= dice < 0.60:
            typed = f"word{random.randrange(SCHEMA_WORDS)}"[: random.randrange(1, 8)]
            ref = {"type": "ref/tool", "name": WORDS}
            return "complete", "completion/complete", {"ref": ref, "argument": {"name": "word", "value": typed}}
        if 0.60 <= dice < 0.61:
            return "list", "tools/list", {}
        return "call", "tools/call", {"name": QUICK, "arguments": {"n": 1}}

    async def one(self, line: Line, due: float) -> None:
        kind, method, params = self.next(line)
        status, answer = await line.ask(method, params)
        self.took.setdefault(kind, []).append((due, time.perf_counter() - due))
        if kind == "get" and "result" in answer:
            soonest = time.perf_counter() + answer["result"].get("pollInterval", 0) / 1000
            self.tasks[line].append((soonest, params["taskId"]))
        error = answer.get("error")
        self.outcomes["ok" if error is None else f"{error['data']['error_type']} {status}"] += 1

    async def run(self, rate: float, seconds: float) -> float:
        """Send at a fixed rate, independent of the answers; each request is timed from when it was due."""
        total = int(rate * seconds)
        taken = iter(range(total))

        async def work(line: Line) -> None:
            for number in taken:
                due = start + number / rate
                wait = due - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                await self.one(line, due)

        async with self.host:
            start = time.perf_counter()
            await asyncio.gather(*(work(line) for line in self.lines))
            return total / (time.perf_counter() - start)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def fill(lines: list[Line], wanted: int) -> list[tuple[Line, str]]:
    made: list[tuple[Line, str]] = []
    taken = iter(range(wanted))

    async def work(line: Line) -> None:
        for _ in taken:
            _, answer = await line.ask("tools/call", {"name": WAITING, "arguments": {}, "task": {"ttl": 3_600_000}})
            made.append((line, answer["result"]["taskId"]))

    await asyncio.gather(*(work(line) for line in lines))
    return made


def report(name: str, mix: Mix, reached: float) -> None:
    print(f"{name}: {reached:.0f} requests/s answered, {dict(mix.outcomes)}")
    report_kinds(mix, lambda _due: True)
    if mix.host.taken_s:
        print(f"  of these, while the host of this machine took none of {mix.host.taken_s:.2f} s of its cores:")
        report_kinds(mix, mix.host.was_quiet)


def report_kinds(mix: Mix, counts: Callable[[float], bool]) -> None:
    for kind, all_of_them in sorted(mix.took.items()):
        took = [each for due, each in all_of_them if counts(due)]
        if not took:
            continue
        p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
        target = TARGETS.get(kind)
        verdict = "" if target is None else f"  (target {target:g} ms: {'met' if p99 <= target else 'MISSED'})"
        print(f"  {kind:9} n={len(took):6} p50={p50:7.2f} ms p99={p99:7.2f} ms{verdict}")


def settings(port: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": {
            "busy": {"url": f"http://127.0.0.1:{port}/mcp", "instances": "shared"},
            "line": {
                "url": f"http://127.0.0.1:{port}/mcp",
                "instances": "shared",
                "budgets": {"max_concurrency": 1},
                "allowed_tools": ["wait_in_line"],
            },
        },
        "limits": LIMITS,
        "scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}},
    }


async def measure_gateway(gateway: Gateway, tasks: int, seconds: float) -> None:
    print(load())
    with tempfile.TemporaryDirectory() as folder:
        control_inserts(Path(folder))
    await control_calls(RATE, 4)
    first = Line(gateway.port)
    await first.open()
    lines = [first]
    for _ in range(LINES - 1):
        line = Line(gateway.port)
        await line.open()
        lines.append(line)
    started = time.perf_counter()
    made = await fill(lines, tasks)
    spent = time.perf_counter() - started
    print(f"{tasks} open tasks made in {spent:.1f} s ({tasks / spent:.0f}/s)")
    mix = Mix(lines, made)
    for name, rate in (("at the target load", RATE), ("at four times that load", OVERLOAD)):
        mix, before = mix.again(), processor_seconds(gateway.pid)
        reached = await mix.run(rate, seconds)
        report(f"{name} ({rate}/s offered, {load()})", mix, reached)
        spent = (processor_seconds(gateway.pid) - before) / sum(mix.outcomes.values())
        print(
            f"  the gateway spent {spent * 1000:.2f} ms of processor time on a request: {1 / spent:.0f}/s on one core"
        )
    mix = mix.again()
    report("afterwards", mix, await mix.run(RATE / 2, 3))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overload", action="store_true", help="four times what it can do, arriving by the clock")
    given = parser.parse_args()
    port = free_port()
    server = [sys.executable, "-m", "tests.benchmarks.mixed_server", str(port)]
    async with running(server, listening(port)), running_gateway(settings(port)) as gateway:
        if given.overload:
            from tests.benchmarks.overload import measure_overload

            await measure_overload(gateway, given.tasks, given.seconds)
        else:
            await measure_gateway(gateway, given.tasks, given.seconds)


if __name__ == "__main__":
    uvloop.run(main())
