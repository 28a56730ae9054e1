"""Pinned tool definitions: their rows, and how they are written and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.wire import Raw
from taskgate.ports.topics import PINS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import UNREADABLE, name_damaged, readable

EARLIER_KEPT: Final = 10
"""Accepted definitions of one tool that are kept beside the current one."""


class StoredPin(msgspec.Struct, frozen=True):
    """A tool's definition as it was accepted, with the approver and the time; `by` is empty if it was pinned on first use."""

    server: str
    tool: str
    pin: Pin
    by: str
    at_ms: int


class FirstPin(NamedTuple):
    """A definition that is seen for the first time, and the record of it."""

    server: str
    tool: str
    pin: Pin
    audit: AuditEntry | None = None


class StoredPins(Query[tuple[StoredPin, ...]], frozen=True):
    server: str | None = None

    def run(self, reader: Reader) -> tuple[StoredPin, ...]:
        return tuple(_readable_pin(*row) for row in reader.run("all_pins", server=self.server))


class AcceptedDefinitions(Query[tuple[StoredPin, ...]], frozen=True):
    """The definitions of a tool that were accepted, the current one first and at most ten before it."""

    server: str
    tool: str

    def run(self, reader: Reader) -> tuple[StoredPin, ...]:
        found = reader.run("accepted_definitions", server=self.server, tool=self.tool)
        return tuple(readable("earlier_pins", found, lambda row: pin_from(*row), lambda row: f"{row[0]}/{row[1]}"))


class PutPin(Operation[None], frozen=True):
    """Replace the pin of a tool. The one before is kept for the page of the tool, up to `EARLIER_KEPT` of them."""

    server: str
    tool: str
    pin: Pin
    by: str = ""
    audit: AuditEntry | None = None

    @property
    def locks(self) -> Locks:
        return Locks(names=(_pin_lock(self.server, self.tool),))

    def run(self, tx: Transaction) -> None:
        of = {"server": self.server, "tool": self.tool}
        tx.announce(PINS, f"{self.server}/{self.tool}")
        if tx.run("keep_earlier_pin", **of).rowcount:
            tx.run("forget_earlier_pins", others=EARLIER_KEPT - 1, **of)
        tx.run("put_pin", doc=pin_doc(self.pin), by=self.by, at_ms=tx.now_ms, **of)
        if self.audit is not None:
            RecordAudit(self.audit).run(tx)


class PutFirstPins(Operation[tuple[Pin, ...]], frozen=True):
    """Pin definitions on first use, except those that have a pin; return the pins that are stored, in this order. If several
    gateways do so, the first one wins."""

    first: Sequence[FirstPin]

    @property
    def locks(self) -> Locks:
        return Locks(names=tuple(_pin_lock(each.server, each.tool) for each in self.first))

    def run(self, tx: Transaction) -> tuple[Pin, ...]:
        return tuple(_put_first_pin(tx, each) for each in self.first)


def _put_first_pin(tx: Transaction, first: FirstPin) -> Pin:
    server, tool, pin, audit = first
    if tx.run("put_first_pin", server=server, tool=tool, doc=pin_doc(pin), by="", at_ms=tx.now_ms).rowcount == 1:
        tx.announce(PINS, f"{server}/{tool}")
        if audit is not None:
            RecordAudit(audit).run(tx)
        return pin
    return pin_from(*tx.run("find_pin", server=server, tool=tool).fetchone()).pin


def _pin_lock(server: str, tool: str) -> str:
    return f"pin:{server}\n{tool}"


class _Doc(msgspec.Struct):
    digest: str
    definition: Raw


_read_doc = msgspec.json.Decoder(_Doc).decode


def pin_doc(pin: Pin) -> bytes:
    return wire.encode(_Doc(pin.digest, pin.raw))


def pin_from(server: str, tool: str, doc: bytes, by: str, at_ms: int) -> StoredPin:
    found = _read_doc(doc)
    return StoredPin(server, tool, Pin(found.digest, found.definition), by=by, at_ms=at_ms)


def _readable_pin(server: str, tool: str, doc: bytes, by: str, at_ms: int) -> StoredPin:
    """Return a pin that no definition matches if the row is damaged: without a pin, the next definition would be accepted."""
    try:
        return pin_from(server, tool, doc, by, at_ms)
    except UNREADABLE as error:
        name_damaged("pins", f"{server}/{tool}", error)
        return StoredPin(server, tool, Pin("damaged", Raw(b"{}")), by=by, at_ms=at_ms)
