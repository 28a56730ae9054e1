"""Read history on behalf of a person: rows, single rows, charts, totals and suggestions.

Every read is limited to what the person may see: `tenant` is that of the person (None: of all tenants), `only` the one principal
whose calls they may see (None: of everyone in the tenant). Cursors are signed, expire, and are bound to the person, to both limits
and to the filter, so that a cursor of another tenant or of another search is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import CallerError
from taskgate.core.history.counts import (
    ChartSubject,
    Dimension,
    Series,
    Total,
    bucket_length,
    courses,
    latency_period,
    period_for,
    series,
    totals,
    totals_period,
    with_latencies,
)
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import HistoryRow, is_row_id
from taskgate.core.ids import is_task_id
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.ports.history_reader import HistoryRows, Reach
from taskgate.ports.store import Store
from taskgate.store.operations.history import FindHistoryRow, HistoryContent
from taskgate.store.operations.history_charts import (
    ChartSpan,
    HistoryCounts,
    HistoryCourses,
    HistoryLatencies,
    HistoryNames,
    HistoryTotals,
)
from taskgate.store.operations.history_search import FindHistory, HistoryPage

MAX_ROWS: Final = 1_000
_METHOD: Final = "history"


class HistoryReading(msgspec.Struct, eq=False):
    _store: Store
    _signer: RequestStateSigner

    async def page(
        self, reach: Reach, filters: HistoryFilter, *, cursor: str | None = None, limit: int = 50
    ) -> HistoryRows:
        """Rows that match, newest end first. Raises CallerError of type `invalid_cursor`."""
        within = self._within(reach, filters)
        bound = f"{reach.tenant or ''}\n{reach.only or ''}\n{within.digest() if within is not None else ''}"
        before = self._position(reach, bound, cursor)
        if within is None:
            return HistoryRows((), None)
        page = await self._found(within, before, min(max(1, limit), MAX_ROWS))
        after = None if page.after is None else self._cursor(reach, bound, page.after)
        return HistoryRows(page.rows, after)

    async def _found(self, within: HistoryFilter, before: int | None, limit: int) -> HistoryPage:
        if within.text is not None and is_row_id(within.text):
            # An id finds its row, if the other filters match as well.
            row = await self._store.ask(FindHistoryRow(within.text))
            matching = row is not None and before is None and _matches(row, within)
            return HistoryPage((row,) if row is not None and matching else (), None)
        return await self._store.ask(FindHistory(within, before=before, limit=limit))

    async def row(self, reach: Reach, row_id: str) -> HistoryRow | None:
        """The row with this id; None if there is none, or if the person may not see it."""
        row = await self._store.ask(FindHistoryRow(row_id)) if is_row_id(row_id) else None
        return row if row is not None and _reaches(reach, row) else None

    async def content(self, reach: Reach, row_id: str) -> bytes | None:
        """The redacted arguments and result of a task as JSON, where `history.content` kept them."""
        row = await self.row(reach, row_id) if is_task_id(row_id) else None
        return await self._store.ask(HistoryContent(row.task_id)) if row is not None else None

    async def series(
        self, reach: Reach, dimension: Dimension, name: str, since_ms: int, until_ms: int, *, now_ms: int, buckets: int
    ) -> Series:
        """A chart: calls by outcome and latency over a range, in at most this many buckets."""
        subject = _subject(reach, dimension, name)
        period = period_for(since_ms, until_ms, now_ms)
        bucket_ms = bucket_length(since_ms, until_ms, period, buckets)
        first = since_ms // bucket_ms * bucket_ms
        rows = (
            await self._store.ask(HistoryCounts(subject, ChartSpan(period, first, until_ms), bucket_ms=bucket_ms))
            if subject is not None
            else ()
        )
        return series(rows, since_ms, until_ms, bucket_ms)

    async def courses(
        self,
        reach: Reach,
        dimension: Dimension,
        names: Sequence[str],
        since_ms: int,
        until_ms: int,
        *,
        now_ms: int,
        buckets: int,
    ) -> dict[str, tuple[int, ...]]:
        """The number of calls of each of these names over a range, in at most this many buckets. For people who see a whole
        tenant or everything; empty for others."""
        if reach.only is not None or not names:
            return {}
        # Without latencies there are ten times fewer counts: one for each hour of a day, and for each day of a week.
        period = totals_period(since_ms, until_ms, now_ms)
        bucket_ms = bucket_length(since_ms, until_ms, period, buckets)
        first = since_ms // bucket_ms * bucket_ms
        rows = await self._store.ask(
            HistoryCourses(dimension, reach.tenant, names, ChartSpan(period, first, until_ms), bucket_ms=bucket_ms)
        )
        return courses(rows, since_ms, until_ms, bucket_ms)

    async def totals(
        self, reach: Reach, dimension: Dimension, since_ms: int, until_ms: int, *, now_ms: int
    ) -> tuple[Total, ...]:
        """Calls of each server, tool or caller in a range, most calls first. A person who sees only their own calls gets theirs.

        Totals of more than three hours have no latencies until `with_latencies` adds them.
        """
        period = totals_period(since_ms, until_ms, now_ms)
        first = since_ms // period.length_ms * period.length_ms
        if reach.only is not None:
            if dimension is not Dimension.CALLER:
                return ()
            subject = ChartSubject(Dimension.CALLER, reach.only, reach.tenant)
            return totals(
                await self._store.ask(
                    HistoryCounts(subject, ChartSpan(period, first, until_ms), bucket_ms=period.length_ms)
                )
            )
        return totals(await self._store.ask(HistoryTotals(dimension, reach.tenant, ChartSpan(period, first, until_ms))))

    async def with_latencies(
        self, reach: Reach, dimension: Dimension, found: Sequence[Total], since_ms: int, until_ms: int, *, now_ms: int
    ) -> tuple[Total, ...]:
        """These totals of `totals` with p50 and p99. Read for the names that are shown: most of the counts are latencies.

        The percentiles of long ranges cover whole periods of two hours or a day.
        """
        period = latency_period(totals_period(since_ms, until_ms, now_ms))
        if period is None or not found:
            return tuple(found)
        first = since_ms // period.length_ms * period.length_ms
        names = [total.name for total in found]
        rows = await self._store.ask(
            HistoryLatencies(dimension, reach.tenant, names, ChartSpan(period, first, until_ms))
        )
        return with_latencies(found, rows)

    async def names(self, reach: Reach, dimension: Dimension, begins: str, limit: int = 20) -> tuple[str, ...]:
        """Names that begin like this, for suggestions."""
        if reach.only is not None:
            return (reach.only,) if dimension is Dimension.CALLER and reach.only.startswith(begins) else ()
        return await self._store.ask(HistoryNames(dimension, reach.tenant, begins, limit))

    def _within(self, reach: Reach, filters: HistoryFilter) -> HistoryFilter | None:
        """The filter with the limits of the person; None if nothing can match both."""
        if reach.only is not None and filters.caller not in (None, reach.only):
            return None
        if reach.tenant is not None and filters.tenant not in (None, reach.tenant):
            return None
        return replace(filters, tenant=reach.tenant or filters.tenant, caller=reach.only or filters.caller)

    def _cursor(self, reach: Reach, bound: str, number: int) -> str:
        return self._signer.sign("list", reach.person, _METHOD, bound, "", body=str(number))

    def _position(self, reach: Reach, bound: str, cursor: str | None) -> int | None:
        if cursor is None:
            return None
        try:
            return int(self._signer.verify(cursor, reach.person, _METHOD, bound).body)
        except CallerError:
            text = "The cursor is invalid, has expired, or belongs to another search. Start again without a cursor."
            raise CallerError("invalid_cursor", text) from None


def _reaches(reach: Reach, row: HistoryRow) -> bool:
    return (reach.only is None or row.caller == reach.only) and (reach.tenant is None or row.tenant == reach.tenant)


def _matches(row: HistoryRow, filters: HistoryFilter) -> bool:
    """Whether a row that was found by its id matches the rest of the filter."""
    exact = ("tenant", "caller", "scope", "server", "tool", "client", "error_type", "kind")
    return (
        all(getattr(filters, name) in (None, getattr(row, name)) for name in exact)
        and (filters.outcomes is None or row.outcome in filters.outcomes)
        and (filters.since_ms is None or row.ended_ms >= filters.since_ms)
        and (filters.until_ms is None or row.ended_ms < filters.until_ms)
    )


def _subject(reach: Reach, dimension: Dimension, name: str) -> ChartSubject | None:
    """The subject of a chart within the limits of the person; None if they may not see it."""
    if reach.only is not None:
        own = dimension is Dimension.ALL or (dimension is Dimension.CALLER and name == reach.only)
        return ChartSubject(Dimension.CALLER, reach.only, reach.tenant) if own else None
    return ChartSubject(dimension, name, reach.tenant)
