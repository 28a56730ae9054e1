"""What the store does to standing grants, each inside one transaction. The rules are in `core.governance.decision`."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.core.governance.decision import Grant, revoke
from taskgate.ports.replicas import GRANTS
from taskgate.store.operations import rows
from taskgate.store.operations.audit import record
from taskgate.store.operations.transaction import Transaction


def give(tx: Transaction, grant: Grant, audit: AuditEntry | None) -> None:
    _put(tx, grant, audit, "grant_given")


def take_back(tx: Transaction, grant_id: str, by: str, audit: AuditEntry | None) -> Grant | None:
    """The grant as it is after this, or None if there is none of this name."""
    row = tx.run("find_grant", id=grant_id).fetchone()
    if row is None:
        return None
    before = rows.grant_from(row[0])
    after = revoke(before, by, tx.now_ms)
    if after is not before:
        _put(tx, after, audit, "grant_revoked")
    return after


def standing(tx: Transaction) -> tuple[Grant, ...]:
    """The grants that stand at this moment, whoever changed them."""
    return tuple(rows.grant_from(doc) for (doc,) in tx.run("live_grants", now_ms=tx.now_ms))


def _put(tx: Transaction, grant: Grant, audit: AuditEntry | None, event: str) -> None:
    tx.announce(GRANTS, grant.id)
    tx.run("put_grant", **rows.grant_columns(grant))
    record(tx, audit if audit is not None else _entry(grant, event, tx.now_ms))


def _entry(grant: Grant, event: str, at_ms: int) -> AuditEntry:
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
