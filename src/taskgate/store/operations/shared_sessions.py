"""Sessions of stateful callers that gateways of one store share.

The *home* of a session is the gateway that has its live state: upstream links, streams, requests in flight. Other gateways forward
to a home that is alive; the session of a dead one is adopted by one gateway only: a session changes its home with one statement
that names the former home and checks its lease. Opening and ending a session is announced to gateways that cache which sessions
exist. The body is opaque to the store.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from taskgate.core.identity.identity import tenant_of
from taskgate.ports.topics import SESSIONS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.rows import record_from
from taskgate.store.transaction import Transaction

CONVERSATION: Final = "conversation "
"""Prefix of the ids of rows that store the home of a stateless client's conversation, before the name of its stream."""
_HELD_WITHIN_MS: Final = 120_000
"""A session counts towards limits if its gateway has confirmed it within this time."""


class KeptSession(msgspec.Struct, frozen=True):
    """A session as stored. `moves` counts the changes of its home."""

    id: str
    principal: str
    scope: str
    home: str
    moves: int
    body: bytes
    internal: str | None = None
    """The address at which other gateways reach the home; None if it has no lease (any more)."""


class SessionLimits(NamedTuple):
    """How many sessions one caller, known to limits as `limited_as`, and all callers of its tenant may have at all gateways."""

    limited_as: str
    of_caller: int
    of_tenant: int | None


class TooManySessions(StrEnum):
    """Which limit is reached."""

    OF_CALLER = "caller"
    OF_TENANT = "tenant"


class OpenSession(Operation[TooManySessions | None], frozen=True):
    """Store a session, or return the limit that prevents it."""

    session: KeptSession
    limits: SessionLimits

    @property
    def locks(self) -> Locks:
        # Another gateway that opens a session for the same caller or tenant waits for this commit and counts its row.
        tenant = tenant_of(self.session.principal)
        counted = (f"sessions of {self.limits.limited_as}", *((f"sessions of tenant {tenant}",) if tenant else ()))
        return Locks(names=(*_session_locks(self.session.id).names, *counted))

    def run(self, tx: Transaction) -> TooManySessions | None:
        session, tenant = self.session, tenant_of(self.session.principal)
        if full := _too_many(tx, tenant, self.limits):
            return full
        values = {"id": session.id, "principal": session.principal, "scope": session.scope, "body": session.body}
        values |= {"tenant": tenant, "limited_as": self.limits.limited_as, "home": tx.ownership.owner}
        tx.run("open_session", now_ms=tx.now_ms, **values)
        tx.announce(SESSIONS, session.id)
        return None


class BeginConversation(Operation[None], frozen=True):
    """Become the home of a conversation, unless it has one. It counts towards no limit."""

    session: KeptSession

    @property
    def locks(self) -> Locks:
        return _session_locks(self.session.id)

    def run(self, tx: Transaction) -> None:
        session = self.session
        values = {"id": session.id, "principal": session.principal, "scope": session.scope}
        tx.run("begin_conversation", home=tx.ownership.owner, now_ms=tx.now_ms, **values)
        tx.announce(SESSIONS, session.id)


class FindSession(Query[KeptSession | None], frozen=True):
    session_id: str

    def run(self, reader: Reader) -> KeptSession | None:
        row = reader.run("find_session", id=self.session_id).fetchone()
        return None if row is None else record_from(KeptSession, row)


class AdoptSession(Operation[KeptSession | None], frozen=True):
    """Become its home if `former` still is and is dead. Returns None otherwise; then its home must be read again."""

    session_id: str
    former: str

    @property
    def locks(self) -> Locks:
        return _session_locks(self.session_id)

    def run(self, tx: Transaction) -> KeptSession | None:
        values = {"id": self.session_id, "former": self.former, "home": tx.ownership.owner, "now_ms": tx.now_ms}
        row = tx.run("adopt_session", **values).fetchone()
        return None if row is None else record_from(KeptSession, row)


class ChangeSession(Operation[bool], frozen=True):
    """Store a new body. False if this gateway is not its home (any more)."""

    session_id: str
    body: bytes

    @property
    def locks(self) -> Locks:
        return _session_locks(self.session_id)

    def run(self, tx: Transaction) -> bool:
        values = {"id": self.session_id, "home": tx.ownership.owner, "now_ms": tx.now_ms}
        return tx.run("change_session", body=self.body, **values).rowcount == 1


class EndSession(Operation[None], frozen=True):
    """Delete it if this gateway is its home."""

    session_id: str

    @property
    def locks(self) -> Locks:
        return _session_locks(self.session_id)

    def run(self, tx: Transaction) -> None:
        tx.run("end_session", id=self.session_id, home=tx.ownership.owner)
        tx.announce(SESSIONS, self.session_id)


class ReleaseSession(Operation[None], frozen=True):
    """Give up being its home: the next gateway that gets a request adopts it."""

    session_id: str

    @property
    def locks(self) -> Locks:
        return _session_locks(self.session_id)

    def run(self, tx: Transaction) -> None:
        tx.run("release_session", id=self.session_id, home=tx.ownership.owner, now_ms=tx.now_ms)
        tx.announce(SESSIONS, self.session_id)


class ReleaseSessions(Operation[None], frozen=True):
    """The same for all sessions of this gateway."""

    def run(self, tx: Transaction) -> None:
        tx.run("release_sessions", home=tx.ownership.owner, now_ms=tx.now_ms)
        tx.announce(SESSIONS, tx.ownership.owner)


class SessionsElsewhere(Query[frozenset[str]], frozen=True):
    """The ids of all sessions whose home is another gateway, alive or dead."""

    def run(self, reader: Reader) -> frozenset[str]:
        return frozenset(row[0] for row in reader.run("sessions_elsewhere", home=reader.ownership.owner))


class OwnSessions(Query[frozenset[str]], frozen=True):
    """The ids of sessions whose home is this gateway."""

    def run(self, reader: Reader) -> frozenset[str]:
        return frozenset(row[0] for row in reader.run("sessions_of_home", home=reader.ownership.owner))


class ConfirmSessions(Operation[None], frozen=True):
    """Confirm the sessions of this gateway, and delete those that no gateway has confirmed since that time."""

    forget_before_ms: int

    def run(self, tx: Transaction) -> None:
        tx.run("sessions_seen", home=tx.ownership.owner, now_ms=tx.now_ms)
        tx.run("forget_sessions", before_ms=self.forget_before_ms)


def _too_many(tx: Transaction, tenant: str, limits: SessionLimits) -> TooManySessions | None:
    since_ms = tx.now_ms - _HELD_WITHIN_MS
    values = {"limited_as": limits.limited_as, "since_ms": since_ms, "maximum": limits.of_caller}
    if tx.run("sessions_of_caller", **values).fetchone()[0] >= limits.of_caller:
        return TooManySessions.OF_CALLER
    if not tenant or limits.of_tenant is None:
        return None
    found = tx.run("sessions_of_tenant", tenant=tenant, since_ms=since_ms, maximum=limits.of_tenant).fetchone()[0]
    return TooManySessions.OF_TENANT if found >= limits.of_tenant else None


def _session_locks(session_id: str) -> Locks:
    return Locks(names=(f"session:{session_id}",))
