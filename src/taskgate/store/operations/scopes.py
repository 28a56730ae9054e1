"""What the store does to scopes handed over at run time: a change and the audit row that proves it, in one transaction."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.ports.store import KeptScope
from taskgate.ports.wakeups import SCOPES
from taskgate.store.operations.audit import record
from taskgate.store.operations.transaction import Transaction


def keep(tx: Transaction, scope: KeptScope, entry: AuditEntry) -> None:
    tx.announce(SCOPES, scope.name)
    tx.run("keep_scope", name=scope.name, expires_ms=scope.expires_ms, body=scope.body)
    record(tx, entry)


def forget(tx: Transaction, name: str, entry: AuditEntry) -> None:
    """Nothing if another gateway has forgotten it already: its end is recorded once."""
    if tx.run("forget_scope", name=name).rowcount == 1:
        tx.announce(SCOPES, name)
        record(tx, entry)
