from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_under_test import ADAPTERS, SqliteUnderTest

from taskgate.ports.store import Store


@pytest.fixture(params=list(ADAPTERS))
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteUnderTest:
    return ADAPTERS[request.param](tmp_path)


@pytest.fixture
async def store(adapter: SqliteUnderTest) -> AsyncIterator[Store]:
    opened = adapter.open()
    yield opened
    await opened.close()
