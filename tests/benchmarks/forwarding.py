"""What it costs that another gateway holds the session: three gateways on one PostgreSQL store, in one run.

Run it by hand: `python -m tests.benchmarks.forwarding`. The same `ping` of one session goes, in turns, to its home (the control)
and to a gateway that forwards it: the difference of the medians is the hop. Then plain calls per second of processor time: at one
gateway, and at three, stateless and in a session, beside three gateways that share nothing, under several loads. Then the time
from the death of a task's gateway to the take-over. The upstream's and the client's own time is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.chaos.crash_setup import configuration
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.raw_client import META, STATELESS, RawClient
from tests.replicas.three_gateways import Replicas, three_replicas

PINGS = 1_000
CALLS = 600
ROUNDS = 3
KILLS = 6


class Line:
    """One keep-alive connection with a minimal client."""

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

    def close(self) -> None:
        self._writer.close()


async def line_to(gateway: Gateway, headers: dict[str, str]) -> Line:
    common = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return Line(*await asyncio.open_connection("127.0.0.1", gateway.port), {**common, **headers})


def cpu_s(gateways: list[Gateway]) -> float:
    """Processor time of these processes so far, all threads, by the scheduler's own count."""
    total = 0
    for gateway in gateways:
        for thread in Path(f"/proc/{gateway.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


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


@dataclass
class Kind:
    """One kind of call: what it is called, and what is sent."""

    name: str
    headers: dict[str, str]
    message: dict[str, Any]


@dataclass(frozen=True)
class Load:
    """This many callers, in all or at each gateway, as fast as they are answered or at a fixed rate at each gateway."""

    name: str
    callers: int
    at_each: bool = False
    rate: float | None = None

    def spread(self, gateways: list[Gateway]) -> list[Gateway]:
        """The gateway of each caller."""
        if self.callers == 1:
            return gateways
        return gateways * self.callers if self.at_each else list(islice(cycle(gateways), self.callers))


LOADS = (
    Load("1 caller, in turns", 1),
    Load("16 callers in all", 16),
    Load("16 callers at each", 16, at_each=True),
    Load("200 calls/s at each", 4, at_each=True, rate=200),
)
"""How many calls find their gateway awake decides what one costs. The first three loads keep one gateway busy and leave three of
them idle for most of the time, because the caller, the server and all gateways share this machine; under the last one each gateway
has the same to do, however many there are: that is the fair comparison."""


@dataclass(frozen=True)
class Cost:
    """Per call at the gateways: CPU time, and the number of wake-ups of their threads."""

    ms: float
    wakeups: float


def wakeups(gateways: list[Gateway]) -> int:
    total = 0
    for gateway in gateways:
        for thread in Path(f"/proc/{gateway.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                text = (thread / "status").read_text()
                total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


async def cost(gateways: list[Gateway], idle: float, kind: Kind, load: Load) -> Cost:
    """Of one call, without what these gateways use while idle (`idle`, of a second)."""
    lines = [await line_to(gateway, kind.headers) for gateway in load.spread(gateways)]
    calls = CALLS if load.rate is None else CALLS * len(gateways)
    turns = iter(range(calls))

    async def caller(number: int, line: Line) -> None:
        """Paced callers share each second evenly; who is late does not catch up in a burst."""
        pause = 0.0 if load.rate is None else len(lines) / (load.rate * len(gateways))
        await asyncio.sleep(pause * number / len(lines))
        while next(turns, None) is not None:
            due = time.perf_counter() + pause
            await line.post(kind.message)
            if pause:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def in_turns() -> None:
        for number in turns:
            await lines[number % len(lines)].post(kind.message)

    for line in lines * max(1, 40 // len(lines)):
        await line.post(kind.message)
    before, woken, began = cpu_s(gateways), wakeups(gateways), time.perf_counter()
    await (in_turns() if load.callers == 1 else asyncio.gather(*(caller(*one) for one in enumerate(lines))))
    spent = cpu_s(gateways) - before - idle * len(gateways) * (time.perf_counter() - began)
    for line in lines:
        line.close()
    return Cost(spent / calls * 1000, (wakeups(gateways) - woken) / calls)


async def idle_share(gateways: list[Gateway]) -> float:
    """Of one second, for one idle gateway."""
    before, began = cpu_s(gateways), time.perf_counter()
    await asyncio.sleep(5)
    return (cpu_s(gateways) - before) / (time.perf_counter() - began) / len(gateways)


async def compare(kind: Kind, load: Load, sets: dict[str, tuple[list[Gateway], float]]) -> None:
    """Each set of gateways in turn, three times, so that other load of the machine affects all of them equally."""
    found: dict[str, list[Cost]] = {name: [] for name in sets}
    for _ in range(ROUNDS):
        for name, (gateways, idle) in sets.items():
            found[name].append(await cost(gateways, idle, kind, load))
    for name, costs in found.items():
        middle = statistics.median(one.ms for one in costs)
        woken = statistics.median(one.wakeups for one in costs)
        print(
            f"{kind.name:14} {load.name:19}  {name:33} {middle:7.3f} ms a call, {1000 / middle:6,.0f} per CPU second, "
            f"{woken:4.1f} wake-ups a call"
        )


async def throughput(replicas: Replicas, alone: list[Gateway]) -> None:
    """`alone`: gateways with a SQLite store each, which share nothing: the control."""
    idle, idle_alone = await idle_share(replicas.gateways), await idle_share(alone)
    print(f"idle: {idle * 1000:.1f} ms a second with PostgreSQL, {idle_alone * 1000:.1f} with SQLite (taken off below)")
    sets = {
        "one, SQLite": (alone[:1], idle_alone),
        "one, PostgreSQL": (replicas.gateways[:1], idle),
        "three in turns, SQLite (control)": (alone, idle_alone),
        "three in turns, PostgreSQL": (replicas.gateways, idle),
    }
    meta = {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    params = {"name": "books__read", "arguments": {"call": "c"}, "_meta": meta}
    calling = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    version = {"mcp-protocol-version": STATELESS}
    kinds = (
        Kind("2026 tools/list", {**version, "mcp-method": "tools/list"}, listing),
        Kind("2026 tools/call", {**version, "mcp-method": "tools/call", "mcp-name": "books__read"}, calling),
    )
    for kind in kinds:
        for load in LOADS:
            await compare(kind, load, sets)
    async with RawClient(replicas.gateways[0].url) as client:
        plain = {**calling, "params": {**params, "_meta": {}}}
        home, all_of_them = (replicas.gateways[:1], idle), (replicas.gateways, idle)
        kind = Kind("2025 tools/call", client.headers, plain)
        await compare(kind, LOADS[0], {"at the home": home, "three in turns (2 of 3 forwarded)": all_of_them})


async def taken_over(replicas: Replicas) -> None:
    """From SIGKILL of a task's gateway to the moment at which another one has sent its call again, seen by the server."""
    times = []
    for number in range(KILLS):
        victim, call = replicas.gateways[number % len(replicas.gateways)], f"take-over-{number}"
        async with RawClient(victim.url) as caller:
            await caller.call("books__read", {"call": call, "seconds": 600}, task={"ttl": 600_000})
        while not replicas.ledger.count(call):
            await asyncio.sleep(0.01)
        await asyncio.sleep(2)  # a gateway that takes over must have seen all others alive for a whole lease
        at = time.perf_counter()
        await victim.kill()
        while replicas.ledger.count(call) < 2:
            await asyncio.sleep(0.005)
        times.append(time.perf_counter() - at)
        await victim.start()
    print(f"take-over after SIGKILL: {', '.join(f'{took:.2f}' for took in times)} s (<= 2.0)")


@asynccontextmanager
async def alone(folder: Path, upstream_port: int, **more: Any) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        config = {**configuration(upstream_port), **more}
        yield [
            await stack.enter_async_context(running_gateway(config, folder / f"alone{number}")) for number in range(3)
        ]


async def main() -> None:
    slowly = {"grace_ms": 60_000, "promote_after_ms": 60_000}
    with tempfile.TemporaryDirectory(prefix="forwarding-") as folder:
        async with (
            three_replicas(Path(folder), tasks=slowly) as replicas,
            alone(Path(folder), replicas.upstream_port, tasks=slowly) as control,
        ):
            print(f"load average {os.getloadavg()[0]:.1f}")
            await hop(replicas)
            await throughput(replicas, control)
            await taken_over(replicas)
            print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    asyncio.run(main())
