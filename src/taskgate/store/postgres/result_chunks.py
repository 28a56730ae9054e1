"""Results that are too long for one row: stored in pieces, committed before the transaction that refers to them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from taskgate.store.postgres.connection import Connection
from taskgate.store.postgres.readers import Readers
from taskgate.store.postgres.statements import SQL

CHUNK: Final = 1 << 20
_ORPHAN_AGE_MS: Final = 600_000


class ResultChunks:
    """Implements `engine.LargeResults` with the table `result_chunks`."""

    def __init__(self, connections: Readers, now_ms: Callable[[], int]) -> None:
        self._connections, self._now_ms = connections, now_ms

    async def write(self, task_id: str, body: bytes) -> str:
        name = f"{task_id}.{secrets.token_hex(8)}"
        at = self._now_ms()

        def put(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute("DELETE FROM result_chunks WHERE name = %s", [name])
                for number, start in enumerate(range(0, len(body), CHUNK)):
                    cursor.execute(
                        "INSERT INTO result_chunks (name, number, created_ms, bytes) VALUES (%s, %s, %s, %s)",
                        [name, number, at, body[start : start + CHUNK]],
                    )

        await self._connections.on_connection(put)
        return name

    async def read(self, name: str) -> bytes:
        def get(connection: Connection) -> bytes:
            query = "SELECT bytes FROM result_chunks WHERE name = %s ORDER BY number"
            return b"".join(row[0] for row in connection.cursor(binary=True).execute(query, [name]))

        return await self._connections.on_connection(get)

    async def remove(self, names: list[str]) -> int:
        if not names:
            return 0

        def drop(connection: Connection) -> int:
            connection.execute("DELETE FROM result_chunks WHERE name = ANY(%s)", [names])
            return len(names)

        return await self._connections.on_connection(drop)

    async def remove_orphans(self) -> int:
        before = self._now_ms() - _ORPHAN_AGE_MS
        found = await self._connections.on_connection(
            lambda connection: connection.execute(SQL["orphan_chunks"], {"before_ms": before}).fetchall()
        )
        return await self.remove([row[0] for row in found])
