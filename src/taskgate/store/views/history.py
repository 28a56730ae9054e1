"""The view of a store that keeps history (`ports.history`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from taskgate.core.history.counts import ChartSubject, Counted, CountRow, Dimension, Period
from taskgate.core.history.filters import HistoryFilter, search_words
from taskgate.core.history.keeping import to_delete
from taskgate.core.history.row import HistoryRow
from taskgate.ports.history import HistoryPage, Loss
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.locks import Locks
from taskgate.store.operations import history
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView

ROWS_PER_WRITE: Final = 50
_COUNTS: Final = Locks(names=("history counts",))


class HistoryView(StoreView):
    def keep_history(self, *, on: bool) -> None:
        self._engine.settings.history.switch(on=on)

    def add_history(self, rows: Sequence[HistoryRow]) -> None:
        # In several writes, so that other writes run in between. Also allowed for a gateway that was declared dead: these calls
        # have ended.
        for start in range(0, len(rows), ROWS_PER_WRITE):
            part = rows[start : start + ROWS_PER_WRITE]
            self._engine.defer(DeferredWrite(partial(history.record_rows, rows=part)))

    def add_counts(self, at_ms: int, counts: Sequence[Counted]) -> None:
        for rows in history.counts_by_period(at_ms, counts):
            self._engine.defer(DeferredWrite(partial(_add_counts, rows=rows), locks=_COUNTS))

    def take_history_loss(self) -> Loss | None:
        return self._engine.settings.history.take_loss()

    async def history_page(self, filters: HistoryFilter, *, before: int | None = None, limit: int = 50) -> HistoryPage:
        if filters.text is not None and not search_words(filters.text):
            return HistoryPage((), None)
        return await self._engine.read_in_thread(lambda reader: reader.history_page(filters, before, limit))

    async def history_row(self, row_id: str) -> HistoryRow | None:
        return await self._read(lambda reader: reader.history_row(row_id))

    async def history_counts(
        self, subject: ChartSubject, period: Period, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[CountRow, ...]:
        return await self._engine.read_in_thread(
            lambda reader: reader.history_counts(subject, period, since_ms, until_ms, bucket_ms)
        )

    async def history_totals(
        self, dimension: Dimension, tenant: str | None, period: Period, since_ms: int, until_ms: int
    ) -> tuple[CountRow, ...]:
        return await self._engine.read_in_thread(
            lambda reader: reader.history_totals(dimension, tenant, period, since_ms, until_ms)
        )

    async def history_courses(
        self,
        dimension: Dimension,
        tenant: str | None,
        period: Period,
        names: Sequence[str],
        *,
        since_ms: int,
        until_ms: int,
        bucket_ms: int,
    ) -> tuple[CountRow, ...]:
        return await self._engine.read_in_thread(
            lambda reader: reader.history_courses(
                dimension, tenant, period, names, since_ms=since_ms, until_ms=until_ms, bucket_ms=bucket_ms
            )
        )

    async def history_latencies(
        self,
        dimension: Dimension,
        tenant: str | None,
        period: Period,
        names: Sequence[str],
        *,
        since_ms: int,
        until_ms: int,
    ) -> tuple[CountRow, ...]:
        return await self._engine.read_in_thread(
            lambda reader: reader.history_latencies(
                dimension, tenant, period, names, since_ms=since_ms, until_ms=until_ms
            )
        )

    async def history_names(self, dimension: Dimension, tenant: str | None, begins: str, limit: int) -> tuple[str, ...]:
        return await self._engine.read_in_thread(lambda reader: reader.history_names(dimension, tenant, begins, limit))

    async def put_history_content(self, task_id: str, content: bytes) -> None:
        sealed = self._engine.sealing.seal(content, task_id)
        await self._write_or_fault(
            lambda tx: tx.run("put_history_content", task_id=task_id, at_ms=tx.now_ms, body=sealed).rowcount
        )

    async def history_content(self, task_id: str) -> bytes | None:
        return await self._read(lambda reader: reader.history_content(task_id))

    async def history_size(self) -> Mapping[str, int]:
        return await self._engine.read_in_thread(lambda reader: reader.history_size())

    async def forget_history(self, keep_ms: int, max_rows: int, portions: int = 1) -> bool:
        for _ in range(portions):
            if not await self._delete(lambda tx: history.forget_old(tx, keep_ms)):
                break
        else:
            return True
        maximum = portions * history.ROWS_PER_PORTION
        lost = to_delete(await self.history_size(), max_rows, maximum)
        for part in _portions(lost):
            await self._delete(partial(history.forget_of_callers, lost=part))
        return sum(lost.values()) == maximum


def _add_counts(tx: Transaction, rows: str) -> None:
    tx.run("add_history_counts", rows=rows)


def _portions(lost: Mapping[str, int]) -> list[dict[str, int]]:
    """Split what callers lose into portions."""
    portions: list[dict[str, int]] = []
    room = 0
    for caller, count in lost.items():
        while count:
            if not room:
                portions.append({})
                room = history.ROWS_PER_PORTION
            taken = min(count, room)
            portions[-1][caller] = taken
            count, room = count - taken, room - taken
    return portions
