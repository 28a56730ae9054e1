"""Recorded calls, on which other rules can be tried, and usage by day.

Both are written after the calls (`journal`, `sums`). Recorded calls are limited by age and number, and their arguments are
encrypted; usage is kept by day, principal, server and tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.usage import UsageRow, days_before, with_tenant
from taskgate.ports.store import Store
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.rows import record_from
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

MAX_RECORDED_CALLS: Final = 200_000
USAGE_DAYS: Final = 400
MAX_USAGE_ROWS: Final = 200_000
ROWS_PER_PORTION: Final = 500
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(RecordedCall).decode


class RecordedPage(NamedTuple):
    """A page of recorded calls. `after` is the position of the next page, None if this is the last one."""

    calls: tuple[RecordedCall, ...]
    after: int | None


def record_call(tx: Transaction, call: RecordedCall) -> None:
    """Store a call. `at_ms` 0 is replaced by the store's time."""
    at_ms = call.at_ms or tx.now_ms
    stamped = call if call.at_ms else replace(call, at_ms=at_ms)
    tx.run("record_call", at_ms=at_ms, body=encode_recorded_call(tx.sealing, stamped))


class RecordedCalls(Query[RecordedPage], frozen=True):
    """Recorded calls in the order in which they were recorded."""

    since_ms: int
    after: int = 0
    limit: int = 1_000

    def run(self, reader: Reader) -> RecordedPage:
        values = {"number": self.after, "since_ms": self.since_ms, "limit": self.limit}
        found = readable(
            "recorded_calls",
            reader.run("recorded_calls_after", **values).fetchall(),
            lambda row: (row[0], decode_recorded_call(reader.sealing, row[1])),
            lambda row: str(row[0]),
        )
        return RecordedPage(tuple(call for _, call in found), found[-1][0] if len(found) == self.limit else None)


class LastRecordedCall(Query[int], frozen=True):
    """The number of the last recorded call; 0 if there is none."""

    def run(self, reader: Reader) -> int:
        return int(reader.run("last_recorded_call").fetchone()[0])


class ForgetRecordedCalls(Operation[bool], frozen=True):
    """Delete a portion of the calls that are too old or too many, and of old usage; return whether there may be more."""

    is_retention: ClassVar[bool] = True

    keep_ms: int

    def run(self, tx: Transaction) -> bool:
        last: int = tx.run("last_recorded_call").fetchone()[0]
        counts = (
            tx.run("forget_usage", before=days_before(tx.now_ms, USAGE_DAYS), limit=ROWS_PER_PORTION).rowcount,
            tx.run("forget_old_calls", before_ms=tx.now_ms - self.keep_ms, limit=ROWS_PER_PORTION).rowcount,
            tx.run("forget_first_calls", number=last - MAX_RECORDED_CALLS, limit=ROWS_PER_PORTION).rowcount,
        )
        return max(counts) == ROWS_PER_PORTION


async def forget_recorded_calls(store: Store, keep_ms: int, portions: int = 1) -> bool:
    """Delete up to that many portions; return whether there may be more."""
    for _ in range(portions):
        if not await store.do(ForgetRecordedCalls(keep_ms)):
            return False
    return True


def add_usage(tx: Transaction, rows: Iterable[UsageRow]) -> None:
    """Add to the usage of the same day, principal, server and tool. The caller holds the lock `usage`."""
    # In the same order at every gateway, so that two gateways that add to the same rows cannot deadlock.
    for row in sorted(rows, key=lambda row: (row.day, row.principal, row.server, row.tool)):
        values = {name: getattr(row, name) for name in row.__struct_fields__ if name != "tenant"}
        tx.run("add_usage", **values)


class UsageBetween(Query[tuple[UsageRow, ...]], frozen=True):
    """The usage of all days from the first to the last, both as `2026-01-31`."""

    first: str
    last: str

    def run(self, reader: Reader) -> tuple[UsageRow, ...]:
        found = reader.run("usage_between", first=self.first, last=self.last, limit=MAX_USAGE_ROWS).fetchall()
        return tuple(with_tenant(record_from(UsageRow, row)) for row in found)


def encode_recorded_call(sealing: Sealing, call: RecordedCall) -> bytes:
    if not sealing.seals or call.arguments is None:
        return _encode(call)
    plain = _encode(replace(call, arguments=None))
    return sealing.seal_into(plain, call.arguments.encode(), call.principal)


def decode_recorded_call(sealing: Sealing, body: bytes) -> RecordedCall:
    call = _decode(body)
    arguments = sealing.open_in(body, call.principal)
    return call if arguments is None else replace(call, arguments=arguments.decode())
