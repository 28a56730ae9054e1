"""Whether retention keeps up with the highest rate at which tasks can be made here: `make retention`.

python -m tests.benchmarks.retention [sqlite|postgres ...] [--minutes 10] [--control 1]

A gateway and a server that answers at once, each in a process of its own, and 64 callers that make one task after the other as fast
as they are answered. Tasks, results, keys, events and audit rows are past their time within a minute. Every ten seconds the rows
that are past their time and still there are counted in the database itself, over a read-only connection. The control is the same
load while nothing is forgotten: it shows the rate and the latency that retention is compared with.

It fails if the backlog of the last quarter is larger than that of the second quarter by more than ten seconds' worth of new tasks.
A run of less than four minutes has no verdict: in its second quarter not everything has begun to expire.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.measure import processor_seconds, resident_kb
from tests.benchmarks.store import load
from tests.benchmarks.tasks import Line, Overloaded
from tests.harness.gateway import Gateway
from tests.harness.postgres import RestartableServer
from tests.harness.programs import free_port, listening, running

CALLERS = 64
SAMPLE_S = 10.0
KEEP_MS = 10_000
SHORTEST_JUDGED_S = 240
AUDIT_KEEP_S = 30
EXPIRED, FORGETTABLE, AUDIT = "past their ttl", "expired", "audit rows"


class Sample(NamedTuple):
    at_s: float
    made: int
    refused: int
    backlog: dict[str, int]
    p50_ms: float
    p99_ms: float

    @property
    def total(self) -> int:
        return sum(self.backlog.values())


Backlog = Callable[[], dict[str, int]]
"""Rows past their time that are still there, by kind."""

_TASKS = (
    (EXPIRED, "SELECT count(*) FROM tasks WHERE keep_until_ms <= {now} AND forget_at_ms IS NULL"),
    (FORGETTABLE, "SELECT count(*) FROM tasks WHERE forget_at_ms <= {now}"),
)


def sqlite_backlog(path: Path) -> Backlog:
    def count() -> dict[str, int]:
        now = int(time.time() * 1000)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            found = {name: database.execute(text.format(now=now)).fetchone()[0] for name, text in _TASKS}
            old = now - AUDIT_KEEP_S * 1000
            first, last = database.execute("SELECT min(number), max(number) FROM audit").fetchone()
            found[AUDIT] = _first_young(
                lambda n: database.execute("SELECT content FROM audit WHERE number = ?", (n,)).fetchone(),
                first,
                last,
                old,
            )
        return found

    return count


def postgres_backlog(url: str) -> Backlog:
    import psycopg

    def row_of(database: Any, chain: str, number: int) -> Any:
        return database.execute(
            "SELECT content FROM audit WHERE chain = %s AND number = %s", [chain, number]
        ).fetchone()

    def count() -> dict[str, int]:
        with psycopg.connect(url, autocommit=True) as database:
            row = database.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
            assert row is not None
            now = row[0]
            found = {}
            for name, text in _TASKS:
                counted = database.execute(text.format(now=now).encode()).fetchone()
                found[name] = counted[0] if counted is not None else 0
            chains = database.execute("SELECT chain, min(number), max(number) FROM audit GROUP BY chain").fetchall()
            old = now - AUDIT_KEEP_S * 1000
            found[AUDIT] = sum(
                _first_young(partial(row_of, database, chain), first, last, old) for chain, first, last in chains
            )
        return found

    return count


def _first_young(read: Callable[[int], Any], first: int | None, last: int | None, old_ms: int) -> int:
    """How many rows from the first on are older; rows are in the order of time."""
    if first is None or last is None:
        return 0
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        row = read(middle)
        if row is None or json.loads(bytes(row[0]))["entry"]["at_ms"] < old_ms:
            low = middle + 1
        else:
            high = middle
    return low - first


def configuration(server: int, store: str, forgets: bool) -> dict[str, Any]:
    plenty = 10_000_000
    names = ("open_tasks_per_caller", "queue_per_server", "sessions_per_caller", "sessions", "anonymous_sessions")
    return {
        "servers": {"far": {"url": f"http://127.0.0.1:{server}/mcp"}},
        "store": {"url": store},
        "tasks": {"keep_result_ms": KEEP_MS, "sweep_interval_ms": 5_000 if forgets else 3_600_000_000},
        "limits": dict.fromkeys(names, plenty),
        **({"audit": {"keep": f"{AUDIT_KEEP_S}s"}} if forgets else {}),
    }


class Load:
    """The callers, and what they saw."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.made = 0
        self.refused = 0
        self.took: list[float] = []
        self._numbers = itertools.count()

    async def run(self, until: float) -> None:
        await asyncio.gather(*(self._one(line, until) for line in self._lines))

    async def _one(self, line: Line, until: float) -> None:
        while time.perf_counter() < until:
            began = time.perf_counter()
            arguments = {"note": "x" * 400}
            params = {"name": "far__quick", "arguments": arguments, "task": {"ttl": KEEP_MS}}
            params["_meta"] = {"taskgate/idempotencyKey": f"k{next(self._numbers)}"}
            try:
                await line.ask("tools/call", params)
            except Overloaded:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue
            self.made += 1
            self.took.append(time.perf_counter() - began)


async def one_run(folder: Path, store: str, backlog: Backlog, seconds: float, *, forgets: bool) -> list[Sample]:
    folder.mkdir(parents=True)
    server = free_port()
    looks: list[Sample] = []
    async with running([sys.executable, "-m", "tests.benchmarks.mixed_server", str(server)], listening(server)):
        gateway = Gateway(folder, free_port(), launcher=("-m", "tests.benchmarks.gateway_short_retention"))
        gateway.state.mkdir()
        gateway.write(configuration(server, store, forgets))
        await gateway.start()
        try:
            lines = [await Line(gateway.port).open() for _ in range(CALLERS)]
            callers, began = Load(lines), time.perf_counter()
            spent = processor_seconds(gateway.pid)
            running_load = asyncio.create_task(callers.run(began + seconds))
            while not running_load.done():
                await asyncio.wait({running_load}, timeout=SAMPLE_S)
                took, callers.took = sorted(callers.took), []
                looks.append(_look(callers, took, await asyncio.to_thread(backlog), time.perf_counter() - began))
                _show(looks)
            await running_load
            cpu = processor_seconds(gateway.pid) - spent
            made = max(1, callers.made)
            print(
                f"  {callers.made:,} tasks in {seconds:.0f} s = {callers.made / seconds:.0f}/s, {callers.refused} refused,"
                f" {cpu / made * 1e6:.0f} us of the gateway's processor time a task, {resident_kb(gateway.pid) >> 10} MB"
            )
            failed = [line for line in gateway.log.splitlines() if "expired records could not be deleted" in line]
            assert not failed, failed[0]
        finally:
            await gateway.stop()
    return looks


def _look(callers: Load, took: list[float], found: dict[str, int], at_s: float) -> Sample:
    p50, p99 = (took[int(len(took) * part)] * 1000 if took else 0.0 for part in (0.5, 0.99))
    return Sample(at_s, callers.made, callers.refused, found, p50, p99)


def _show(looks: list[Sample]) -> None:
    look = looks[-1]
    before = looks[-2] if len(looks) > 1 else Sample(0.0, 0, 0, {}, 0.0, 0.0)
    rate = (look.made - before.made) / max(0.001, look.at_s - before.at_s)
    waiting = ", ".join(f"{count:,} {name}" for name, count in look.backlog.items())
    print(
        f"  {look.at_s:6.0f} s  {rate:6.0f} new/s  p50 {look.p50_ms:6.1f} ms  p99 {look.p99_ms:6.1f} ms  left: {waiting}",
        flush=True,
    )


def verdict(looks: list[Sample]) -> bool:
    """The second quarter is the first in which everything has begun to expire, in a run that is long enough."""
    if looks[-1].at_s < SHORTEST_JUDGED_S:
        print(f"  no verdict: a run of less than {SHORTEST_JUDGED_S // 60} minutes ends before the backlog is steady")
        return True
    quarter = max(1, len(looks) // 4)
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    before, after = (statistics.median(look.total for look in part) for part in (early, late))
    rate = looks[-1].made / looks[-1].at_s
    kept_up = after <= before + SAMPLE_S * rate
    print(
        f"  backlog: {before:,.0f} in the second quarter, {after:,.0f} in the last: {'kept up' if kept_up else 'FELL BEHIND'}"
    )
    return kept_up


async def sqlite_runs(folder: Path, minutes: float, control: float) -> bool:
    if control:
        print(f"SQLite, control: the same load for {control:g} min, and nothing is forgotten ({load()})")
        path = folder / "control" / "store.db"
        await one_run(path.parent, f"sqlite:///{path}", sqlite_backlog(path), control * 60, forgets=False)
    print(f"SQLite, {minutes:g} min ({load()})")
    path = folder / "sqlite" / "store.db"
    return verdict(await one_run(path.parent, f"sqlite:///{path}", sqlite_backlog(path), minutes * 60, forgets=True))


async def postgres_runs(folder: Path, minutes: float, control: float) -> bool:
    if control:
        print(f"PostgreSQL, control: the same load for {control:g} min, and nothing is forgotten ({load()})")
        async with RestartableServer() as server:
            where = folder / "control-postgres"
            await one_run(where, server.url, postgres_backlog(server.url), control * 60, forgets=False)
    print(f"PostgreSQL, {minutes:g} min ({load()})")
    async with RestartableServer() as server:
        where = folder / "postgres"
        return verdict(await one_run(where, server.url, postgres_backlog(server.url), minutes * 60, forgets=True))


async def main(stores: list[str], minutes: float, control: float) -> int:
    runs = {"sqlite": sqlite_runs, "postgres": postgres_runs}
    with tempfile.TemporaryDirectory(prefix="taskgate-retention-") as folder:
        kept_up = [await runs[name](Path(folder), minutes, control) for name in stores or list(runs)]
    return 0 if all(kept_up) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--control", type=float, default=1.0)
    asked = parser.parse_args()
    sys.exit(asyncio.run(main(asked.stores, asked.minutes, asked.control)))
