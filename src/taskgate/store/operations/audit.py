"""The audit log: an append-only, hash-chained record of what was requested, decided and done. The chain is in `core.audit`.

Changes of tasks and approvals append their row in their own transaction. `RecordAudit` is for facts without such a change, above
all plain calls: they are deferred, because a plain call must not wait for the disk. Where several gateways share a store, each
start of a gateway has a chain of its own, so that none waits for the end of another one's chain. The first row of each chain names
the ends of the others, so that truncating or losing one of them is detected.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import FORMAT, GENESIS, AuditEntry, Head, Row, beginning, from_export, row_bytes
from taskgate.core.digest import digest_of_bytes
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.transaction import Rows, Statements, Transaction
from taskgate.telemetry.damaged_rows import UNREADABLE, name_damaged

DAMAGED: Final = "damaged_row"
CLOCK_STEP_MS: Final = 24 * 3_600_000
"""The clock may have been set back by this much since a row was written."""
_CHAINS: Final = Locks(names=("audit chains",))
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class AuditTime(NamedTuple):
    """Number, hash and time of one row of the audit log."""

    number: int
    hash: str
    at_ms: int


class ChainEnd(NamedTuple):
    """The last row of a chain, and when the chain began."""

    chain: str
    """Its name; empty where there is one chain."""
    began_ms: int
    number: int
    at_ms: int


class RecordAudit(Operation[None], frozen=True):
    """Append an entry to the chain. An entry without a time gets the store's."""

    entry: AuditEntry

    def run(self, tx: Transaction) -> None:
        entry = self.entry if self.entry.at_ms else replace(self.entry, at_ms=tx.now_ms)
        number, previous = tx.audit_head or tx.run("last_audit").fetchone() or (0, GENESIS)
        content = audit_content(number + 1, previous, entry)
        digest = digest_of_bytes(content)
        tx.put("insert_audit", number=number + 1, hash=digest, content=content)
        tx.audited(number + 1, digest)


class BeginChain(Operation[None], frozen=True):
    """Write the first row of this start's chain, which names the ends of the others. Does nothing where there is one chain."""

    @property
    def locks(self) -> Locks:
        # Starts are serialized, so that two gateways that start together do not both leave out the end of a chain.
        return _CHAINS

    def run(self, tx: Transaction) -> None:
        if not tx.is_shared:
            return
        tx.run("put_chain", now_ms=tx.now_ms)
        heads = [Head(*row) for row in tx.run("unnamed_heads").fetchall()]
        RecordAudit(beginning(tx.ownership.owner, heads)).run(tx)
        for head in heads:
            tx.run("head_named", other=head.chain_id, number=head.number)


class AuditRows(Query[tuple[Row, ...]], frozen=True):
    """Rows of the named chain; by default of this gateway's."""

    after: int = 0
    limit: int = 1_000
    chain: str = ""

    def run(self, reader: Reader) -> tuple[Row, ...]:
        return tuple(audit_from(*row) for row in _rows_after(reader, self.after, self.limit, self.chain))


class AuditTimes(Query[tuple[AuditTime, ...]], frozen=True):
    """The times of the rows after this one."""

    is_retention: ClassVar[bool] = True  # which reads most of them

    after: int = 0
    limit: int = 1_000
    chain: str = ""

    def run(self, reader: Reader) -> tuple[AuditTime, ...]:
        return tuple(audit_time(*row) for row in _rows_after(reader, self.after, self.limit, self.chain))


class ChainEnds(Query[tuple[ChainEnd, ...]], frozen=True):
    """The end of each chain that has rows, of the thousand that began last."""

    def run(self, reader: Reader) -> tuple[ChainEnd, ...]:
        if reader.is_shared:
            found = reader.run("chain_ends").fetchall()
            ends = [(chain, began_ms, audit_time(*row)) for chain, began_ms, *row in found]
            return tuple(ChainEnd(chain, began_ms, last.number, last.at_ms) for chain, began_ms, last in ends)
        number, _ = last_audit(reader.run)
        times = AuditTimes(number - 1, 1).run(reader) if number else ()
        return tuple(ChainEnd("", 0, time.number, time.at_ms) for time in times)


class EndedChains(Query[tuple[str, ...]], frozen=True):
    """The chains that no gateway appends to any more."""

    def run(self, reader: Reader) -> tuple[str, ...]:
        return tuple(row[0] for row in reader.run("ended_chains")) if reader.is_shared else ()


class ForgetAudit(Operation[None], frozen=True):
    """Delete the rows up to this number, which is not the last one, of this gateway's chain or of an ended one.

    `mark` is the signed record of this, for readers of the chain that do not have this gateway's files.
    """

    is_retention: ClassVar[bool] = True

    up_to: int
    chain: str = ""
    mark: bytes = b""

    @property
    def locks(self) -> Locks:
        return _CHAINS

    def run(self, tx: Transaction) -> None:
        if not tx.is_shared:
            tx.run("forget_audit", number=self.up_to)
            return
        of = self.chain or tx.ownership.owner
        tx.run("cut_chain", of=of, cut=self.mark)
        tx.run("forget_audit_of", of=of, number=self.up_to)


def _rows_after(reader: Reader, after: int, limit: int, chain: str) -> Rows:
    if reader.is_shared:
        return reader.run("audit_of", of=chain or reader.chain, number=after, limit=limit)
    return reader.run("audit_after", number=after, limit=limit)


def audit_rows_after(run: Statements, after: int, limit: int) -> tuple[Row, ...]:
    """Return rows of the one chain of a file."""
    return tuple(audit_from(*row) for row in run("audit_after", number=after, limit=limit))


def last_audit(run: Statements) -> tuple[int, str]:
    """Return the number and hash of the last row; 0 and the beginning of the chain if there is none."""
    found: Any = run("last_audit").fetchone()
    return (0, GENESIS) if found is None else (found[0], found[1])


def audit_content(number: int, previous: str, entry: AuditEntry) -> bytes:
    """Return what `core.audit.row_bytes` returns. Entries without arguments, nearly all of them, take a tenth of the time."""
    if entry.arguments is not None:
        return row_bytes(number, previous, entry)
    return _encode_sorted({"format": FORMAT, "number": number, "previous": previous, "entry": entry})


def audit_from(number: int, hash: str, content: bytes) -> Row:
    """Return the row with this number. A damaged one is returned as an entry that fails every verification."""
    try:
        row = from_export({**json.loads(content), "hash": hash})
        if row.number == number:
            return row
        why: Exception = ValueError(f"its content has the number {row.number}")
    except UNREADABLE as error:
        why = error
    name_damaged("audit", str(number), why)
    return Row(number, "", hash, AuditEntry(0, DAMAGED))


class _TimeOfEntry(msgspec.Struct):
    at_ms: int


class _TimeOfRow(msgspec.Struct):
    number: int
    entry: _TimeOfEntry


_read_time: Final = msgspec.json.Decoder(_TimeOfRow).decode


def audit_time(number: int, hash: str, content: bytes) -> AuditTime:
    """Return the time of a row, at a fraction of the cost of decoding all of it; 0 if it is damaged."""
    try:
        read = _read_time(content)
    except UNREADABLE as error:
        name_damaged("audit", str(number), error)
        return AuditTime(number, hash, 0)
    return AuditTime(number, hash, read.entry.at_ms if read.number == number else 0)


def audit_problem(number: int, content: bytes, now_ms: int) -> str | None:
    """Return why retention cannot use a row; None if it can."""
    read = _read_time(content)
    if read.number != number:
        return f"its content has the number {read.number}"
    if not 0 < read.entry.at_ms <= now_ms + CLOCK_STEP_MS:
        return f"its time is {read.entry.at_ms} ms, which is no time before now"
    return None
