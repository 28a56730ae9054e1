"""Sums of ended calls: stored with the calls that they count, and added to usage and the counts of history later.

A transaction that records ended calls stores their sums as one small row of its own, so it waits for no other and updates no row
that many calls share. `AddUpSums` deletes such rows and adds them to `usage` and `history_counts` in one transaction, so each is in
exactly one place. Any gateway on the store does that for all of them: what a killed one leaves behind, the next one adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.history.counts import Counted, Dimension, counted
from taskgate.core.history.row import CallOutcome, as_key
from taskgate.core.history.sums import CallSums, Tally
from taskgate.core.identity.identity import tenant_of
from taskgate.core.usage import AMOUNTS, UsageRow, day_of
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.history import add_counts
from taskgate.store.operations.usage import add_usage, record_call
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

SUMS_PER_ROW: Final = 32
ROWS_PER_PORTION: Final = 500
SUMS_PER_PORTION: Final = 32
"""Sums of different tools or principals that are added in one transaction: each is several counts of every period."""
SUM_LOCKS: Final = Locks(names=("history counts", "usage"))
_MINUTE_MS: Final = 60_000


class StoredSums(msgspec.Struct, array_like=True, frozen=True):
    """What one row holds. New members are added only at the end."""

    sums: tuple[CallSums, ...] = ()
    unrecorded: int = 0
    """Calls that could have been recorded for rehearsals and were not."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StoredSums).decode


def put_sums(tx: Transaction, sums: Sequence[CallSums], unrecorded: int = 0) -> None:
    """Store the sums of calls that end in this transaction."""
    for start in range(0, len(sums), SUMS_PER_ROW) or (0,):
        stored = StoredSums(tuple(sums[start : start + SUMS_PER_ROW]), 0 if start else unrecorded)
        tx.put("insert_sums", at_ms=tx.now_ms, body=_encode(stored))


class SumsAreWaiting(Query[bool], frozen=True):
    """Whether there are sums that are not added up yet."""

    def run(self, reader: Reader) -> bool:
        return reader.run("waiting_sums", limit=1).fetchone() is not None


class AddUpSums(Operation[bool], frozen=True):
    """Add a portion of the stored sums to usage and counts. Return whether there may be more."""

    @property
    def locks(self) -> Locks:
        return SUM_LOCKS

    def run(self, tx: Transaction) -> bool:
        waiting = tx.run("waiting_sums", limit=ROWS_PER_PORTION).fetchall()
        taken, unrecorded = list[int](), 0
        tallies: dict[tuple[int, str, str, str], Tally] = {}
        for number, at_ms, body in waiting:
            if len(tallies) >= SUMS_PER_PORTION:
                break
            taken.append(number)
            for stored in readable("call_sums", [(number, body)], lambda row: _decode(row[1]), lambda row: str(row[0])):
                unrecorded += stored.unrecorded
                for sums in stored.sums:
                    key = (at_ms // _MINUTE_MS * _MINUTE_MS, sums.principal, sums.server, sums.tool)
                    if key not in tallies:
                        tallies[key] = Tally(*key[1:])
                    tallies[key].add(sums)
        if not taken:
            return False
        tx.run("drop_sums", numbers=json.dumps(taken))
        add_usage(tx, _usage(tallies))
        if tx.state.history.on:
            for at_ms in sorted({key[0] for key in tallies}):
                add_counts(tx, at_ms, _counts(tally for key, tally in tallies.items() if key[0] == at_ms))
        if unrecorded:
            record_call(tx, RecordedCall(0, count=unrecorded))
        return len(taken) < len(waiting) or len(waiting) == ROWS_PER_PORTION


def _usage(tallies: dict[tuple[int, str, str, str], Tally]) -> Iterable[UsageRow]:
    rows: dict[tuple[str, str, str, str], UsageRow] = {}
    for (at_ms, principal, server, tool), tally in tallies.items():
        amounts = {name: getattr(tally, name) for name in AMOUNTS}
        if any(amounts.values()):
            row = UsageRow(day=day_of(at_ms), principal=principal, server=server, tool=tool, **amounts)
            key = (row.day, row.principal, row.server, row.tool)
            rows[key] = rows[key].plus(row) if key in rows else row
    return rows.values()


def _counts(tallies: Iterable[Tally]) -> list[Counted]:
    """The counts of history, one for each dimension, name, outcome and step."""
    sums: dict[tuple[Dimension, str, str, CallOutcome, int], int] = {}
    for tally in tallies:
        caller = as_key(tally.principal)
        tenant = tenant_of(caller)
        for (outcome, step), calls in tally.ended.items():
            made = counted(caller, tenant, tally.server, tally.tool, outcome=outcome, step=step, calls=calls)
            for *parts, count in made:
                key: Any = tuple(parts)
                sums[key] = sums.get(key, 0) + count
        for (dimension, outcome, step), calls in tally.waited.items():
            key = (dimension, "", tenant, outcome, step)
            sums[key] = sums.get(key, 0) + calls
    return [
        Counted(dimension=dimension, name=name, tenant=tenant, outcome=outcome, step=step, calls=calls)
        for (dimension, name, tenant, outcome, step), calls in sums.items()
    ]
