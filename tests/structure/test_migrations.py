"""Two changes of a store's schema that were made at the same time must not both land under one number."""

from __future__ import annotations

import pytest

from taskgate.store.sql_files import read_migrations


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_migrations_of_a_store_are_numbered_without_a_gap(store: str) -> None:
    assert read_migrations(f"taskgate.store.{store}")
