"""What deleting expired results costs plain calls: `make retention-beside-calls`.

python -m tests.benchmarks.retention_beside_calls [--rounds 4] [--rows 12000] [--seconds 8]

One gateway, a server that answers at once, and callers that call without a pause. Rounds alternate in the same process: in one of
two, so many tasks with results expire when it begins, and retention deletes them. Another connection has written them some time
before, so that their log is in the file by then. The rounds without are the control: they show the rate, the latency and the CPU
time of the same calls. The rows that are left at the end of a round are deleted before the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace
from tests.benchmarks.measure import processor_seconds
from tests.benchmarks.store import load
from tests.benchmarks.tasks import Line
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port, listening, running
from tests.store.filled_store import Amounts, _attempt, _task, put_sqlite

from taskgate.core.ids import new_task_id
from taskgate.core.tasks.task import Task
from taskgate.store.operations.task_rows import task_columns
from taskgate.store.sealing import Sealing

CALLERS = 16
SETTLES_S = 10.0
"""Before each round: the rows are written, and copied from the log into the file."""
RESULT = b'{"content":[{"type":"text","text":"' + b"x" * 4_000 + b'"}]}'
_LEFT = "SELECT count(*) FROM tasks WHERE keep_until_ms IS NOT NULL AND forget_at_ms IS NULL"


class Round(NamedTuple):
    calls: int
    p50_ms: float
    p99_ms: float
    cpu_share: float
    """CPU seconds of the gateway for each second."""
    deleted: int


def put_tasks(file: Path, round_number: int, rows: int, keep_until_ms: int) -> None:
    amounts = Amounts(rows, 0, 0)
    made = [_task(number, amounts) for number in range(rows) if number % 100 < 90]
    tasks = [_numbered(task, round_number * rows + number) for number, task in enumerate(made)]
    with closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as database:
        put = put_sqlite(database)
        database.execute("BEGIN IMMEDIATE")
        columns = (task_columns(Sealing(()), task) for task in tasks)
        put("tasks", ({**row, "keep_until_ms": keep_until_ms, "owner": "taskgate", "fence": 1} for row in columns))
        put("task_calls", ({"task_id": t.id, "arguments": b"{}", "params_rest": b"{}"} for t in tasks))
        put("task_outcomes", ({"task_id": t.id, "body": RESULT, "spill": None} for t in tasks))
        put("attempts", (_attempt(task) for task in tasks))
        database.execute("COMMIT")


def _numbered(task: Task, number: int) -> Task:
    return replace(task, id=new_task_id(1_700_000_000_000 + number, number.to_bytes(10)))


def left(file: Path) -> int:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as database:
        return int(database.execute(_LEFT).fetchone()[0])


async def measured(lines: list[Line], gateway: Gateway, file: Path, seconds: float) -> Round:
    took: list[float] = []
    until, before, spent = time.perf_counter() + seconds, left(file), processor_seconds(gateway.pid)

    async def call(line: Line) -> None:
        while (began := time.perf_counter()) < until:
            await line.ask("tools/call", {"name": "far__quick", "arguments": {"note": "x" * 400}})
            took.append(time.perf_counter() - began)

    await asyncio.gather(*map(call, lines))
    cpu = (processor_seconds(gateway.pid) - spent) / seconds
    took.sort()
    p50, p99 = (took[int(len(took) * part)] * 1000 for part in (0.5, 0.99))
    return Round(len(took), p50, p99, cpu, before - left(file))


async def run(folder: Path, rounds: int, rows: int, seconds: float) -> None:
    server, file = free_port(), folder / "store.db"
    async with running([sys.executable, "-m", "tests.benchmarks.mixed_server", str(server)], listening(server)):
        gateway = Gateway(folder, free_port(), launcher=("-m", "tests.benchmarks.gateway_short_retention"))
        gateway.state.mkdir()
        gateway.write(
            {
                "servers": {"far": {"url": f"http://127.0.0.1:{server}/mcp"}},
                "store": {"url": f"sqlite:///{file}"},
                "tasks": {"sweep_interval_ms": 1_000},
                "limits": {"sessions_per_caller": 1_000, "anonymous_sessions": 1_000},
            }
        )
        await gateway.start()
        try:
            lines = [await Line(gateway.port).open() for _ in range(CALLERS)]
            await measured(lines, gateway, file, 2.0)
            found: dict[str, list[Round]] = {"off": [], "on": []}
            for number in range(2 * rounds):
                kind = "on" if number % 2 else "off"
                begins = time.time() + SETTLES_S
                if kind == "on":
                    await asyncio.to_thread(put_tasks, file, number, rows, int(begins * 1000))
                await asyncio.sleep(begins - time.time())
                one = await measured(lines, gateway, file, seconds)
                found[kind].append(one)
                print(
                    f"  {kind:3}  {one.calls / seconds:6.0f} calls/s  p50 {one.p50_ms:6.1f} ms  p99 {one.p99_ms:6.1f} ms"
                    f"  {one.cpu_share:4.2f} CPU s/s  {one.deleted:,} deleted",
                    flush=True,
                )
                while left(file):
                    await asyncio.sleep(0.5)
                await asyncio.sleep(1)
        finally:
            await gateway.stop()
    for kind, each in found.items():
        p50, p99 = (statistics.median(getattr(one, name) for one in each) for name in ("p50_ms", "p99_ms"))
        print(f"{kind:3} median of {len(each)}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    print(f"SQLite, {asked.rounds} rounds of each kind ({load()})")
    with tempfile.TemporaryDirectory(prefix="taskgate-retention-") as name:
        asyncio.run(run(Path(name), asked.rounds, asked.rows, asked.seconds))
