"""The view of a store that keeps recorded calls and usage (`ports.usage_store`).

Both are written in bulk after the calls, by deferred writes. Recorded calls are limited by age and number; usage is kept by day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.usage import UsageRow, days_before, with_tenant
from taskgate.ports.usage_store import RecordedPage
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.locks import Locks
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.recorded_calls import encode_recorded_call
from taskgate.store.operations.upkeep import ROWS_PER_PORTION
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView

MAX_RECORDED_CALLS: Final = 200_000
USAGE_DAYS: Final = 400
MAX_USAGE_ROWS: Final = 200_000
_LOCKS: Final = Locks(names=("usage",))


class UsageView(StoreView):
    def record_calls(self, calls: Sequence[RecordedCall]) -> None:
        self._defer(DeferredWrite(lambda tx: _record(tx, calls)))

    async def recorded_calls(self, since_ms: int, after: int = 0, limit: int = 1_000) -> RecordedPage:
        return await self._read(lambda reader: _page(reader, since_ms, after, limit))

    async def last_recorded_call(self) -> int:
        return await self._read(lambda reader: reader.last_recorded_call())

    async def forget_recorded_calls(self, keep_ms: int, portions: int = 1) -> bool:
        for _ in range(portions):
            if not await self._delete(lambda tx: _forget(tx, keep_ms)):
                return False
        return True

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        # In the same order at every gateway, so that two gateways that add to the same rows cannot deadlock.
        ordered = sorted(rows, key=lambda row: (row.day, row.principal, row.server, row.tool))
        self._defer(DeferredWrite(lambda tx: _add(tx, ordered), locks=_LOCKS))

    async def usage(self, first: str, last: str) -> tuple[UsageRow, ...]:
        return await self._read(lambda reader: _between(reader, first, last))


def _record(tx: Transaction, calls: Sequence[RecordedCall]) -> None:
    for call in calls:
        at_ms = call.at_ms or tx.now_ms
        stamped = call if call.at_ms else msgspec.structs.replace(call, at_ms=at_ms)
        tx.run("record_call", at_ms=at_ms, body=encode_recorded_call(tx.sealing, stamped))


def _forget(tx: Transaction, keep_ms: int) -> bool:
    """Delete a portion of the rows that are too old or too many; return whether there may be more."""
    last: int = tx.run("last_recorded_call").fetchone()[0]
    counts = (
        tx.run("forget_usage", before=days_before(tx.now_ms, USAGE_DAYS), limit=ROWS_PER_PORTION).rowcount,
        tx.run("forget_old_calls", before_ms=tx.now_ms - keep_ms, limit=ROWS_PER_PORTION).rowcount,
        tx.run("forget_first_calls", number=last - MAX_RECORDED_CALLS, limit=ROWS_PER_PORTION).rowcount,
    )
    return max(counts) == ROWS_PER_PORTION


def _page(reader: Reader, since_ms: int, after: int, limit: int) -> RecordedPage:
    found = reader.recorded_calls(since_ms, after, limit)
    calls = tuple(call for _, call in found)
    return RecordedPage(calls, found[-1][0] if len(found) == limit else None)


def _add(tx: Transaction, rows: Sequence[UsageRow]) -> None:
    for row in rows:
        values = {name: getattr(row, name) for name in row.__struct_fields__ if name != "tenant"}
        tx.run("add_usage", **values)


def _between(reader: Reader, first: str, last: str) -> tuple[UsageRow, ...]:
    return tuple(with_tenant(UsageRow(*row)) for row in reader.usage_between(first, last, MAX_USAGE_ROWS))
