"""What waiting costs: a thousand sessions in `await_activity`, how fast an event reaches one, what they take while nothing happens.

Run with `python -m tests.benchmarks.activity`. A real gateway in another process, bare sockets as callers. Prints each
number beside its target; exits with 1 if one is missed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.one_reply_server import compact
from tests.harness.gateway import running_gateway

from taskgate.core.events import EventKind
from taskgate.gateway.questions.feed import Feed

SESSIONS = 1_000
IDLE_S = 10.0
SETTLE_S = 5.0
TRIGGERS = 500
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
    "tasks": {"promote_after_ms": 600_000},
}


@dataclass(slots=True)
class Wire:
    """One connection of one session."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    session: str = ""

    @classmethod
    async def open(cls, port: int, session: str = "") -> Wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, session)

    def send(self, method: str, params: dict[str, Any], number: int = 1) -> None:
        body = compact({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        head = (
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"
            + (f"Mcp-Session-Id: {self.session}\r\n" if self.session else "")
            + f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)

    async def reply(self) -> dict[str, Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        for line in head.split("\r\n"):
            if line.lower().startswith("mcp-session-id:"):
                self.session = line.split(":", 1)[1].strip()
        size = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        reply: dict[str, Any] = json.loads(await self.reader.readexactly(size)) if size else {}
        return reply

    async def ask(self, method: str, params: dict[str, Any], number: int = 1) -> dict[str, Any]:
        self.send(method, params, number)
        return await self.reply()


async def opened(port: int) -> Wire:
    wire = await Wire.open(port)
    await wire.ask(
        "initialize",
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
    )
    return wire


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waiting() -> dict[str, Any]:
    return {"name": "await_activity", "arguments": {"timeout_ms": 590_000}}


async def measured() -> list[tuple[str, float, float, str]]:
    async with running_gateway(CONFIG) as gateway:
        wires = [await opened(gateway.port) for _ in range(SESSIONS)]
        warm = await opened(gateway.port)
        await warm.ask("tools/call", {"name": "list_tools", "arguments": {}})
        before = resident_kb(gateway.pid)
        for wire in wires:
            wire.send("tools/call", waiting(), 2)
        await warm.ask("tools/call", {"name": "list_servers", "arguments": {}}, 3)
        await asyncio.sleep(SETTLE_S)
        each_kb = (resident_kb(gateway.pid) - before) / SESSIONS
        busy, begun = cpu_s(gateway.pid), time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle = (cpu_s(gateway.pid) - busy) / (time.monotonic() - begun) * 100
        latencies = await wake_latencies(gateway.port, wires)
        for wire in (*wires, warm):
            wire.writer.close()
    latencies.sort()
    return [
        ("event to a waiting await_activity, p99 (ms)", latencies[int(len(latencies) * 0.99) - 1], 20.0, "<="),
        ("  the same, median (ms)", latencies[len(latencies) // 2], 20.0, "<="),
        ("idle CPU with 1,000 waiters (%)", idle, 1.0, "<="),
        ("memory of a waiting session (KB)", each_kb, 20.0, "<="),
    ]


async def wake_latencies(port: int, wires: list[Wire]) -> list[float]:
    """Let a timer fire in one session after the other, and see how long its waiter takes to be answered."""
    found = []
    for wire in wires[:TRIGGERS]:
        beside = await Wire.open(port, wire.session)
        await beside.ask("tools/call", {"name": "set_timer", "arguments": {"duration_ms": 1, "message": "x"}}, 4)
        begun = time.perf_counter()
        reply = await asyncio.wait_for(wire.reply(), 10)
        found.append((time.perf_counter() - begun) * 1000)
        assert "timer_expired" in reply["result"]["content"][0]["text"], reply
        beside.writer.close()
        await asyncio.sleep(0.002)
    return found


class NoStore:
    """Feeds of this measurement are in memory only."""

    def defer(self, operation: object) -> None:
        return None


async def throughput() -> tuple[float, int]:
    """Ten events into each of a thousand feeds at a time, a waiter on each, until twenty thousand are through."""
    feeds = [Feed(f"c{number}", "default", NoStore()) for number in range(SESSIONS)]  # type: ignore[arg-type]
    received = 0

    async def drain(feed: Feed) -> None:
        nonlocal received
        while True:
            if not feed.log.has_new:
                await feed.wait_for_event(feed.log.count, 60)
            batch, events = feed.take()
            feed.handed_over(batch, True)
            received += len(events)

    drains = [asyncio.create_task(drain(feed)) for feed in feeds]
    await asyncio.sleep(0)
    sent, begun, busy = 0, time.perf_counter(), time.process_time()
    while sent < 50_000:
        for feed in feeds:
            feed.add_event(EventKind.NOTIFICATION, "s", {"method": "notifications/x"})
            sent += 1
        await asyncio.sleep(0)
    while received < sent:
        await asyncio.sleep(0.001)
        if time.perf_counter() - begun > 60:
            break
    took = time.process_time() - busy
    for task in drains:
        task.cancel()
    await asyncio.gather(*drains, return_exceptions=True)
    return sent / took, sent - received


async def main() -> int:
    rate, lost = await throughput()
    rows = [
        ("events into 1,000 sessions, one core (1/s)", rate, 10_000.0, ">="),
        ("events lost", float(lost), 0.0, "<="),
    ]
    rows += await measured()
    missed = 0
    for name, value, goal, how in rows:
        good = value <= goal if how == "<=" else value >= goal
        missed += not good
        print(f"{'ok  ' if good else 'MISS'} {name}: {value:,.2f} (asked: {how} {goal:,.0f})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
