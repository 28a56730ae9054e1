"""Reads the history of calls within what one person may see, for the console and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from taskgate.core.history.counts import Dimension, Series, Total
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import HistoryRow


class Reach(NamedTuple):
    """Which part of the history a person may read."""

    person: str
    """The principal of the person, to which cursors are bound."""
    tenant: str | None = None
    only: str | None = None


class HistoryRows(NamedTuple):
    """Rows, newest end first, and the cursor of the next page; None at the end."""

    rows: tuple[HistoryRow, ...]
    cursor: str | None


class HistoryReader(Protocol):
    async def page(
        self, reach: Reach, filters: HistoryFilter, *, cursor: str | None = None, limit: int = 50
    ) -> HistoryRows:
        """Rows that match, newest end first. Raises CallerError of type `invalid_cursor`."""
        ...

    async def row(self, reach: Reach, row_id: str) -> HistoryRow | None:
        """The row with this id; None if there is none, or if the person may not see it."""
        ...

    async def content(self, reach: Reach, row_id: str) -> bytes | None:
        """The redacted arguments and result of a task as JSON, where `history.content` kept them."""
        ...

    async def series(
        self, reach: Reach, dimension: Dimension, name: str, since_ms: int, until_ms: int, *, now_ms: int, buckets: int
    ) -> Series:
        """A chart: calls by outcome and latency over a range, in at most this many buckets."""
        ...

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
        ...

    async def totals(
        self, reach: Reach, dimension: Dimension, since_ms: int, until_ms: int, *, now_ms: int
    ) -> tuple[Total, ...]:
        """Calls of each server, tool or caller in a range, most calls first."""
        ...

    async def with_latencies(
        self, reach: Reach, dimension: Dimension, found: Sequence[Total], since_ms: int, until_ms: int, *, now_ms: int
    ) -> tuple[Total, ...]:
        """Add p50 and p99 to the result of `totals`."""
        ...

    async def names(self, reach: Reach, dimension: Dimension, begins: str, limit: int = 20) -> tuple[str, ...]:
        """Return names that start with `begins`, for suggestions."""
        ...
