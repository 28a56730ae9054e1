"""Operations on identity records (sessions of the console, revoked tokens, roles last seen), each in one transaction."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import IdentityRecord
from taskgate.ports.topics import TOKENS
from taskgate.store.operations.audit import record_audit
from taskgate.store.transaction import Transaction


def keep_record(tx: Transaction, record: IdentityRecord, entry: AuditEntry | None, *, announce: bool) -> None:
    values = {"kind": record.kind, "name": record.name, "principal": record.principal}
    tx.run("keep_identity_record", expires_ms=record.expires_ms, body=record.body, **values)
    if entry is not None:
        record_audit(tx, entry)
    if announce:
        tx.announce(TOKENS, record.name)


def forget_record(tx: Transaction, kind: str, name: str, entry: AuditEntry | None) -> bool:
    found = tx.run("forget_identity_record", kind=kind, name=name).rowcount == 1
    if found and entry is not None:
        record_audit(tx, entry)
    return found


def forget_records_of(tx: Transaction, kind: str, principal: str, entry: AuditEntry | None) -> int:
    count = tx.run("forget_identity_records_of", kind=kind, principal=principal).rowcount
    if count and entry is not None:
        record_audit(tx, entry)
    return count
