"""The audit chain: rows are appended in the transaction of what they tell about."""

from __future__ import annotations

from msgspec.structs import replace

from taskgate.core.audit import GENESIS, AuditEntry
from taskgate.core.governance.digest import digest_of_bytes
from taskgate.store.operations import rows
from taskgate.store.operations.transaction import Transaction


def record(tx: Transaction, entry: AuditEntry) -> None:
    """Append to the chain, stamped with the store's time if the entry has none."""
    if entry.at_ms == 0:
        entry = replace(entry, at_ms=tx.now_ms)
    if tx.audit_head is None:
        tx.audit_head = tx.run("last_audit").fetchone() or (0, GENESIS)
    number, previous = tx.audit_head
    content = rows.audit_content(number + 1, previous, entry)
    digest = digest_of_bytes(content)
    tx.put("insert_audit", number=number + 1, hash=digest, content=content)
    tx.audit_head = (number + 1, digest)
