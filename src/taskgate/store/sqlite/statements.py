"""The SQL of this adapter, by name."""

from __future__ import annotations

from typing import Final

from taskgate.store.named_queries import read_migrations, read_queries

SQL: Final = read_queries(__package__)


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)
