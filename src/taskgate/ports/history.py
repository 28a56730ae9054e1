"""History: one row for each call that has ended, to be searched, and counts of all calls, for charts.

The values are in `core.history`: `HistoryRow` and `CallOutcome` in `row`, `HistoryFilter` in `filters`, `ChartSubject`, `Series`
and `Total` in `counts`. History is for searching; only the audit log is proof. A write that fails loses rows of history, never a
call; a row of kind `gap` then names the time from which rows are missing.

Pages and the API do not use this directly, but `gateway.history_reading`, which limits every read to what a person may see and
signs cursors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from taskgate.core.history.counts import ChartSubject, Counted, CountRow, Dimension, Period
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import HistoryRow


class HistoryPage(NamedTuple):
    """Rows, newest end first. `after` is the number of the last row if there may be more, None at the end."""

    rows: tuple[HistoryRow, ...]
    after: int | None


class Loss(NamedTuple):
    """Rows of history that could not be written."""

    first_ms: int
    last_ms: int
    rows: int

    def plus(self, other: Loss) -> Loss:
        return Loss(min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms), self.rows + other.rows)


class HistoryStore(Protocol):
    def keep_history(self, *, on: bool) -> None:
        """Set whether ended tasks get a row from now on. Enabled initially."""
        ...

    def add_history(self, rows: Sequence[HistoryRow]) -> None:
        """Write rows in the background; the store assigns their numbers. Raises GatewayFault if too many writes are queued."""
        ...

    def add_counts(self, at_ms: int, counts: Sequence[Counted]) -> None:
        """Add to the counts of this time in the background, in periods of every length. Raises GatewayFault if too many writes are
        queued.
        """
        ...

    def take_history_loss(self) -> Loss | None:
        """Return the rows that could not be written since the last call of this method; None if there are none."""
        ...

    async def history_page(self, filters: HistoryFilter, *, before: int | None = None, limit: int = 50) -> HistoryPage:
        """Return matching rows with a number below `before`, newest end first."""
        ...

    async def history_row(self, row_id: str) -> HistoryRow | None:
        """The row with this id: that of a task, or `HistoryRow.id` of another row."""
        ...

    async def history_counts(
        self, subject: ChartSubject, period: Period, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[CountRow, ...]:
        """The counts of one subject in periods of this length that begin in the range, added up by bucket."""
        ...

    async def history_totals(
        self, dimension: Dimension, tenant: str | None, period: Period, since_ms: int, until_ms: int
    ) -> tuple[CountRow, ...]:
        """The counts of every name of a dimension, added up over the range: `start_ms` is 0."""
        ...

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
        """The calls of some names in buckets of this length, all outcomes and latencies together."""
        ...

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
        """The latencies of some names, added up over the range and all outcomes: `start_ms` is 0 and `outcome` empty."""
        ...

    async def history_names(self, dimension: Dimension, tenant: str | None, begins: str, limit: int) -> tuple[str, ...]:
        """Return the names of a dimension that start with `begins`, in order, for suggestions."""
        ...

    async def put_history_content(self, task_id: str, content: bytes) -> None:
        """Keep the redacted arguments and result of a task beside its row (`history.content`). Encrypted where results are."""
        ...

    async def history_content(self, task_id: str) -> bytes | None: ...

    async def forget_history(self, keep_ms: int, max_rows: int, portions: int = 1) -> bool:
        """Delete up to this many portions of rows that are too old, and then of those that are too many: the caller with the most
        rows loses its oldest first. Return whether more may remain."""
        ...

    async def history_size(self) -> Mapping[str, int]:
        """The number of rows of each caller."""
        ...
