"""Memory, open files and disk of a gateway under an hour of mixed load, sampled every minute: `make soak`.

python -m tests.benchmarks.soak [--minutes 60] [--quiet 5] [--rate 50]

Plain calls, large results, durable tasks, lists, and sessions that open and end, at a fixed rate, in both generations. After the
load the gateway is left alone for some minutes. The control is the same gateway before the load: the run fails if the memory at
the end is over 1.5 times the idle value, if open files remain, or if a request failed. Disk grows with the audit log and the
history, which are kept for days; it is printed per request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvloop
from tests.benchmarks.measure import processor_seconds, resident_kb
from tests.benchmarks.start import python_build
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port, listening, running

CALLERS = 8
SAMPLE_S = 60.0
TASK_TTL_MS = 60_000
MAX_GROWTH = 1.5
STRAY_FILES = 8
"""Connections that a pool or the database may keep open for later use."""
SESSION_REQUESTS = 200
"""Requests after which a caller ends its session and opens another."""


class Sample(NamedTuple):
    minute: float
    requests: int
    memory_kb: int
    files: int
    disk_bytes: int
    cpu_s: float


@dataclass
class Caller:
    """One client of one generation. Those of 2025-11-25 open a new session now and then."""

    url: str
    stateless: bool
    http: httpx2.AsyncClient
    outcomes: Counter[str]
    session: str = ""
    sent: int = 0
    tasks: list[str] = field(default_factory=list)

    async def step(self) -> None:
        if not self.stateless and self.sent % SESSION_REQUESTS == 0:
            await self._new_session()
        self.sent += 1
        kind, method, params = self._next()
        answer = await self._ask(method, params)
        error = answer.get("error")
        self.outcomes[kind if error is None else f"failed {kind}: {error['data'].get('error_type')}"] += 1
        result = answer.get("result", {})
        task = result.get("task", result)
        if kind == "task" and "taskId" in task:
            self.tasks = [*self.tasks[-20:], task["taskId"]]

    def _next(self) -> tuple[str, str, dict[str, Any]]:
        dice = random.random()
        if dice < 0.20:
            quick = {"name": "far__quick", "arguments": {"note": "x" * 400}}
            if self.stateless:
                return "call", "tools/call", quick
            return "task", "tools/call", {**quick, "task": {"ttl": TASK_TTL_MS}}
        if dice < 0.30 and self.tasks and not self.stateless:
            return "get", "tasks/get", {"taskId": self.tasks[-1]}
        if dice < 0.35:
            return "list", "tools/list", {}
        size = 65_536 if dice < 0.40 else 100
        return "call", "tools/call", {"name": "far__repeat", "arguments": {"note": "y" * size}}

    async def _new_session(self) -> None:
        if self.session:
            await self.http.delete(self.url, headers=self._headers("", {}))
        self.session = ""
        info = {"name": "soak", "version": "1"}
        capabilities: dict[str, Any] = {"tasks": {}}
        await self._ask(
            "initialize", {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        )

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.stateless:
            params = {**params, "_meta": _META}
        body = {"jsonrpc": "2.0", "id": self.sent, "method": method, "params": params}
        reply = await self.http.post(self.url, json=body, headers=self._headers(method, params))
        self.session = reply.headers.get("mcp-session-id", self.session)
        text = reply.text
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()][-1]
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream"}
        headers["mcp-protocol-version"] = "2026-07-28" if self.stateless else "2025-11-25"
        if self.session:
            headers["mcp-session-id"] = self.session
        if self.stateless:
            headers["mcp-method"] = method
            if "name" in params:
                headers["mcp-name"] = params["name"]
        return headers


_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def load(callers: list[Caller], rate: float, seconds: float) -> None:
    """Send at a fixed rate. A caller that is answered late sends its next request late; nothing piles up."""
    taken = iter(range(int(rate * seconds)))
    start = time.perf_counter()

    async def work(caller: Caller) -> None:
        for number in taken:
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            await caller.step()

    await asyncio.gather(*map(work, callers))


def sample(gateway: Gateway, began: float, callers: list[Caller]) -> Sample:
    size = sum(path.stat().st_size for path in gateway.state.rglob("*") if path.is_file())
    return Sample(
        (time.perf_counter() - began) / 60,
        sum(caller.sent for caller in callers),
        resident_kb(gateway.pid),
        len(os.listdir(f"/proc/{gateway.pid}/fd")),
        size,
        processor_seconds(gateway.pid),
    )


def show(one: Sample) -> None:
    print(
        f"{one.minute:6.1f} min {one.requests:>9,} requests {one.memory_kb / 1024:>7.1f} MB {one.files:>4} files"
        f" {one.disk_bytes / 1e6:>8.1f} MB on disk {one.cpu_s:>7.1f} s of CPU",
        flush=True,
    )


async def soak(folder: Path, minutes: float, quiet: float, rate: float) -> bool:
    port = free_port()
    async with running([sys.executable, "-m", "tests.benchmarks.soak_server", str(port)], listening(port)):
        gateway = Gateway(folder, free_port())
        gateway.state.mkdir(parents=True)
        gateway.write(
            {"servers": {"far": {"url": f"http://127.0.0.1:{port}/mcp"}}, "tasks": {"keep_result_ms": TASK_TTL_MS}}
        )
        await gateway.start()
        try:
            return await _measured(gateway, minutes, quiet, rate)
        finally:
            await gateway.stop()


async def _measured(gateway: Gateway, minutes: float, quiet: float, rate: float) -> bool:
    url, outcomes = f"http://127.0.0.1:{gateway.port}/mcp", Counter[str]()
    began = time.perf_counter()
    async with httpx2.AsyncClient(timeout=120) as http:
        callers = [Caller(url, number % 2 == 1, http, outcomes) for number in range(CALLERS)]
        await load(callers, 20, 2)
        await asyncio.sleep(2)
        idle = sample(gateway, began, callers)
        show(idle)
        working = asyncio.create_task(load(callers, rate, minutes * 60))
        while not working.done():
            await asyncio.wait({working}, timeout=SAMPLE_S)
            show(busy := sample(gateway, began, callers))
        await working
        for caller in callers:
            if caller.session:
                await http.delete(url, headers=caller._headers("", {}))
    await asyncio.sleep(quiet * 60)
    end = sample(gateway, began, callers)
    show(end)
    return _limits_kept(idle, busy, end, outcomes)


def _limits_kept(idle: Sample, busy: Sample, end: Sample, outcomes: Counter[str]) -> bool:
    requests = busy.requests - idle.requests
    growth = end.memory_kb / idle.memory_kb
    failed = {kind: count for kind, count in outcomes.items() if kind.startswith("failed")}
    print(f"requests: {dict(outcomes)}")
    print(
        f"memory after the quiet minutes: {growth:.2f} times idle (limit {MAX_GROWTH}); files {idle.files} -> {end.files}"
    )
    print(f"disk per request: {(busy.disk_bytes - idle.disk_bytes) / requests:.0f} bytes; failed: {failed or 'none'}")
    return growth <= MAX_GROWTH and end.files <= idle.files + STRAY_FILES and not failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--quiet", type=float, default=5)
    parser.add_argument("--rate", type=float, default=50)
    options = parser.parse_args()
    print(f"{python_build()}; {options.rate:.0f} requests/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        met = uvloop.run(soak(Path(folder) / "soak", options.minutes, options.quiet, options.rate))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
