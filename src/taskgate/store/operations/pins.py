"""What the store does to pinned definitions, each inside one transaction."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.ports.replicas import PINS
from taskgate.store.operations import rows
from taskgate.store.operations.audit import record
from taskgate.store.operations.transaction import Transaction


def put(tx: Transaction, server: str, tool: str, pin: Pin, by: str, audit: AuditEntry | None) -> None:
    tx.announce(PINS, f"{server}/{tool}")
    tx.run("put_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by=by, at_ms=tx.now_ms)
    if audit is not None:
        record(tx, audit)


def put_first(tx: Transaction, server: str, tool: str, pin: Pin, audit: AuditEntry | None) -> Pin:
    """Pin a definition that is seen for the first time. Of several gateways that see one, the first wins: its pin is returned."""
    if tx.run("put_first_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by="", at_ms=tx.now_ms).rowcount == 1:
        tx.announce(PINS, f"{server}/{tool}")
        if audit is not None:
            record(tx, audit)
        return pin
    return rows.pin_from(*tx.run("find_pin", server=server, tool=tool).fetchone()).pin
