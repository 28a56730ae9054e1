"""Access to rows that belong to one gateway each: sessions and open questions. Not needed with SQLite (one gateway)."""

from __future__ import annotations

from typing import Any

from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.statements import SQL
from taskgate.store.views.base import StoreView


class GatewayRows(StoreView):
    """Rows that each belong to one gateway, their home."""

    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine)
        self._postgres = engine

    @property
    def owner(self) -> str:
        return self.ownership.owner

    def is_alive(self, owner: str) -> bool:
        return self._postgres.presence.is_alive(owner)

    async def _rows(self, name: str, **values: str) -> list[tuple[Any, ...]]:
        return await self._postgres.readers.on_connection(
            lambda connection: connection.cursor(binary=True).execute(SQL[name], values).fetchall()
        )
