"""Put rows of history, counts, usage and recorded calls into a store, as a gateway would over days."""

from __future__ import annotations

from collections.abc import Sequence

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.history.counts import Counted
from taskgate.core.history.row import HistoryRow
from taskgate.core.usage import UsageRow
from taskgate.ports.store import Store
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation
from taskgate.store.operations import history, usage
from taskgate.store.operations.journal import RecordRound
from taskgate.store.operations.sums import SUM_LOCKS
from taskgate.store.transaction import Transaction


class AddCounts(Operation[None], frozen=True):
    at_ms: int
    counts: Sequence[Counted]

    @property
    def locks(self) -> Locks:
        return SUM_LOCKS

    def run(self, tx: Transaction) -> None:
        history.add_counts(tx, self.at_ms, self.counts)


class AddUsage(Operation[None], frozen=True):
    rows: Sequence[UsageRow]

    @property
    def locks(self) -> Locks:
        return SUM_LOCKS

    def run(self, tx: Transaction) -> None:
        usage.add_usage(tx, self.rows)


def add_history(store: Store, rows: Sequence[HistoryRow]) -> None:
    store.defer(RecordRound(rows=rows))


def add_counts(store: Store, at_ms: int, counts: Sequence[Counted]) -> None:
    store.defer(AddCounts(at_ms, counts))


def add_usage(store: Store, rows: Sequence[UsageRow]) -> None:
    store.defer(AddUsage(rows))


def record_calls(store: Store, calls: Sequence[RecordedCall]) -> None:
    store.defer(RecordRound(recorded=calls))
