"""The audit log as a hash chain: each row contains the hash of the row before it, so a changed or removed row is detected.

This module defines the bytes of a row, the next hash, and where a sequence is broken. Stores append rows in the
transaction of the change that they record; `taskgate audit verify` and `taskgate audit export` read them. A row holds
arguments only as a digest and, if the operator enabled it, redacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from taskgate.core.digest import digest_of_bytes
from taskgate.core.strict_json import canonical

GENESIS = "sha256:" + "0" * 64
FORMAT = 1
CHAIN_BEGAN = "chain_began"


class AuditEntry(msgspec.Struct, frozen=True):
    """One auditable fact. An empty string means "does not apply"."""

    at_ms: Annotated[int, Meta(description="time, in milliseconds since 1970")]
    event: Annotated[str, Meta(description="name of the event")]
    principal: Annotated[str, Meta(description="principal of the caller or person")] = ""
    scope: Annotated[str, Meta(description="scope")] = ""
    server: Annotated[str, Meta(description="name of the server")] = ""
    name: Annotated[str, Meta(description="name of the tool, resource or prompt")] = ""
    kind: Annotated[str, Meta(description="kind of the subject, for example `tool`")] = "tool"
    arguments_digest: Annotated[str, Meta(description="digest of the arguments")] = ""
    arguments: Annotated[Any, Meta(description="arguments, redacted")] = None
    hidden: Annotated[tuple[str, ...], Meta(description="paths of redacted fields")] = ()
    rule: Annotated[str, Meta(description="rule that decided")] = ""
    decision: Annotated[str, Meta(description="decision")] = ""
    policy_revision: Annotated[str, Meta(description="revision of the rules")] = ""
    approval_id: Annotated[str, Meta(description="approval")] = ""
    approvers: Annotated[tuple[str, ...], Meta(description="people who decided")] = ()
    reason: Annotated[str, Meta(description="reason")] = ""
    task_id: Annotated[str, Meta(description="task")] = ""
    outcome: Annotated[str, Meta(description="outcome of the call")] = ""
    executed: Annotated[str, Meta(description="whether the tool ran: `no`, `maybe` or `yes`")] = "no"
    correlation_id: Annotated[str, Meta(description="id that relates rows of one request")] = ""


def revisions(policy: str, scope: str) -> str:
    """Return the revisions with which a call was evaluated: that of the rules, and that of the scope's servers and tools."""
    return f"{policy}/{scope}" if scope else policy


class Row(msgspec.Struct, frozen=True):
    """An entry at its position in the chain. Numbers start at 1 and have no gaps."""

    number: int
    previous: str
    hash: str
    entry: AuditEntry


class Head(NamedTuple):
    """A row of another chain."""

    chain_id: str
    number: int
    hash: str


class ChainIntact(msgspec.Struct, frozen=True):
    """The sequence is unbroken; `head` is the hash to store in a safe place."""

    rows: int
    head: str


class ChainBroken(msgspec.Struct, frozen=True):
    """The first row that breaks the sequence, and why."""

    number: int
    problem: str


Verified: TypeAlias = ChainIntact | ChainBroken


def row_bytes(number: int, previous: str, entry: AuditEntry) -> bytes:
    """Return the canonical bytes of a row, which its hash covers."""
    return canonical({"format": FORMAT, "number": number, "previous": previous, "entry": _plain(entry)})


def next_row(last: Row | None, entry: AuditEntry) -> Row:
    """Return the row that records `entry` after `last`."""
    number, previous = (1, GENESIS) if last is None else (last.number + 1, last.hash)
    return Row(number, previous, digest_of_bytes(row_bytes(number, previous, entry)), entry)


def chain(last: Row | None, entries: Iterable[AuditEntry]) -> Iterator[Row]:
    """Return several consecutive rows, for batches."""
    for entry in entries:
        last = next_row(last, entry)
        yield last


def beginning(chain_id: str, heads: Iterable[Head]) -> AuditEntry:
    """Return the first entry of an additional chain: it names the heads of the other chains, so that truncation or loss
    of one is detected.
    """
    return AuditEntry(0, CHAIN_BEGAN, name=chain_id, kind="chain", arguments=[list(head) for head in heads])


def heads_named(entry: AuditEntry) -> tuple[Head, ...]:
    """Return the heads of other chains that this entry names. Raises ValueError if they cannot be parsed."""
    if entry.event != CHAIN_BEGAN:
        return ()
    try:
        return tuple(Head(str(chain_id), int(number), str(digest)) for chain_id, number, digest in entry.arguments)
    except (TypeError, ValueError):
        raise ValueError("the first row of a chain does not name the other chains") from None


def verify(rows: Iterable[Row], *, after: Row | None = None) -> Verified:
    """Verify a sequence from its beginning (or from a trusted row) and return the first row that breaks it."""
    number, previous = (0, GENESIS) if after is None else (after.number, after.hash)
    for row in rows:
        if row.number != number + 1:
            return ChainBroken(number + 1, f"row {number + 1} is missing: the next row found is {row.number}")
        if row.previous != previous:
            return ChainBroken(row.number, "it does not continue the row before it")
        if digest_of_bytes(row_bytes(row.number, row.previous, row.entry)) != row.hash:
            return ChainBroken(row.number, "its content was changed after it was written")
        number, previous = row.number, row.hash
    return ChainIntact(number, previous)


def verify_beside(rows: Iterable[Row], named: Mapping[int, str], *, after: Row | None = None) -> Verified:
    """Verify one of several chains: it must be intact and contain every row that other chains name, by number and hash.

    Rows up to `after` were deleted by retention.
    """
    cut = after.number if after is not None else 0
    missing = {number: digest for number, digest in named.items() if number > cut}

    def watched() -> Iterator[Row]:
        for row in rows:
            if missing.get(row.number) == row.hash:
                del missing[row.number]
            yield row

    found = verify(watched(), after=after)
    if isinstance(found, ChainIntact) and missing:
        return ChainBroken(
            min(missing), "another chain names this row with its hash, and it is missing or has another hash"
        )
    return found


def export_line(row: Row, chain_id: str = "") -> bytes:
    """Return one line of the JSONL export, in canonical form, so that the hash can be recomputed from the line alone.

    `chain_id` is set if there are several chains.
    """
    line: dict[str, Any] = {"chain": chain_id} if chain_id else {}
    line |= {
        "format": FORMAT,
        "number": row.number,
        "previous": row.previous,
        "hash": row.hash,
        "entry": _plain(row.entry),
    }
    return canonical(line) + b"\n"


def from_export(line: Mapping[str, Any]) -> Row:
    """Return the row of a parsed line of the export."""
    stored = line["entry"]
    unknown = set(stored).difference(AuditEntry.__struct_fields__)
    if unknown:
        raise ValueError(f"the entry has fields unknown to this version: {', '.join(sorted(unknown))}")
    entry = {**stored, "hidden": tuple(stored["hidden"]), "approvers": tuple(stored["approvers"])}
    return Row(line["number"], line["previous"], line["hash"], AuditEntry(**entry))


def _plain(entry: AuditEntry) -> dict[str, Any]:
    return {**msgspec.structs.asdict(entry), "hidden": list(entry.hidden), "approvers": list(entry.approvers)}
