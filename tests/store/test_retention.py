"""Expired data is deleted as fast as it arises, in small portions, until none is left."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.postgres import migrated_url
from tests.store.filled_store import DAY_MS, NOW_MS, Amounts, fill_postgres, fill_sqlite

from taskgate.assembly.audit_keeper import FORGET_AT_ONCE, AuditKeeper
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.gateway.retention import Retention
from taskgate.ports.store import Store
from taskgate.store.audit_anchor import AuditAnchor, anchor_path, audit_key
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.task_queries import TasksPage
from taskgate.store.operations.upkeep import TASKS_PER_PORTION, Expiring, sweep
from taskgate.store.operations.usage import ROWS_PER_PORTION
from taskgate.store.postgres.writer import Writer
from taskgate.store.sqlite.connection import migrate
from taskgate.store.sqlite.store import open_store

AMOUNTS = Amounts(tasks=1_500, audit=100, events=1_500)
"""More than twenty portions; `make retention` has a hundred thousand."""
SECRET = b"s" * 32


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS + DAY_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    # A busy machine is not what is tested.
    monkeypatch.setattr(Writer, "timeout_s", 600.0)
    opened = _sqlite(tmp_path, clock) if request.param == "sqlite" else _postgres(migrated_url(), clock)
    yield opened
    await opened.close()


def _sqlite(folder: Path, clock: Clock) -> Store:
    path = folder / "store.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection)
    fill_sqlite(connection, AMOUNTS)
    connection.close()
    return open_store(path, clock=clock)


def _postgres(url: str, clock: Clock) -> Any:
    from taskgate.store.postgres.connection import connect
    from taskgate.store.postgres.inspection import migrate as migrate_postgres
    from taskgate.store.postgres.store import open_store as open_postgres

    with connect(url, "taskgate tests", statement_ms=600_000) as connection:
        migrate_postgres(connection)
        fill_postgres(connection, AMOUNTS)
    return open_postgres(url, owner="gw_first", clock=clock)


class Sweeps:
    """What each portion did."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.expired: list[str] = []
        self.largest: dict[str, float] = defaultdict(float)

    async def portions(self, count: int) -> bool:
        swept = await sweep(self._store, count)
        self.expired += [task.id for task in swept.expired]
        for name in ("tasks", "events", "keys", "approvals"):
            self.largest[name] = max(self.largest[name], getattr(swept, name) / count)
        return swept.more


async def _nothing() -> None:
    return


async def test_a_backlog_of_any_size_is_deleted_in_small_portions(store: Store, clock: Clock) -> None:
    ended = AMOUNTS.tasks * 95 // 100
    gone_before = AMOUNTS.tasks // 10 - AMOUNTS.tasks * 5 // 1000 * 10
    sweeps = Sweeps(store)
    retention = Retention((sweeps.portions,), _nothing, lambda: 60.0, lambda: 0.0)
    await retention.catch_up()
    assert store.state.deletion.spent_s > 0
    assert len(sweeps.expired) == len(set(sweeps.expired)) > (ended - gone_before) * 0.9
    clock.now_ms += SHOWN_AS_EXPIRED_MS
    await retention.catch_up()
    assert not (await sweep(store)).more
    left = await store.ask(TasksPage(None, limit=1_000, include_expired=True))
    assert left.tasks
    assert not [task for task in left.tasks if task.state.is_terminal]
    assert sweeps.largest["tasks"] <= 2 * TASKS_PER_PORTION
    assert max(sweeps.largest["events"], sweeps.largest["keys"]) == ROWS_PER_PORTION
    assert sweeps.largest["approvals"] <= TASKS_PER_PORTION


async def test_two_gateways_expire_each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both begin with the same ones, as before they have seen each other."""
    from taskgate.store.postgres.presence import Presence

    monkeypatch.setattr(Presence, "share", lambda _: (0, 1))
    clock, url = Clock(), migrated_url()
    first = _postgres(url, clock)
    from taskgate.store.postgres.store import open_store as open_postgres

    second = open_postgres(url, owner="gw_second", clock=clock)
    both = [Sweeps(first), Sweeps(second)]
    await asyncio.gather(*(Retention((one.portions,), _nothing, lambda: 60.0, lambda: 0.0).catch_up() for one in both))
    expired = both[0].expired + both[1].expired
    assert len(expired) == len(set(expired)) > AMOUNTS.tasks // 2
    received = Counter[str]()
    for number in range(AMOUNTS.callers):
        page = await first.ask(EventsAfter(f"acme/user-{number:06d}", 0))
        received.update(event.data["task_id"] for event in page.events if event.kind == "task_expired")
    assert received
    assert max(received.values()) == 1
    await first.close()
    await second.close()


async def test_each_gateway_expires_its_share_while_both_live() -> None:
    """Otherwise they would all begin with the same tasks and wait for each other."""

    from taskgate.store.postgres.store import open_store as open_postgres

    clock, url = Clock(), migrated_url()
    first = _postgres(url, clock)
    second = open_postgres(url, owner="gw_second", clock=clock)
    async with asyncio.timeout(60):
        while {first.engine.presence.share(), second.engine.presence.share()} != {(0, 2), (1, 2)}:
            await asyncio.sleep(0.05)
    found = [await one.ask(Expiring(10_000)) for one in (first, second)]
    ids = [{task.id for task, _ in each} for each in found]
    assert not ids[0] & ids[1]
    assert min(map(len, ids)) > AMOUNTS.tasks // 6
    await first.close()
    await second.close()


# The audit log.


async def _keeper(tmp_path: Path, rows: int, export: Path | None = None) -> tuple[Any, AuditKeeper]:
    store = open_store(tmp_path / "log.db")
    keeper = AuditKeeper(store, AuditAnchor(anchor_path(tmp_path / "log.db"), audit_key(SECRET)), export)
    await keeper.start()
    await asyncio.gather(*(store.do(RecordAudit(AuditEntry(0, f"row {number}"))) for number in range(rows)))
    return store, keeper


async def test_old_audit_rows_are_deleted_until_none_is_left(tmp_path: Path) -> None:
    store, keeper = await _keeper(tmp_path, 3 * FORGET_AT_ONCE)
    await keeper.maintain()
    counts = []
    while await keeper.forget(-60_000):
        counts.append(len(await store.ask(AuditRows(0, 10_000))))
    assert len(await store.ask(AuditRows(0, 10_000))) == 1
    assert all(before - after <= FORGET_AT_ONCE for before, after in itertools.pairwise(counts))
    await keeper.close()
    await store.close()


async def test_rows_that_could_not_be_exported_are_not_deleted(tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    store, keeper = await _keeper(tmp_path, 20, export)
    export.mkdir()
    await keeper.maintain()
    while await keeper.forget(-60_000):
        pass
    assert len(await store.ask(AuditRows(0, 100))) >= 20
    export.rmdir()
    await store.do(RecordAudit(AuditEntry(0, "another")))
    await keeper.maintain()
    while await keeper.forget(-60_000):
        pass
    assert len(await store.ask(AuditRows(0, 100))) == 1
    assert export.read_bytes().count(b"\n") >= 20
    await keeper.close()
    await store.close()
