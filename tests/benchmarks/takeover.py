"""What it costs to take over ten thousand tasks, in processor time of the gateway that does it: `make takeover`.

python -m tests.benchmarks.takeover [--tasks 10000]

- A start on a SQLite file, and on a PostgreSQL database, with the open tasks of a gateway that was killed, beside a start on an
  empty one of the same kind: at most 2 s more.
- A gateway on PostgreSQL that runs while another one dies that had sent these calls: at most 5 s until every one of them is
  concluded (what may run only once) or sent again (what may be repeated), beside the same gateway doing nothing for as long.

Half of the tasks may run once, half may be repeated (REPEATABLE=50). The server behind the gateway answers at once, so the answers
of the repeated calls are part of what is measured: `REPEATABLE=0` shows what it costs to conclude tasks alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import processor_seconds
from tests.benchmarks.store import load
from tests.harness.gateway import Gateway
from tests.harness.postgres import RestartableServer
from tests.harness.programs import free_port, listening, running

from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.core.tool_class import ToolClass
from taskgate.store.operations.task_rows import attempt_columns, task_columns
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.connection import migrate as migrate_sqlite
from taskgate.store.sqlite.last_known import LastKnown, StoreMark

REPEATABLE_PERCENT = int(os.environ.get("REPEATABLE", "50"))
LAUNCHER = tuple(os.environ.get("LAUNCH", "-m taskgate").split())
START_MORE_S = 2.0
TAKEOVER_S = 5.0
DEAD = "gw_dead"
FENCE = 1


def a_task(number: int, now_ms: int) -> Task:
    """Sent by a gateway that died before the answer came."""
    repeatable = number % 100 < REPEATABLE_PERCENT
    return Task(
        id=new_task_id(now_ms, number.to_bytes(10)),
        principal=f"caller-{number % 50}",
        caller=f"caller-{number % 50}",
        scope="default",
        server="far",
        tool="repeat" if repeatable else "quick",
        wire_name="far__repeat" if repeatable else "far__quick",
        arguments=b'{"note":"' + b"x" * 400 + b'"}',
        digest="sha256:" + "d" * 64,
        generation=Generation.STATEFUL,
        tool_class=ToolClass.REPEATABLE if repeatable else ToolClass.ONCE,
        state=TaskState.RUNNING,
        created_ms=now_ms,
        updated_ms=now_ms,
        ttl_ms=3_600_000,
        execution_budget_ms=600_000,
        execution_deadline_ms=now_ms + 600_000,
        last_attempt=Attempt(1, FENCE, "sha256:b", "far", now_ms),
        sends=1,
        unanswered_sends=1,
        owner=DEAD,
        fence=FENCE,
        revision=2,
    )


Columns = dict[str, Any]


def fill(put: Callable[[str, Iterable[Columns]], None], tasks: list[Task]) -> None:
    sealing = Sealing(())
    put("tasks", (task_columns(sealing, task) for task in tasks))
    put("task_calls", ({"task_id": task.id, "arguments": task.arguments, "params_rest": b"{}"} for task in tasks))
    put(
        "attempts",
        (attempt_columns(task.id, task.last_attempt) for task in tasks if task.last_attempt is not None),
    )


def fill_sqlite(path: Path, count: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        migrate_sqlite(database)
        database.execute("BEGIN")
        database.execute("INSERT INTO owners VALUES (?, ?, 0, 0, 0)", (DEAD, FENCE))

        def put(table: str, given: Iterable[Columns]) -> None:
            for row in given:
                names = ", ".join(row)
                database.execute(
                    f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values())
                )

        fill(put, [a_task(number, int(time.time() * 1000)) for number in range(count)])
        database.execute("COMMIT")
    # A gateway wrote it, so the mark of its last life is there: without it the store counts as restored from a backup.
    mark = LastKnown(path, StoreMark(0, FENCE), expected=False)
    mark.begin(FENCE)
    mark.close()


def fill_postgres(url: str, count: int) -> None:
    import psycopg

    with psycopg.connect(url) as database, database.cursor() as cursor:
        cursor.execute(f"INSERT INTO owners (owner, fence, started_ms) VALUES ('{DEAD}', nextval('fences'), 0)")

        def put(table: str, given: Iterable[Columns]) -> None:
            every = list(given)
            with cursor.copy(f"COPY {table} ({', '.join(every[0])}) FROM STDIN") as copy:
                for row in every:
                    copy.write_row(list(row.values()))

        fill(put, [a_task(number, int(time.time() * 1000)) for number in range(count)])


def configuration(server: int, store: str) -> dict[str, Any]:
    repeatable = {"repeat": {"class": "repeatable"}}
    return {
        "servers": {"far": {"url": f"http://127.0.0.1:{server}/mcp", "tools": repeatable}},
        "store": {"url": store},
        "limits": {"open_tasks_per_caller": 1_000_000, "queue_per_server": 1_000_000},
    }


@asynccontextmanager
async def gateway_on(folder: Path, store: str, server: int) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(folder, free_port(), launcher=LAUNCHER)
    gateway.state.mkdir(exist_ok=True)
    gateway.write(configuration(server, store))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def until(found: Callable[[], int], what: str) -> None:
    async with asyncio.timeout(600):
        while left := await asyncio.to_thread(found):
            print(f"  {left} {what}", end="\r", flush=True)
            await asyncio.sleep(0.2)


def open_in_sqlite(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as database:
        count: int = database.execute("SELECT count(*) FROM tasks WHERE finished_ms IS NULL").fetchone()[0]
    return count


def open_in_postgres(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        row = database.execute("SELECT count(*) FROM tasks WHERE finished_ms IS NULL").fetchone()
    assert row is not None
    count: int = row[0]
    return count


async def started(folder: Path, store: str, server: int, is_done: Callable[[], int]) -> tuple[float, float]:
    """Processor time until it serves, and until all tasks are concluded or have run again."""
    async with gateway_on(folder, store, server) as gateway:
        ready = processor_seconds(gateway.pid)
        await until(is_done, "open")
        return ready, processor_seconds(gateway.pid)


def judged(what: str, took: float, maximum: float) -> bool:
    print(f"{what}: {took:.2f} s of processor time (at most {maximum:g} s): {'yes' if took <= maximum else 'NO'}")
    return took <= maximum


async def starts(folder: Path, count: int, server: int) -> list[bool]:
    verdicts = []
    empty = await started(folder / "empty", f"sqlite:///{folder}/empty.db", server, lambda: 0)
    print(f"SQLite, empty: {empty[0]:.2f} s until it serves ({load()})")
    path = folder / "full.db"
    fill_sqlite(path, count)
    full = await started(folder / "full", f"sqlite:///{path}", server, lambda: open_in_sqlite(path))
    verdicts.append(
        judged(f"SQLite, restart with {count:,} open tasks, more than empty", full[0] - empty[0], START_MORE_S)
    )
    print(f"  all of them concluded or run: {full[1] - empty[0]:.2f} s more")
    async with RestartableServer() as database:
        empty = await started(folder / "pg-empty", database.url, server, lambda: 0)
        print(f"PostgreSQL, empty: {empty[0]:.2f} s until it serves ({load()})")
        fill_postgres(database.url, count)
        full = await started(folder / "pg-full", database.url, server, lambda: open_in_postgres(database.url))
    what = f"PostgreSQL, restart with {count:,} open tasks, more than empty"
    verdicts.append(judged(what, full[0] - empty[0], START_MORE_S))
    print(f"  all of them concluded or run: {full[1] - empty[0]:.2f} s more")
    return verdicts


async def takeover(folder: Path, count: int, server: int) -> bool:
    async with RestartableServer() as database, gateway_on(folder / "survivor", database.url, server) as gateway:
        await asyncio.sleep(4)
        idle, began = processor_seconds(gateway.pid), time.monotonic()
        await asyncio.sleep(5)
        idle_per_s = (processor_seconds(gateway.pid) - idle) / (time.monotonic() - began)
        spent = processor_seconds(gateway.pid)
        began = time.monotonic()
        await asyncio.to_thread(fill_postgres, database.url, count)
        await until(lambda: not_taken_up(database.url), "neither concluded nor sent again")
        took, lasted = processor_seconds(gateway.pid) - spent, time.monotonic() - began
    print(f"idle: {idle_per_s:.3f} s of processor time a second; the take-over lasted {lasted:.1f} s ({load()})")
    return judged(f"take-over of {count:,} running tasks", took - idle_per_s * lasted, TAKEOVER_S)


def not_taken_up(url: str) -> int:
    """Tasks that are open, and whose second attempt has not been written."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        row = database.execute(
            "SELECT count(*) FROM tasks t WHERE finished_ms IS NULL AND NOT EXISTS"
            ' (SELECT 1 FROM attempts a WHERE a.task_id = t.id COLLATE "default" AND a.number > 1)'
        ).fetchone()
    assert row is not None
    count: int = row[0]
    return count


async def main(count: int) -> int:
    server = free_port()
    with tempfile.TemporaryDirectory(prefix="taskgate-takeover-") as folder:
        async with running([sys.executable, "-m", "tests.benchmarks.mixed_server", str(server)], listening(server)):
            verdicts = await starts(Path(folder), count, server)
            verdicts.append(await takeover(Path(folder), count, server))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    sys.exit(asyncio.run(main(parser.parse_args().tasks)))
