"""What a call in a session of MCP 2025 costs with `--workers 2`, beside one process on the same kind of store.

Run it by hand: `python -m tests.benchmarks.workers`. Each session is opened on one connection and used on another, as HTTP clients
with a pool do. CPU of all gateway processes per call, all threads, by the scheduler's count. Three gateways in turns, in one run:

- one process (the control);
- two workers, whose connections move to the worker that holds the session;
- two workers that take every connection for one of a trusted proxy, so that half of the calls are forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.targets import echo_server
from tests.harness.gateway import Gateway
from tests.harness.postgres import fresh_url
from tests.harness.programs import free_port, start, until_ready

SESSIONS = 16
CALLS = 2_000
ROUNDS = 5
VERSION = "2025-11-25"


@dataclass(frozen=True)
class Served:
    name: str
    port: int
    pids: list[int]

    def cpu_s(self) -> float:
        total = 0
        for pid in self.pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9


@asynccontextmanager
async def served(name: str, folder: Path, upstream: str, workers: int, **listen: Any) -> AsyncIterator[Served]:
    gateway = Gateway(folder, free_port())
    gateway.state.mkdir(parents=True)
    config: dict[str, Any] = {"schema": 1, "servers": {"up": {"url": upstream}}, "store": {"url": fresh_url()}}
    gateway.write({**config, "telemetry": {"log_level": "warning"}, "listen": listen})
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "taskgate",
        "serve",
        "-c",
        gateway.config,
        "--port",
        str(gateway.port),
    ]
    program = await start([*words, "--workers", str(workers)], {"TASKGATE_STATE_DIR": str(gateway.state)})
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    try:
        await until_ready(program, gateway.is_ready)
        await gateway.until_listed()
        pids = [program.pid] if workers == 1 else [int(word) for word in children.read_text().split()]
        yield Served(name, gateway.port, pids)
    finally:
        await program.end()


class Line:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def post(self, message: dict[str, Any], headers: str = "") -> tuple[bytes, bytes]:
        body = json.dumps(message).encode()
        common = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n{common}{headers}content-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        return answer, await self.reader.readexactly(int(_header(answer, b"content-length") or 0))


def _header(head: bytes, name: bytes) -> bytes:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((value.strip() for found, _, value in lines if found.lower() == name), b"")


async def session(port: int, stack: AsyncExitStack) -> tuple[Line, str]:
    """The connection that its calls will go over, and their headers; it was opened on another one, which stays open."""
    lines = [Line(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
    for line in lines:
        stack.callback(line.writer.close)
    params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    head, _ = await lines[0].post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    headers = f"mcp-session-id: {_header(head, b'mcp-session-id').decode()}\r\nmcp-protocol-version: {VERSION}\r\n"
    await lines[0].post({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    return lines[1], headers


async def one_round(target: Served) -> float:
    """Microseconds of CPU per call."""
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        sessions = await asyncio.gather(*(session(target.port, stack) for _ in range(SESSIONS)))

        async def call(line: Line, headers: str) -> None:
            params = {"name": "up__echo", "arguments": {"text": f"t{next(numbers)}"}}
            _, body = await line.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers)
            assert b'"result"' in body, body

        async def caller(line: Line, headers: str) -> None:
            while next(turns, None) is not None:
                await call(line, headers)

        await asyncio.gather(*(call(*one) for one in sessions))
        turns = iter(range(CALLS))
        before = target.cpu_s()
        await asyncio.gather(*(caller(*one) for one in sessions))
        return (target.cpu_s() - before) / CALLS * 1e6


async def main() -> None:
    pgo = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    print(
        f"Python {sys.version.split()[0]} ({'with' if pgo else 'without'} PGO), load average {os.getloadavg()[0]:.1f}"
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        upstream = await stack.enter_async_context(echo_server())
        kinds: list[tuple[str, int, dict[str, Any]]] = [
            ("one process (control)", 1, {}),
            ("two workers, connections move", 2, {}),
            ("two workers, requests forwarded", 2, {"trusted_proxies": ["127.0.0.1"]}),
        ]
        targets = [
            await stack.enter_async_context(served(name, folder / str(number), upstream, workers, **listen))
            for number, (name, workers, listen) in enumerate(kinds)
        ]
        found: dict[str, list[float]] = {target.name: [] for target in targets}
        for _ in range(ROUNDS):
            for target in targets:
                found[target.name].append(await one_round(target))
    control = statistics.median(found[kinds[0][0]])
    for name, costs in found.items():
        middle = statistics.median(costs)
        print(
            f"{name:34} {middle:5.0f} us a call ({min(costs):.0f} to {max(costs):.0f}), {middle / control:.2f} times the control"
        )


if __name__ == "__main__":
    asyncio.run(main())
