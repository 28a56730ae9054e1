"""What the store does to scopes handed over at run time and to records of identities: a change and the audit row that proves it,
in one transaction.
"""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.ports.replicas import SCOPES, TOKENS
from taskgate.ports.store import IdentityRecord, KeptScope
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


def keep_identity(tx: Transaction, kept: IdentityRecord, entry: AuditEntry | None, *, announce: bool) -> None:
    values = {"kind": kept.kind, "name": kept.name, "principal": kept.principal}
    tx.run("keep_identity_record", expires_ms=kept.expires_ms, body=kept.body, **values)
    if entry is not None:
        record(tx, entry)
    if announce:
        tx.announce(TOKENS, kept.name)


def forget_identity(tx: Transaction, kind: str, name: str, entry: AuditEntry | None) -> bool:
    found = tx.run("forget_identity_record", kind=kind, name=name).rowcount == 1
    if found and entry is not None:
        record(tx, entry)
    return found


def forget_identities_of(tx: Transaction, kind: str, principal: str, entry: AuditEntry | None) -> int:
    count = tx.run("forget_identity_records_of", kind=kind, principal=principal).rowcount
    if count and entry is not None:
        record(tx, entry)
    return count
