"""What it costs that another gateway holds the session: three gateways on one PostgreSQL store, in one run.

Run it by hand: `python -m tests.benchmarks.forwarding`. The same `ping` of one session goes, in turns, to its home (the control)
and to a gateway that forwards it: the difference of the medians is the hop. Then plain calls per second of processor time: all to
one gateway, and in turns to three, stateless and in a session. The upstream's and the client's own time is not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.harness.gateway import Gateway
from tests.harness.raw_client import META, STATELESS, RawClient
from tests.replicas.three import Replicas, three_replicas

PINGS = 1_500
CALLS = 1_200
TICKS = os.sysconf("SC_CLK_TCK")


class Line:
    """One keep-alive connection, with as little of a client as may be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> None:
        self._reader = reader
        self._writer = writer
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    async def post(self, message: dict[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n{self._head}\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        return await self._reader.readexactly(length)


async def line_to(gateway: Gateway, headers: dict[str, str]) -> Line:
    common = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return Line(*await asyncio.open_connection("127.0.0.1", gateway.port), {**common, **headers})


def cpu_s(gateways: list[Gateway]) -> float:
    """Processor time of these processes so far."""
    total = 0.0
    for gateway in gateways:
        fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


async def hop(replicas: Replicas) -> None:
    async with RawClient(replicas.gateways[0].url) as client:
        lines = [await line_to(gateway, client.headers) for gateway in replicas.gateways[:2]]
        times: list[list[float]] = [[], []]
        for number in range(PINGS + 200):
            for which, line in enumerate(lines):
                at = time.perf_counter()
                await line.post({"jsonrpc": "2.0", "id": number, "method": "ping"})
                if number >= 200:
                    times[which].append((time.perf_counter() - at) * 1000)
    at_home, forwarded = map(statistics.median, times)
    print(
        f"ping at the home {at_home:.3f} ms, forwarded {forwarded:.3f} ms, p50: {forwarded - at_home:+.3f} ms (<= 0.4)"
    )


async def per_cpu_second(
    replicas: Replicas, what: str, count: int, headers: dict[str, str], message: dict[str, Any]
) -> None:
    lines = [await line_to(gateway, headers) for gateway in replicas.gateways[:count]]
    for line in lines * 20:
        await line.post(message)
    before = cpu_s(replicas.gateways)
    for number in range(CALLS):
        await lines[number % len(lines)].post(message)
    spent = cpu_s(replicas.gateways) - before
    print(f"{what}: {CALLS / spent:,.0f} calls per second of processor time ({spent / CALLS * 1000:.3f} ms a call)")


async def throughput(replicas: Replicas) -> None:
    idle = cpu_s(replicas.gateways)
    await asyncio.sleep(5)
    idle = (cpu_s(replicas.gateways) - idle) / 5
    print(f"(three idle gateways with their leases: {idle * 1000:.1f} ms of processor time a second, contained below)")
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/list"}
    meta = {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    await per_cpu_second(replicas, "2026 tools/list, one gateway", 1, headers, listing)
    await per_cpu_second(replicas, "2026 tools/list, three in turns", 3, headers, listing)
    call = {"name": "books__read", "arguments": {"call": "c"}, "_meta": meta}
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "books__read"}
    calls = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    await per_cpu_second(replicas, "2026 tools/call, one gateway", 1, headers, calls)
    await per_cpu_second(replicas, "2026 tools/call, three in turns", 3, headers, calls)
    async with RawClient(replicas.gateways[0].url) as client:
        plain = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**call, "_meta": {}}}
        await per_cpu_second(replicas, "2025 tools/call, at the home", 1, client.headers, plain)
        await per_cpu_second(replicas, "2025 tools/call, three in turns", 3, client.headers, plain)


async def main() -> None:
    slowly = {"grace_ms": 60_000, "promote_after_ms": 60_000}
    with tempfile.TemporaryDirectory(prefix="forwarding-") as folder:
        async with three_replicas(Path(folder), tasks=slowly) as replicas:
            print(f"load average {os.getloadavg()[0]:.1f}")
            await hop(replicas)
            await throughput(replicas)


if __name__ == "__main__":
    asyncio.run(main())
