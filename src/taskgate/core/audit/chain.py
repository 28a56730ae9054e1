"""The audit log as a hash chain: each row contains the hash of the row before it, so a changed or removed row is detected.

This module defines the bytes of a row, the next hash, and where a sequence is broken. Stores append rows in the
transaction of the change that they record; `taskgate audit verify` and `taskgate audit export` read them. A row holds
arguments only as a digest and, if the operator enabled it, redacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from taskgate.core.digest import digest_of_bytes
from taskgate.core.strict_json import canonical

GENESIS = "sha256:" + "0" * 64
FORMAT = 1
CHAIN_BEGAN = "chain_began"


class AuditEntry(msgspec.Struct, frozen=True):
    """One fact worth proving later. Empty strings mean "does not apply"."""

    at_ms: int
    event: str
    principal: str = ""
    scope: str = ""
    server: str = ""
    name: str = ""
    kind: str = "tool"
    arguments_digest: str = ""
    arguments: Any = None
    hidden: tuple[str, ...] = ()
    rule: str = ""
    decision: str = ""
    policy_revision: str = ""
    approval_id: str = ""
    approvers: tuple[str, ...] = ()
    reason: str = ""
    task_id: str = ""
    outcome: str = ""
    executed: str = "no"
    correlation_id: str = ""


def revisions(policy: str, scope: str) -> str:
    """By what a call was judged: the rules, and the set of servers and tools that its scope gave."""
    return f"{policy}/{scope}" if scope else policy


@dataclass(frozen=True, slots=True)
class Row:
    """An entry in its place in the chain. Numbers start at 1 and have no gaps."""

    number: int
    previous: str
    hash: str
    entry: AuditEntry


class Head(NamedTuple):
    """A row of a chain that stands beside others."""

    chain_id: str
    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class Whole:
    """The sequence is unbroken; `head` is the hash to remember somewhere safe."""

    rows: int
    head: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The first row that does not fit, and why."""

    number: int
    problem: str


Verified: TypeAlias = Whole | Broken


def row_bytes(number: int, previous: str, entry: AuditEntry) -> bytes:
    """The canonical bytes of a row, over which its hash is taken."""
    return canonical({"format": FORMAT, "number": number, "previous": previous, "entry": _plain(entry)})


def next_row(last: Row | None, entry: AuditEntry) -> Row:
    """The row that records `entry` after `last`."""
    number, previous = (1, GENESIS) if last is None else (last.number + 1, last.hash)
    return Row(number, previous, digest_of_bytes(row_bytes(number, previous, entry)), entry)


def chain(last: Row | None, entries: Iterable[AuditEntry]) -> Iterator[Row]:
    """Several rows in a row, for batches."""
    for entry in entries:
        last = next_row(last, entry)
        yield last


def beginning(chain_id: str, heads: Iterable[Head]) -> AuditEntry:
    """The first entry of a chain beside others: it names where they ended, so that none of them can be cut or lost unseen."""
    return AuditEntry(0, CHAIN_BEGAN, name=chain_id, kind="chain", arguments=[list(head) for head in heads])


def heads_named(entry: AuditEntry) -> tuple[Head, ...]:
    """The ends of other chains that this entry vouches for. Raises ValueError if it does not say them."""
    if entry.event != CHAIN_BEGAN:
        return ()
    try:
        return tuple(Head(str(chain_id), int(number), str(digest)) for chain_id, number, digest in entry.arguments)
    except (TypeError, ValueError):
        raise ValueError("the first row of a chain does not say which other chains there were") from None


def verify(rows: Iterable[Row], *, after: Row | None = None) -> Verified:
    """Walk a sequence from its beginning (or from a row already trusted) and name the first row that does not fit."""
    number, previous = (0, GENESIS) if after is None else (after.number, after.hash)
    for row in rows:
        if row.number != number + 1:
            return Broken(number + 1, f"row {number + 1} is missing: the next row found is {row.number}")
        if row.previous != previous:
            return Broken(row.number, "it does not continue the row before it")
        if digest_of_bytes(row_bytes(row.number, row.previous, row.entry)) != row.hash:
            return Broken(row.number, "its content was changed after it was written")
        number, previous = row.number, row.hash
    return Whole(number, previous)


def verify_beside(rows: Iterable[Row], named: Mapping[int, str], *, after: Row | None = None) -> Verified:
    """Walk one of several chains: it must be whole, and hold every row that other chains name, by number and hash.

    What was before `after` was forgotten on purpose.
    """
    cut = after.number if after is not None else 0
    missing = {number: digest for number, digest in named.items() if number > cut}

    def watched() -> Iterator[Row]:
        for row in rows:
            if missing.get(row.number) == row.hash:
                del missing[row.number]
            yield row

    found = verify(watched(), after=after)
    if isinstance(found, Whole) and missing:
        return Broken(min(missing), "another chain names it as it was, and it is gone or another one")
    return found


def export_line(row: Row, chain_id: str = "") -> bytes:
    """One line of the JSONL export: canonical, so that the hash can be recomputed from the line alone.

    `chain_id` where there are several chains.
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
    """A row from a parsed line of the export."""
    said = line["entry"]
    unknown = set(said).difference(AuditEntry.__struct_fields__)
    if unknown:
        raise ValueError(f"the entry has fields this version does not know: {', '.join(sorted(unknown))}")
    entry = {**said, "hidden": tuple(said["hidden"]), "approvers": tuple(said["approvers"])}
    return Row(line["number"], line["previous"], line["hash"], AuditEntry(**entry))


def _plain(entry: AuditEntry) -> dict[str, Any]:
    return {**msgspec.structs.asdict(entry), "hidden": list(entry.hidden), "approvers": list(entry.approvers)}
