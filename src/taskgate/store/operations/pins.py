"""Pinned tool definitions: their rows, and how they are written, each in one transaction."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.wire import Raw
from taskgate.ports.approval_store import FirstPin, StoredPin
from taskgate.ports.topics import PINS
from taskgate.store.operations.audit import record_audit
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import UNREADABLE, name_damaged

EARLIER_KEPT: Final = 10
"""Accepted definitions of one tool that are kept beside the current one."""


class _Doc(msgspec.Struct):
    digest: str
    definition: Raw


_read_doc = msgspec.json.Decoder(_Doc).decode


def pin_doc(pin: Pin) -> bytes:
    return wire.encode(_Doc(pin.digest, pin.raw))


def pin_from(server: str, tool: str, doc: bytes, by: str, at_ms: int) -> StoredPin:
    found = _read_doc(doc)
    return StoredPin(server, tool, Pin(found.digest, found.definition), by, at_ms)


def readable_pin(server: str, tool: str, doc: bytes, by: str, at_ms: int) -> StoredPin:
    """Return a pin that no definition matches if the row is damaged: without a pin, the next definition would be accepted."""
    try:
        return pin_from(server, tool, doc, by, at_ms)
    except UNREADABLE as error:
        name_damaged("pins", f"{server}/{tool}", error)
        return StoredPin(server, tool, Pin("damaged", Raw(b"{}")), by, at_ms)


def put_pin(tx: Transaction, server: str, tool: str, pin: Pin, *, by: str, audit: AuditEntry | None) -> None:
    """Replace the pin of a tool. The one before is kept for the page of the tool, up to `EARLIER_KEPT` of them."""
    tx.announce(PINS, f"{server}/{tool}")
    if tx.run("keep_earlier_pin", server=server, tool=tool).rowcount:
        tx.run("forget_earlier_pins", server=server, tool=tool, others=EARLIER_KEPT - 1)
    tx.run("put_pin", server=server, tool=tool, doc=pin_doc(pin), by=by, at_ms=tx.now_ms)
    if audit is not None:
        record_audit(tx, audit)


def put_first_pin(tx: Transaction, first: FirstPin) -> Pin:
    """Pin a definition on first use. If several gateways do so, the first one wins and its pin is returned."""
    server, tool, pin, audit = first
    if tx.run("put_first_pin", server=server, tool=tool, doc=pin_doc(pin), by="", at_ms=tx.now_ms).rowcount == 1:
        tx.announce(PINS, f"{server}/{tool}")
        if audit is not None:
            record_audit(tx, audit)
        return pin
    return pin_from(*tx.run("find_pin", server=server, tool=tool).fetchone()).pin
