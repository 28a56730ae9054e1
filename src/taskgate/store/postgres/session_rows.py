"""Sessions as rows that all gateways of a store share (`ports.shared_sessions`).

A session changes its home with one statement that names the former home and checks its lease, so only one of two gateways that
adopt a session at the same time succeeds. Opening and ending a session is announced to gateways that cache which sessions exist.
"""

from __future__ import annotations

from typing import Final

from taskgate.core.identity.identity import tenant_of
from taskgate.ports.shared_sessions import KeptSession, SessionLimits, TooManySessions
from taskgate.ports.topics import SESSIONS
from taskgate.store.locks import Locks
from taskgate.store.postgres.gateway_rows import GatewayRows
from taskgate.store.transaction import Transaction

_HELD_WITHIN_MS: Final = 120_000
"""A session counts towards limits if its gateway has confirmed it within this time."""


class SessionRows(GatewayRows):
    @property
    def is_fresh(self) -> bool:
        return self._postgres.presence.is_fresh

    @property
    def may_declare_dead(self) -> bool:
        return self._postgres.presence.may_declare_dead

    @property
    def unbroken_since(self) -> float:
        return self._postgres.presence.gapless_since

    def address_of(self, owner: str) -> str:
        for replica in self._postgres.presence.replicas:
            if replica.owner == owner:
                return replica.internal
        return ""

    async def open_session(self, session: KeptSession, limits: SessionLimits) -> TooManySessions | None:
        tenant = tenant_of(session.principal)

        def opened(tx: Transaction) -> TooManySessions | None:
            if full := _too_many(tx, tenant, limits):
                return full
            values = {"id": session.id, "principal": session.principal, "scope": session.scope, "body": session.body}
            values |= {"tenant": tenant, "limited_as": limits.limited_as, "home": tx.ownership.owner}
            tx.run("open_session", now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)
            return None

        # Another gateway that opens a session for the same caller or tenant waits for this commit and counts its row.
        counted = (f"sessions of {limits.limited_as}", *((f"sessions of tenant {tenant}",) if tenant else ()))
        return await self._write_or_fault(opened, Locks(names=(*_locks(session.id).names, *counted)))

    async def begin_conversation(self, session: KeptSession) -> None:
        def began(tx: Transaction) -> None:
            values = {"id": session.id, "principal": session.principal, "scope": session.scope}
            tx.run("begin_conversation", home=tx.ownership.owner, now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)

        await self._write_or_fault(began, _locks(session.id))

    async def find_session(self, session_id: str) -> KeptSession | None:
        rows = await self._rows("find_session", id=session_id)
        return KeptSession(*rows[0]) if rows else None

    async def adopt_session(self, session_id: str, former: str) -> KeptSession | None:
        def adopted(tx: Transaction) -> KeptSession | None:
            values = {"id": session_id, "former": former, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            row = tx.run("adopt_session", **values).fetchone()
            return KeptSession(*row) if row is not None else None

        return await self._write_or_fault(adopted, _locks(session_id))

    async def change_session(self, session_id: str, body: bytes) -> bool:
        def changed(tx: Transaction) -> bool:
            values = {"id": session_id, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            return tx.run("change_session", body=body, **values).rowcount == 1

        return await self._write_or_fault(changed, _locks(session_id))

    async def end_session(self, session_id: str) -> None:
        def ended(tx: Transaction) -> None:
            tx.run("end_session", id=session_id, home=tx.ownership.owner)
            tx.announce(SESSIONS, session_id)

        await self._write_or_fault(ended, _locks(session_id))

    async def release_session(self, session_id: str) -> None:
        def released(tx: Transaction) -> None:
            tx.run("release_session", id=session_id, home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.announce(SESSIONS, session_id)

        await self._write_or_fault(released, _locks(session_id))

    async def release_sessions(self) -> None:
        def released(tx: Transaction) -> None:
            tx.run("release_sessions", home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.announce(SESSIONS, tx.ownership.owner)

        await self._write_or_fault(released)

    async def sessions_elsewhere(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_elsewhere", home=self.ownership.owner))

    async def own_sessions(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_of_home", home=self.ownership.owner))

    async def sessions_seen(self, forget_before_ms: int) -> None:
        def seen(tx: Transaction) -> None:
            tx.run("sessions_seen", home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.run("forget_sessions", before_ms=forget_before_ms)

        await self._write_or_fault(seen)


def _too_many(tx: Transaction, tenant: str, limits: SessionLimits) -> TooManySessions | None:
    since_ms = tx.now_ms - _HELD_WITHIN_MS
    values = {"limited_as": limits.limited_as, "since_ms": since_ms, "maximum": limits.of_caller}
    if tx.run("sessions_of_caller", **values).fetchone()[0] >= limits.of_caller:
        return TooManySessions.OF_CALLER
    if not tenant or limits.of_tenant is None:
        return None
    found = tx.run("sessions_of_tenant", tenant=tenant, since_ms=since_ms, maximum=limits.of_tenant).fetchone()[0]
    return TooManySessions.OF_TENANT if found >= limits.of_tenant else None


def _locks(session_id: str) -> Locks:
    return Locks(names=(f"session:{session_id}",))
