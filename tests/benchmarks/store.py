"""How fast the SQLite store is on this machine, beside what the disk itself can do.

Run it by hand: `python tests/benchmarks/store.py [--tasks 10000] [--folder DIR]`. It fills a fresh store with open
tasks and prints one line per target: durable creates, reads, list pages, and taking over after a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.harness.unchecked import just_go

from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.recovery import next_action
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import Change
from taskgate.store.operations.task_queries import FindTask, TasksPage
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.operations.upkeep import Claim, ClaimedTasks
from taskgate.store.sqlite.connection import SYNCHRONOUS
from taskgate.store.sqlite.store import SqliteStore, open_store

CONCURRENT = 64


def a_call(caller: str) -> Task:
    return Task(
        id=new_task_id(time.time_ns() // 1_000_000, secrets.token_bytes(10)),
        principal=caller,
        caller=caller,
        scope="default",
        server="reports",
        tool="build",
        wire_name="reports__build",
        arguments=b'{"report":"' + b"x" * 400 + b'"}',
        digest="sha256:" + "0" * 64,
        generation=Generation.STATELESS,
        ttl_ms=600_000,
        execution_budget_ms=600_000,
    )


def centile(sorted_times: list[float], part: float) -> float:
    return sorted_times[min(len(sorted_times) - 1, int(len(sorted_times) * part))] * 1000


def report(what: str, times: list[float], wall: float, target: str) -> None:
    times.sort()
    rate = len(times) / wall
    print(
        f"{what:<34} {rate:>9,.0f}/s   p50 {centile(times, 0.5):7.3f} ms   p99 {centile(times, 0.99):7.3f} ms"
        f"   max {times[-1] * 1000:7.2f} ms   (target: {target})"
    )


def control(folder: Path, count: int = 1000) -> None:
    """A plain 4 KiB append and fdatasync: no store can acknowledge faster than this."""
    fd = os.open(folder / "control", os.O_WRONLY | os.O_CREAT)
    times = []
    started = time.perf_counter()
    for _ in range(count):
        at = time.perf_counter()
        os.write(fd, b"\0" * 4096)
        os.fdatasync(fd)
        times.append(time.perf_counter() - at)
    os.close(fd)
    report("control: 4 KiB append + fdatasync", times, time.perf_counter() - started, "-")


def control_inserts(folder: Path, count: int = 1000) -> None:
    """A row of a task's size in each transaction of a bare SQLite file, synced as the store does."""
    connection = sqlite3.connect(folder / "control.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    times = []
    started = time.perf_counter()
    for number in range(count):
        at = time.perf_counter()
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, b"x" * 1200))
        times.append(time.perf_counter() - at)
    report("control: bare SQLite insert, synced", times, time.perf_counter() - started, "-")
    connection.close()


_POLL_S = 0.1


def load() -> str:
    """How busy the machine is: times mean little beside other load."""
    return f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


class HostWatch:
    """Around what is measured at a steady pace: keeps the callers' own pauses out of it, and detects when the host was busy.

    Thousands of finished tasks and answers make one garbage collection of the callers 25 ms. On a virtual machine whose host
    delays it, everything waits for tens of milliseconds, including a server that does nothing.
    """

    def __init__(self) -> None:
        self._disturbed: list[float] = []
        self.taken_s = 0.0

    async def __aenter__(self) -> HostWatch:
        gc.collect()
        gc.disable()
        self._reading = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        gc.enable()
        self._reading.cancel()

    async def _look(self) -> None:
        taken = _taken_by_host_s()
        while True:
            await asyncio.sleep(_POLL_S)
            if (now := _taken_by_host_s()) > taken:
                self.taken_s += now - taken
                self._disturbed.append(time.perf_counter())
                taken = now

    def was_quiet(self, due: float) -> bool:
        """Whether the host took nothing shortly before and after this moment."""
        return not any(moment - 2 * _POLL_S <= due <= moment + 2 * _POLL_S for moment in self._disturbed)


def _taken_by_host_s() -> float:
    """The steal time of a virtual machine since it was started."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


async def measure(count: int, concurrent: int, one: Callable[[int], Awaitable[None]]) -> tuple[list[float], float]:
    times: list[float] = []
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            at = time.perf_counter()
            await one(number)
            times.append(time.perf_counter() - at)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrent)))
    return times, time.perf_counter() - started


async def fill(store: SqliteStore, count: int) -> list[str]:
    made: list[str] = []

    async def create(number: int) -> None:
        answer = await store.do(Accept(a_call(f"caller-{number % 50}" if number % 2 else "the-big-one")))
        assert isinstance(answer, Change)
        made.append(answer.task.id)

    report("creates, 64 at once, flat out", *await measure(count, CONCURRENT, create), ">= 1,000/s")
    return made


async def paced(store: SqliteStore, per_second: int, seconds: int) -> None:
    """The same 64 callers at a steady rate: the latency when the store is busy but not flooded."""
    pause = CONCURRENT / per_second

    async def create(number: int) -> None:
        assert isinstance(await store.do(Accept(a_call("steady"))), Change)

    times: list[float] = []

    async def worker(number: int) -> None:
        due = time.perf_counter() + pause * number / CONCURRENT
        for _ in range(int(seconds / pause)):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            at = time.perf_counter()
            await create(number)
            times.append(time.perf_counter() - at)
            due += pause

    started = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(CONCURRENT)))
    wall = time.perf_counter() - started
    report(f"creates, 64 callers, {per_second:,}/s", times, wall, "p99 <= 10 ms")


async def live(store: SqliteStore, count: int) -> None:
    """Whole runs, to measure what one costs: accept, intent, finish."""
    from taskgate.core.tasks.transition import ResultReceived

    async def one(number: int) -> None:
        answer = await store.do(Accept(a_call("short-lived")))
        assert isinstance(answer, Change)
        await store.do(Intend(answer.task.id, byte_hash="b", upstream="reports", recheck=just_go))
        await store.do(Advance(answer.task.id, ResultReceived(b'{"content":[]}')))

    report("accept + intend + finish", *await measure(count, CONCURRENT, one), "-")


async def read(store: SqliteStore, made: list[str]) -> None:
    async def get(number: int) -> None:
        assert await store.ask(FindTask(made[number % len(made)])) is not None

    async def page(number: int) -> None:
        assert len((await store.ask(TasksPage("the-big-one", limit=50))).tasks) == 50

    async def filtered(number: int) -> None:
        await store.ask(TasksPage("the-big-one", limit=50, states=frozenset({TaskState.COMPLETED})))

    report("get", *await measure(20_000, 16, get), ">= 3,000/s, p99 <= 5 ms")
    report("list page of 50", *await measure(500, 4, page), "p99 <= 20 ms")
    report("list page, filter finds nothing", *await measure(100, 4, filtered), "p99 <= 20 ms")


async def mixed(store: SqliteStore, made: list[str]) -> None:
    """Reads while the writer is busy."""

    async def get(number: int) -> None:
        await store.ask(FindTask(made[number % len(made)]))
        await asyncio.sleep(0.001)

    writing = asyncio.create_task(live(store, 1000))
    times, wall = await measure(2_000, 8, get)
    report("get (and 1 ms of rest) beside writes", times, wall, "p99 <= 5 ms")
    await writing


async def main(count: int, folder: Path) -> None:
    print(load())
    control(folder)
    control_inserts(folder)
    path = folder / "store.db"
    store = open_store(path)
    made = await fill(store, count)
    await paced(store, 1000, 3)
    await read(store, made)
    await live(store, 2000)
    await mixed(store, made)
    await store.close()
    started = time.perf_counter()
    store = open_store(path)
    claimed = len(await store.do(Claim()))
    after, classified = "", 0
    while batch := await store.ask(ClaimedTasks(after)):
        for task in batch:
            next_action(task, store.now_ms())
        after, classified = batch[-1].id, classified + len(batch)
    seconds = time.perf_counter() - started
    print(f"restart: {claimed} open tasks claimed, {classified} classified in {seconds:.2f} s (target: 10,000 in 2 s)")
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB, file {path.stat().st_size >> 20} MB"
    )
    await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=None)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=said.folder) as made_folder:
        asyncio.run(main(said.tasks, Path(made_folder)))
