"""Single measurements: a round of load against a target, memory and CPU time of a process, the cost of a thousand sessions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

from tests.benchmarks.one_reply_server import compact
from tests.benchmarks.targets import HERE, Target, taskgate

ROUND_DEADLINE = 120.0
SESSION_BATCH = 50


async def one_round(target: Target, upstream: str, generation: str, **options: Any) -> dict[str, Any]:
    """Drive the target once and return what a call cost: time, processor, messages and connections upstream."""
    tool = target.prefix + options.pop("tool", "echo")
    command = [sys.executable, str(HERE / "load.py"), target.url, "--generation", generation, "--tool", tool]
    if target.token:
        command += ["--token", target.token]
    for name, value in options.items():
        command += [f"--{name}"] + ([] if value is True else [str(value)])
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(ROUND_DEADLINE):
        await process.stdout.readline()
        before, spent = await counted(upstream), processor_seconds(target.pid)
        report: dict[str, Any] = json.loads(await process.stdout.readline() or "{}")
        await process.wait()
    after, calls = await counted(upstream), max(report.get("calls", 0), 1)
    if target.pid is not None:
        report["cpu_ms"] = round((processor_seconds(target.pid) - spent) * 1000 / calls, 4)
    report["upstream_messages"] = round((after["messages"] - before["messages"]) / calls, 2)
    report["upstream_connections"] = after["connections"] - before["connections"]
    return report


async def counted(upstream: str) -> dict[str, int]:
    """What the echo server has received so far."""
    address = urllib.parse.urlsplit(upstream)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    counts: dict[str, int] = json.loads(await reader.readexactly(length))
    writer.close()
    return counts


def processor_seconds(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


async def measure_sessions(upstream: str, count: int) -> dict[str, Any]:
    """Open sessions, each with its GET stream, and return what one costs in memory."""
    async with taskgate(upstream) as target:
        assert target.pid is not None
        await open_session(target.url)
        idle = resident_kb(target.pid)
        streams = []
        for start in range(0, count, SESSION_BATCH):
            batch = range(start, min(start + SESSION_BATCH, count))
            streams += await asyncio.gather(*(open_session(target.url) for _ in batch))
        loaded = resident_kb(target.pid)
        for writer in streams:
            writer.close()
    return {
        "sessions": count,
        "idle_rss_mb": round(idle / 1024, 1),
        "kb_per_session": round((loaded - idle) / count, 1),
    }


async def open_session(url: str) -> asyncio.StreamWriter:
    """Initialize, acknowledge, and leave an event stream open."""
    address = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    info = {"name": "sessions", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    writer.write(post(address, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
    head = await read_answer(reader)
    session = head.split(b"mcp-session-id:")[1].split(b"\r\n")[0].strip().decode()
    extra = f"mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n"
    writer.write(post(address, {"jsonrpc": "2.0", "method": "notifications/initialized"}, extra))
    await read_answer(reader)
    stream = f"GET {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\naccept: text/event-stream\r\n{extra}\r\n"
    writer.write(stream.encode())
    await reader.readuntil(b"\r\n\r\n")
    return writer


def post(address: urllib.parse.SplitResult, message: Any, extra: str = "") -> bytes:
    body = compact(message)
    head = (
        f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\n{extra}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length:" in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
    elif b"chunked" in head:
        await reader.readuntil(b"0\r\n\r\n")
    return head


async def start_to_first_answer(upstream: str) -> float:
    """Seconds from starting the process until it has answered one call."""
    started = time.monotonic()
    async with taskgate(upstream) as target:
        (await open_session(target.url)).close()
        return round(time.monotonic() - started, 2)
