from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.contracts.store_under_test import PostgresUnderTest, SqliteUnderTest, StoreUnderTest
from tests.harness.postgres import migrated_url
from tests.harness.sqlite_schema import migrate_by_copy

from taskgate.ports.store import Store
from taskgate.store.sqlite import store as sqlite_store


@pytest.fixture(params=["sqlite", "postgres"])
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    if request.param == "sqlite":
        return SqliteUnderTest(tmp_path)
    return PostgresUnderTest(migrated_url())


@pytest.fixture(autouse=True)
def new_sqlite_stores_get_a_copy_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "migrate", migrate_by_copy)


@pytest.fixture(autouse=True)
def whose_clock_stands_may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease ends by real time, and on a busy machine it may do so at any moment. Tests with their own clock do not test
    that; those that do open their stores without one."""
    if find_spec("psycopg") is None:
        return
    from taskgate.store.postgres.engine import PostgresEngine

    has_lease = PostgresEngine.may_send

    def may_send(engine: PostgresEngine) -> bool:
        return engine.presence._clock is not None or has_lease(engine)

    monkeypatch.setattr(PostgresEngine, "may_send", may_send)


@pytest.fixture
async def store(adapter: StoreUnderTest) -> AsyncIterator[Store]:
    opened = adapter.open()
    yield opened
    await opened.close()
