"""Principals beyond the configuration: roles of issuers' subjects, and revoked credentials.

The configuration defines the roles of its own tokens. Roles of an issuer's subject are those of its last verified credential, so
that a waiting approval or task is evaluated with the current roles and not with those in its request. Everything is held in
memory, because it is read for each call; changes by other gateways on the same store arrive within seconds.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.identity import Identity
from taskgate.core.identity.roles import GATEWAY_ROLES
from taskgate.gateway.events import CredentialsChanged, EventHub
from taskgate.gateway.governing import Governing
from taskgate.gateway.plan import Plan
from taskgate.ports.store import Store
from taskgate.store.operations.identity_records import (
    CONSOLE_SESSION,
    PERSON,
    REVOKED,
    ForgetIdentityRecordsOf,
    IdentityRecord,
    IdentityRecords,
    KeepIdentityRecord,
)
from taskgate.telemetry.damaged_rows import decoded

T = TypeVar("T")

MAX_PEOPLE: Final = 50_000
KEPT_MS: Final = 30 * 24 * 3_600_000
RENEW_MS: Final = 24 * 3_600_000
NOTED_WITHIN_MS: Final = 60_000
FOR_EVER_MS: Final = 2**53


class _Person(msgspec.Struct, frozen=True):
    roles: list[str]


class Revoked(msgspec.Struct, frozen=True):
    """Credentials of an issuer's subject that were issued until `at_ms` are refused."""

    by: str
    at_ms: int
    reason: str = ""


class _Approvers(Mapping[str, Approver]):
    """The approvers of the configuration, and people who logged in at an issuer: each with all of their names."""

    def __init__(self, governing: Governing, known: dict[str, Approver]) -> None:
        self._governing = governing
        self._named = ChainMap(dict(governing.approvers), known)

    def __getitem__(self, name: str) -> Approver:
        return self._governing.person(self._named[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


class KnownPeople:
    def __init__(self, store: Store, events: EventHub) -> None:
        self._store = store
        self._events = events
        self._roles: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._approvers: dict[str, Approver] = {}
        self._noted_ms: dict[str, int] = {}
        self._revoked: dict[str, Revoked] = {}
        self._revoked_ms: dict[str, int] = {}
        """When a credential of each principal was last revoked."""

    async def load(self) -> None:
        """Load everything: at the start, and when another gateway may have changed it."""
        revoked = await self._store.ask(IdentityRecords(REVOKED))
        people = await self._store.ask(IdentityRecords(PERSON))
        before = (self._revoked, dict(self._approvers))
        self._revoked = {record.name: self._revocation(record) for record in revoked}
        self._revoked_ms = {}
        for record in revoked:
            self._note_revoked(record.principal, self._revoked[record.name])
        for record in people:
            # Without its record a principal has no roles until the next verified credential.
            if (person := _decoded(record, _Person)) is not None:
                self._put(record.principal, frozenset(person.roles))
        # These were erased at another gateway, except those noted here so recently that they may not be stored yet.
        since_ms = self._store.now_ms() - NOTED_WITHIN_MS
        for principal in self._roles.keys() - {record.principal for record in people}:
            if self._noted_ms.get(principal, 0) < since_ms:
                self._drop(principal)
        if before != (self._revoked, self._approvers):
            self._events.publish(CredentialsChanged())

    def _revocation(self, record: IdentityRecord) -> Revoked:
        """A damaged record revokes everything that was issued until now: when it was written is unknown."""
        return _decoded(record, Revoked) or Revoked("", self._store.now_ms(), "the record is damaged")

    def merged(self, plan: Plan) -> Plan:
        """Return the plan with all known principals added. The configuration takes precedence."""
        governing = plan.governing
        known = replace(
            governing,
            roles=ChainMap(dict(governing.roles), self._roles),
            approvers=_Approvers(governing, self._approvers),
        )
        return replace(plan, governing=known)

    def note(self, identity: Identity) -> None:
        """Update a principal's roles from a credential that was just verified."""
        principal, now = identity.principal, self._store.now_ms()
        if self._roles.get(principal) == identity.roles and now - self._noted_ms.get(principal, 0) < RENEW_MS:
            return
        before = self._roles.get(principal, frozenset())
        self._put(principal, identity.roles)
        if before & GATEWAY_ROLES and before != identity.roles:
            self._events.publish(CredentialsChanged())
        self._noted_ms[principal] = now
        body = msgspec.json.encode(_Person(sorted(identity.roles)))
        kept = IdentityRecord(kind=PERSON, name=principal, principal=principal, expires_ms=now + KEPT_MS, body=body)
        # Announce approvers only: other gateways learn of other principals from their own requests.
        self._store.defer(
            KeepIdentityRecord(kept, announce=bool(before & GATEWAY_ROLES or identity.roles & GATEWAY_ROLES))
        )

    def _put(self, principal: str, roles: frozenset[str]) -> None:
        self._roles[principal] = roles
        if roles & GATEWAY_ROLES:
            self._approvers[principal] = Approver(principal, roles)
        else:
            self._approvers.pop(principal, None)
        if len(self._roles) > MAX_PEOPLE:
            self._drop(next(iter(self._roles)))

    def _drop(self, principal: str) -> None:
        self._roles.pop(principal, None)
        self._approvers.pop(principal, None)
        self._noted_ms.pop(principal, None)

    def is_revoked(self, digest: str) -> bool:
        """Return whether the configured token with this digest was revoked."""
        return digest in self._revoked

    def is_recalled(self, identity: Identity) -> bool:
        """Return whether an issuer's credential was issued before its subject's credentials were revoked."""
        revoked = self._revoked.get(identity.principal)
        if revoked is None:
            return False
        issued = identity.claims.get("iat")
        return not isinstance(issued, (int, float)) or issued * 1000 <= revoked.at_ms

    def was_revoked_since(self, principal: str, since_ms: int) -> bool:
        """Return whether a credential of this principal was revoked at or after this time, by the store's clock."""
        return self._revoked_ms.get(principal, -1) >= since_ms

    def _note_revoked(self, principal: str, revoked: Revoked) -> None:
        self._revoked_ms[principal] = max(revoked.at_ms, self._revoked_ms.get(principal, -1))

    async def revoke(self, name: str, principal: str, by: str, reason: str) -> None:
        """Revoke a token or a subject's credentials. `name` is the digest of a configured token, or the principal."""
        revoked = Revoked(by, self._store.now_ms(), reason)
        entry = AuditEntry(0, "token_revoked", principal, kind="token", decision="revoked", reason=f"by {by}: {reason}")
        body = msgspec.json.encode(revoked)
        kept = IdentityRecord(kind=REVOKED, name=name, principal=principal, expires_ms=FOR_EVER_MS, body=body)
        await self._store.do(KeepIdentityRecord(kept, entry, announce=True))
        self._revoked[name] = revoked
        self._note_revoked(principal, revoked)
        self._events.publish(CredentialsChanged())
        await self._store.do(ForgetIdentityRecordsOf(CONSOLE_SESSION, principal))
        self._events.publish(CredentialsChanged())

    @property
    def revoked(self) -> Mapping[str, Revoked]:
        return self._revoked

    async def forget(self, principal: str) -> None:
        """Erase a principal's data."""
        self._drop(principal)
        await self._store.do(ForgetIdentityRecordsOf(PERSON, principal))


def check_record(kind: str, body: bytes) -> None:
    """Raise an error if a record cannot be read. Other kinds have bodies of other modules."""
    if (wanted := {PERSON: _Person, REVOKED: Revoked}.get(kind)) is not None:
        msgspec.json.decode(body, type=wanted)


def _decoded(record: IdentityRecord, wanted: type[T]) -> T | None:
    return decoded("identity_records", f"{record.kind} {record.name}", record.body, wanted)
