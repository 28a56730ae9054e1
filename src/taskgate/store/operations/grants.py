"""Standing grants: their rows, and how they are added, revoked and read. The rules are in `core.governance`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.grants import Grant, revoke
from taskgate.ports.topics import GRANTS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.reader import Reader
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

_encode: Final = msgspec.json.Encoder().encode
_decode_grant: Final = msgspec.json.Decoder(Grant).decode


_IN_FORCE: Final = 0
_REVOKED: Final = 1
_FOR_ONE_SCRIPT: Final = 2
"""In force for the calls of one script. Gateways that do not know this limit read only grants with 0, so they ignore such a grant
instead of applying it to every call.
"""


class AddGrant(Operation[None], frozen=True):
    grant: Grant
    audit: AuditEntry | None = None

    @property
    def locks(self) -> Locks:
        return _grant_locks(self.grant.id)

    def run(self, tx: Transaction) -> None:
        _put_grant(tx, self.grant, self.audit, "grant_given")


class RevokeGrant(Operation[Grant | None], frozen=True):
    """Return the revoked grant, or None if there is no grant with this id."""

    grant_id: str
    by: str
    audit: AuditEntry | None = None

    @property
    def locks(self) -> Locks:
        return _grant_locks(self.grant_id)

    def run(self, tx: Transaction) -> Grant | None:
        row = tx.run("find_grant", id=self.grant_id).fetchone()
        if row is None:
            return None
        before = grant_from(row[0])
        after = revoke(before, self.by, tx.now_ms)
        if after is not before:
            _put_grant(tx, after, self.audit, "grant_revoked")
        return after


class FindGrants(Query[tuple[Grant, ...]], frozen=True):
    """The valid grants; with `all_of_them`, revoked and expired ones too."""

    all_of_them: bool = False

    def run(self, reader: Reader) -> tuple[Grant, ...]:
        found = reader.run("all_grants") if self.all_of_them else reader.run("live_grants", now_ms=reader.now_ms)
        return tuple(readable("grants", found, lambda row: grant_from(row[0])))

    def remember(self, answer: tuple[Grant, ...], state: StoreState) -> None:
        if not self.all_of_them:
            state.know_grants(answer)


def standing_grants(tx: Transaction) -> tuple[Grant, ...]:
    """Return the grants that are valid now, including changes by other gateways."""
    return tuple(readable("grants", tx.run("live_grants", now_ms=tx.now_ms), lambda row: grant_from(row[0])))


def grant_columns(grant: Grant) -> dict[str, Any]:
    in_force = _IN_FORCE if grant.script_digest is None else _FOR_ONE_SCRIPT
    revoked = _REVOKED if grant.revoked_at_ms is not None else in_force
    return {"id": grant.id, "until_ms": grant.until_ms, "revoked": revoked, "doc": _encode(grant)}


def grant_from(doc: bytes) -> Grant:
    return _decode_grant(doc)


def _grant_locks(grant_id: str) -> Locks:
    return Locks(names=(f"grant:{grant_id}",))


def _put_grant(tx: Transaction, grant: Grant, audit: AuditEntry | None, event: str) -> None:
    tx.announce(GRANTS, grant.id)
    tx.run("put_grant", **grant_columns(grant))
    RecordAudit(audit if audit is not None else _grant_entry(grant, event, tx.now_ms)).run(tx)


def _grant_entry(grant: Grant, event: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        event=event,
        principal=grant.principal or "",
        scope=grant.scope,
        server=grant.server,
        name=grant.tool,
        arguments_digest=grant.arguments_digest or "",
        approval_id=grant.approval_id,
        approvers=grant.granted_by,
        reason=f"revoked by {grant.revoked_by}" if grant.revoked_at_ms is not None else "",
    )
