"""What is known about principals beyond the configuration, in the store that all gateways share: roles of issuers' subjects as
they were last proved, and credentials that were revoked before their time.

The configuration knows the roles of its own tokens. Whoever an issuer vouches for is known from the last credential that was
verified, so that an approval or a task that waits is judged by who they are and not by what a request still carries. Read often and
by everybody, so all of it is in memory; changes of other gateways arrive within seconds.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from taskgate.core.audit import AuditEntry
from taskgate.core.governance.approval import Approver
from taskgate.core.identity import GATEWAY_ROLES, Identity
from taskgate.gateway.plan.plan import Plan
from taskgate.ports.store import CONSOLE_SESSION, IdentityRecord, Store

PERSON: Final = "person"
REVOKED: Final = "revoked"
MOST_PEOPLE: Final = 50_000
KEPT_MS: Final = 30 * 24 * 3_600_000
RENEW_MS: Final = 24 * 3_600_000
FOR_EVER_MS: Final = 2**53


class _Person(msgspec.Struct, frozen=True):
    roles: list[str]


class Revoked(msgspec.Struct, frozen=True):
    """`at_ms`: credentials of an issuer's subject that were issued until then are refused."""

    by: str
    at_ms: int
    reason: str = ""


class KnownPeople:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._roles: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._approvers: dict[str, Approver] = {}
        self._noted_ms: dict[str, int] = {}
        self._revoked: dict[str, Revoked] = {}

    async def load(self) -> None:
        """At the start, and whenever another gateway may have changed something."""
        revoked = await self._store.identity_records(REVOKED)
        self._revoked = {record.name: msgspec.json.decode(record.body, type=Revoked) for record in revoked}
        for record in await self._store.identity_records(PERSON):
            self._put(record.principal, frozenset(msgspec.json.decode(record.body, type=_Person).roles))

    def merged(self, plan: Plan) -> Plan:
        """The plan with everybody who is known; what the configuration says about somebody wins."""
        governing = plan.governing
        known = replace(
            governing,
            roles=ChainMap(dict(governing.roles), self._roles),
            approvers=ChainMap(dict(governing.approvers), self._approvers),
        )
        return replace(plan, governing=known)

    def note(self, identity: Identity) -> None:
        """Somebody's credential was just verified: these are their roles now."""
        principal, now = identity.principal, self._store.now_ms()
        if self._roles.get(principal) == identity.roles and now - self._noted_ms.get(principal, 0) < RENEW_MS:
            return
        before = self._roles.get(principal, frozenset())
        self._put(principal, identity.roles)
        self._noted_ms[principal] = now
        body = msgspec.json.encode(_Person(sorted(identity.roles)))
        kept = IdentityRecord(PERSON, principal, principal, now + KEPT_MS, body)
        # Others must know who may decide; of everybody else they hear when they come.
        self._store.note_identity_record(kept, announce=bool(before & GATEWAY_ROLES or identity.roles & GATEWAY_ROLES))

    def _put(self, principal: str, roles: frozenset[str]) -> None:
        self._roles[principal] = roles
        if roles & GATEWAY_ROLES:
            self._approvers[principal] = Approver(principal, roles)
        else:
            self._approvers.pop(principal, None)
        if len(self._roles) > MOST_PEOPLE:
            gone, _ = self._roles.popitem(last=False)
            self._approvers.pop(gone, None)
            self._noted_ms.pop(gone, None)

    def is_revoked(self, digest: str) -> bool:
        """Whether the token of ours with this digest was revoked."""
        return digest in self._revoked

    def is_recalled(self, identity: Identity) -> bool:
        """Whether an issuer's credential was issued before its subject's credentials were revoked."""
        revoked = self._revoked.get(identity.principal)
        if revoked is None:
            return False
        issued = identity.claims.get("iat")
        return not isinstance(issued, (int, float)) or issued * 1000 <= revoked.at_ms

    async def revoke(self, name: str, principal: str, by: str, reason: str) -> None:
        """`name` is the digest of a token of ours, or the principal whose issuer's credentials are meant."""
        revoked = Revoked(by, self._store.now_ms(), reason)
        entry = AuditEntry(0, "token_revoked", principal, kind="token", decision="revoked", reason=f"by {by}: {reason}")
        body = msgspec.json.encode(revoked)
        kept = IdentityRecord(REVOKED, name, principal, FOR_EVER_MS, body)
        await self._store.keep_identity_record(kept, entry, announce=True)
        self._revoked[name] = revoked
        await self._store.forget_identity_records_of(CONSOLE_SESSION, principal)

    @property
    def revoked(self) -> Mapping[str, Revoked]:
        return self._revoked

    async def forget(self, principal: str) -> None:
        """Somebody's data are erased."""
        self._roles.pop(principal, None)
        self._approvers.pop(principal, None)
        await self._store.forget_identity_records_of(PERSON, principal)
