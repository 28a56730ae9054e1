"""Sessions as rows (`ports.session_store`). Only this adapter has them: a SQLite store has no second gateway to find them.

A change of home is one statement that names the former home and looks at its lease, so of two gateways that adopt the same session
at once one finds the row changed. Opening and ending are announced, for gateways that remember which sessions exist.
"""

from __future__ import annotations

from typing import Any

from taskgate.ports.session_store import KeptSession
from taskgate.ports.wakeups import SESSIONS
from taskgate.store.operations.transaction import Locks, Transaction
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.statements import SQL
from taskgate.store.views.base import StoreView


class SessionRows(StoreView):
    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine)
        self._postgres = engine

    @property
    def is_fresh(self) -> bool:
        return self._postgres.presence.is_fresh

    @property
    def unbroken_since(self) -> float:
        return self._postgres.presence.gapless_since

    @property
    def owner(self) -> str:
        return self.ownership.owner

    def is_alive(self, owner: str) -> bool:
        return self._postgres.presence.is_alive(owner)

    def address_of(self, owner: str) -> str:
        seen = self._postgres.presence.replicas
        return next((replica.internal for replica in seen if replica.owner == owner), "")

    async def open_session(self, session: KeptSession) -> None:
        def opened(tx: Transaction) -> None:
            values = {"id": session.id, "principal": session.principal, "scope": session.scope, "body": session.body}
            tx.run("open_session", home=tx.ownership.owner, now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)

        await self._write_or_fault(opened, _of(session.id))

    async def find_session(self, session_id: str) -> KeptSession | None:
        rows = await self._rows("find_session", id=session_id)
        return KeptSession(*rows[0]) if rows else None

    async def adopt_session(self, session_id: str, former: str) -> KeptSession | None:
        def adopted(tx: Transaction) -> KeptSession | None:
            values = {"id": session_id, "former": former, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            row = tx.run("adopt_session", **values).fetchone()
            return KeptSession(*row) if row is not None else None

        return await self._write_or_fault(adopted, _of(session_id))

    async def change_session(self, session_id: str, body: bytes) -> bool:
        def changed(tx: Transaction) -> bool:
            values = {"id": session_id, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            return tx.run("change_session", body=body, **values).rowcount == 1

        return await self._write_or_fault(changed, _of(session_id))

    async def end_session(self, session_id: str) -> None:
        def ended(tx: Transaction) -> None:
            tx.run("end_session", id=session_id, home=tx.ownership.owner)
            tx.announce(SESSIONS, session_id)

        await self._write_or_fault(ended, _of(session_id))

    async def sessions_elsewhere(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_elsewhere", home=self.ownership.owner))

    async def own_sessions(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_of_home", home=self.ownership.owner))

    async def sessions_seen(self, forget_before_ms: int) -> None:
        def seen(tx: Transaction) -> None:
            tx.run("sessions_seen", home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.run("forget_sessions", before_ms=forget_before_ms)

        await self._write_or_fault(seen)

    async def _rows(self, name: str, **values: str) -> list[tuple[Any, ...]]:
        return await self._postgres.readers.on_connection(
            lambda connection: connection.cursor(binary=True).execute(SQL[name], values).fetchall()
        )


def _of(session_id: str) -> Locks:
    return Locks(names=(f"session:{session_id}",))
