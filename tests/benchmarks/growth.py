"""`make bench-growth`: CPU time and memory of the gateway with more tools, servers, rules and rows, as ratios to the smallest case.

Each case is a new gateway in front of a small server in another process. Printed are the CPU seconds of the start until
all tools are listed, the resident memory after it, the CPU time of one call, of one page of `tools/list` and of one
reload. Each is also shown as a ratio to the first case of its group, which ran in the same minutes on the same machine. Calls are
compared more exactly: the gateway of the first case stays, and both are called in turns; the ratio is that of the least of both.

    python -m tests.benchmarks.growth [--only tools,rules] [--small]
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.benchmarks.floor import cpu_seconds, one_round
from tests.benchmarks.measure import post, read_answer, resident_kb
from tests.benchmarks.start import python_build
from tests.benchmarks.targets import Target
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.digest import digest_of_bytes
from taskgate.store.operations.audit import audit_content

TOOLS_OF_A_SERVER = 1_000
LISTS, CALLS, RELOADS = 20, 640, 3
CALL_ROUNDS = 5
QUIET_S, QUIET_CPU_S = 0.5, 0.02
START_DEADLINE_S = 300.0
SESSIONS_AT_ONCE = 50
MAX_SESSIONS = 20_000
TABLES_OF_A_TASK = {"tasks": "id", "task_calls": "task_id", "attempts": "task_id", "task_outcomes": "task_id"}


class Stored(NamedTuple):
    """Rows in the store, besides those that the gateway writes itself."""

    tasks: int = 0
    audit: int = 0


NOTHING_STORED = Stored()


@dataclass(frozen=True, slots=True)
class Case:
    """What one gateway manages."""

    group: str
    size: int
    tools: int = 10
    servers: int = 1
    rules: int = 0
    sessions: int = 0
    scopes: int = 1
    stored: Stored = NOTHING_STORED

    @property
    def name(self) -> str:
        return f"{self.size:,} {self.group}"

    def config(self, url: str) -> dict[str, Any]:
        rules = [{"match": rule_pattern(number), "action": "deny"} for number in range(self.rules)]
        scopes: dict[str, Any] = {"default": {"default_servers": ["*"]}}
        scopes |= {f"scope{number}": {"default_servers": ["*"]} for number in range(1, self.scopes)}
        return {
            "schema": 1,
            "servers": {f"up{number}": {"url": url} for number in range(self.servers)},
            "governance": {"defaults": {"action": "forward"}, "rules": rules},
            "scopes": scopes,
            "limits": dict.fromkeys(("sessions", "sessions_per_caller", "anonymous_sessions"), MAX_SESSIONS),
            "telemetry": {"log_level": "warning"},
        }


def rule_pattern(number: int) -> str:
    """Prefixes, suffixes, names, classes and inner wildcards in turn. None of them matches a tool of the server."""
    shapes = (f"r{number:05}_*", f"*_r{number:05}", f"rule_{number}", f"*r{number:05}[a-f]?", f"r*_{number:05}_*z")
    return shapes[number % len(shapes)]


CASES = (
    *(
        Case("tools", size, min(size, TOOLS_OF_A_SERVER), max(1, size // TOOLS_OF_A_SERVER))
        for size in (10, 1_000, 10_000)
    ),
    *(Case("servers", size, tools=1, servers=size) for size in (10, 1_000)),
    *(Case("rules", size, tools=300, rules=size) for size in (10, 1_000, 5_000)),
    *(Case("sessions", size, sessions=size) for size in (10, 10_000)),
    *(Case("scopes", size, scopes=size) for size in (1, 100)),
    *(Case("tasks", size, stored=Stored(tasks=size)) for size in (0, 100_000)),
    *(Case("audit rows", size, stored=Stored(audit=size)) for size in (0, 1_000_000)),
)


@asynccontextmanager
async def growing_server(tools: int) -> AsyncIterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.growing_server", str(port), str(tools)]
    async with running(command, listening(port)):
        yield f"http://127.0.0.1:{port}/mcp"


class Measured(NamedTuple):
    """The cost of one case. `ratio_of_calls` is that to the calls of the control, in the same seconds."""

    target: Target
    cost: dict[str, float]
    ratio_of_calls: float


@asynccontextmanager
async def measured(case: Case, control: Target | None) -> AsyncIterator[Measured]:
    """Measure one case. Its gateway runs until the end of the context."""
    async with growing_server(case.tools) as url:
        folder = Path(tempfile.mkdtemp(prefix="growth-"))
        if any(case.stored):
            await fill_store(folder, case, url)
        async with running_gateway(case.config(url), folder) as gateway:
            await until_listed(gateway, case.tools * case.servers)
            await until_quiet(gateway.pid)
            cost = {"start s": cpu_seconds(gateway.pid), "memory MB": resident_kb(gateway.pid) / 1024}
            before = resident_kb(gateway.pid)
            await open_sessions(gateway.url, case.sessions)
            cost["memory MB"] += (resident_kb(gateway.pid) - before) / 1024
            target = Target("taskgate", gateway.url, gateway.pid, "up0__")
            calls = await cost_of_calls([target] if control is None else [control, target])
            cost["call us"] = calls[-1]
            cost["list ms"] = await cost_of_lists(gateway)
            cost["reload ms"] = await cost_of_reloads(gateway, case.config(url))
            yield Measured(target, cost, calls[-1] / calls[0])


async def cost_of_calls(targets: list[Target]) -> list[float]:
    """Return the least CPU time of a call of each target. They take turns, because the speed of a machine changes."""
    least = [float("inf")] * len(targets)
    for _ in range(CALL_ROUNDS):
        for number, target in enumerate(targets):
            found = await one_round(target, "2025", CALLS, 0, None, tool="get_0")
            least[number] = min(least[number], found["cpu_us"])
    return least


async def fill_store(folder: Path, case: Case, url: str) -> None:
    """Let a gateway finish one task, then copy it in its file, and continue the audit log."""
    async with running_gateway(case.config(url), folder) as gateway:
        await until_listed(gateway, case.tools)
        async with RawClient(gateway.url) as caller:
            await caller.open()
            params = {"name": "up0__get_0", "arguments": {"text": "a"}, "task": {"ttl": 86_400_000}}
            task_id = (await caller.request("tools/call", params)).result["task"]["taskId"]
            await caller.request("tasks/result", {"taskId": task_id})
    connection = sqlite3.connect(folder / "state" / "taskgate.db", isolation_level=None)
    connection.execute("BEGIN")
    for table, column in TABLES_OF_A_TASK.items():
        copy_rows(connection, table, column, task_id, case.stored.tasks)
    number, previous = connection.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    connection.executemany("INSERT INTO audit VALUES (?, ?, ?)", audit_rows(number, previous, case.stored.audit))
    connection.execute("COMMIT")
    connection.close()


def copy_rows(connection: sqlite3.Connection, table: str, column: str, task_id: str, count: int) -> None:
    columns = [found[1] for found in connection.execute(f"PRAGMA table_info({table})")]
    rows = connection.execute(f"SELECT * FROM {table} WHERE {column} = ?", (task_id,)).fetchall()
    statement = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"
    at = columns.index(column)
    for row in rows:
        copies = ((*row[:at], f"{task_id[:-8]}{number:08d}", *row[at + 1 :]) for number in range(count))
        connection.executemany(statement, copies)


def audit_rows(number: int, previous: str, count: int) -> Iterator[tuple[int, str, bytes]]:
    """Rows that continue the hash chain."""
    entry = AuditEntry(time.time_ns() // 1_000_000, "call", "anonymous", "default", "up0", "get_0", executed="yes")
    for place in range(number + 1, number + 1 + count):
        content = audit_content(place, previous, entry)
        previous = digest_of_bytes(content)
        yield place, previous, content


async def until_listed(gateway: Gateway, tools: int) -> None:
    """Wait until all servers are listed. The number is polled in a page of the list, not in all of them."""
    async with asyncio.timeout(START_DEADLINE_S), RawClient(gateway.url, stateless=True) as caller:
        while True:
            found = await caller.request("tools/list")
            if len(found.result["tools"]) >= min(tools, TOOLS_OF_A_SERVER):
                return
            await asyncio.sleep(QUIET_S)


async def until_quiet(pid: int) -> None:
    """Wait until the gateway uses almost no CPU time."""
    async with asyncio.timeout(START_DEADLINE_S):
        before = cpu_seconds(pid)
        while True:
            await asyncio.sleep(QUIET_S)
            now = cpu_seconds(pid)
            if now - before < QUIET_CPU_S:
                return
            before = now


async def open_sessions(url: str, count: int) -> None:
    """Open sessions without a stream, over a few connections."""
    address = urlsplit(url)
    info = {"name": "growth", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    request = post(address, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})

    async def some(number: int) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in range(number):
            writer.write(request)
            await read_answer(reader)
        writer.close()

    shares = [len(range(first, count, SESSIONS_AT_ONCE)) for first in range(min(count, SESSIONS_AT_ONCE))]
    await asyncio.gather(*(some(share) for share in shares))


async def cost_of_lists(gateway: Gateway) -> float:
    async with RawClient(gateway.url, stateless=True) as caller:
        await caller.request("tools/list")
        before = cpu_seconds(gateway.pid)
        for _ in range(LISTS):
            await caller.request("tools/list")
        return (cpu_seconds(gateway.pid) - before) / LISTS * 1000


async def cost_of_reloads(gateway: Gateway, config: dict[str, Any]) -> float:
    await until_quiet(gateway.pid)
    before = cpu_seconds(gateway.pid)
    for number in range(RELOADS):
        rules = [*config["governance"]["rules"], {"match": f"another_{number}", "action": "deny"}]
        await gateway.reload({**config, "governance": {**config["governance"], "rules": rules}})
        await until_quiet(gateway.pid)
    return (cpu_seconds(gateway.pid) - before) / RELOADS * 1000


def show(case: Case, found: Measured, first: dict[str, float]) -> None:
    ratios = {name: value / first[name] if first[name] else 0 for name, value in found.cost.items()}
    ratios["call us"] = found.ratio_of_calls
    cells = [f"{value:10,.1f} {ratios[name]:6.2f}x" for name, value in found.cost.items()]
    print(f"{case.name:20}" + "".join(cells), flush=True)


async def run_group(cases: list[Case]) -> None:
    async with measured(cases[0], None) as first:
        print(f"\n{'':20}" + "".join(f"{name:>17} " for name in first.cost))
        show(cases[0], first, first.cost)
        for case in cases[1:]:
            async with measured(case, first.target) as found:
                show(case, found, first.cost)
                if case.sessions:
                    more = case.sessions - cases[0].sessions
                    grown = found.cost["memory MB"] - first.cost["memory MB"]
                    print(f"a session without a stream: {grown * 1024 / more:.1f} KB")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="groups, separated by commas")
    parser.add_argument("--small", action="store_true", help="the first two cases of each group")
    chosen = parser.parse_args()
    groups = list(dict.fromkeys(case.group for case in CASES))
    wanted = [name for name in groups if not chosen.only or name in chosen.only.split(",")]
    print(f"Python: {python_build()}\nEach figure with its ratio to the first case of the group.")
    for group in wanted:
        cases = [case for case in CASES if case.group == group][: 2 if chosen.small else None]
        await run_group(cases)


if __name__ == "__main__":
    asyncio.run(main())
