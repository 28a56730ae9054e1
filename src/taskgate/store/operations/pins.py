"""What the store does to pinned definitions, each inside one transaction."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.store.operations import rows
from taskgate.store.operations.audit import record
from taskgate.store.operations.transaction import Transaction


def put(tx: Transaction, server: str, tool: str, pin: Pin, by: str, audit: AuditEntry | None) -> None:
    tx.run("put_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by=by, at_ms=tx.now_ms)
    if audit is not None:
        record(tx, audit)


def drop(tx: Transaction, server: str, tool: str, audit: AuditEntry | None) -> None:
    tx.run("drop_pin", server=server, tool=tool)
    if audit is not None:
        record(tx, audit)
