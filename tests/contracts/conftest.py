from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_under_test import PostgresUnderTest, SqliteUnderTest, StoreUnderTest
from tests.harness.postgres import fresh_url

from taskgate.ports.store import Store


@pytest.fixture(params=["sqlite", "postgres"])
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    if request.param == "sqlite":
        return SqliteUnderTest(tmp_path)
    return PostgresUnderTest(fresh_url())


@pytest.fixture
async def store(adapter: StoreUnderTest) -> AsyncIterator[Store]:
    opened = adapter.open()
    yield opened
    await opened.close()
