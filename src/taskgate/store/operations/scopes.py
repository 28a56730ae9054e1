"""Operations on temporary scopes, each in one transaction with its audit row."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.scope_store import KeptScope
from taskgate.ports.topics import SCOPES
from taskgate.store.operations.audit import record_audit
from taskgate.store.transaction import Transaction


def keep_scope(tx: Transaction, scope: KeptScope, entry: AuditEntry) -> None:
    tx.announce(SCOPES, scope.name)
    tx.run("keep_scope", name=scope.name, expires_ms=scope.expires_ms, body=scope.body)
    record_audit(tx, entry)


def forget_scope(tx: Transaction, name: str, entry: AuditEntry) -> None:
    """Delete a scope. Does nothing if another gateway has deleted it already, so that its end is recorded once."""
    if tx.run("forget_scope", name=name).rowcount == 1:
        tx.announce(SCOPES, name)
        record_audit(tx, entry)
