"""Charts of history: counts of calls by time, name, outcome and latency. They read many rows, so never on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from taskgate.core.history.counts import ChartSubject, CountRow, Dimension, Period
from taskgate.store.operation import Query
from taskgate.store.reader import Reader


class ChartSpan(msgspec.Struct, frozen=True):
    """Periods of one length that begin in a range."""

    period: Period
    since_ms: int
    until_ms: int


class HistoryCounts(Query[tuple[CountRow, ...]], frozen=True):
    """The counts of one subject, added up by bucket."""

    is_search: ClassVar[bool] = True

    subject: ChartSubject
    span: ChartSpan
    bucket_ms: int

    def run(self, reader: Reader) -> tuple[CountRow, ...]:
        subject = self.subject
        values = {"dimension": subject.dimension.value, "name": subject.name, "tenant": subject.tenant}
        found = reader.run("history_counts_of", bucket_ms=self.bucket_ms, **values, **_of(self.span))
        return tuple(map(CountRow._make, found))


class HistoryTotals(Query[tuple[CountRow, ...]], frozen=True):
    """The counts of every name of a dimension, added up over the range: `start_ms` is 0."""

    is_search: ClassVar[bool] = True

    dimension: Dimension
    tenant: str | None
    span: ChartSpan

    def run(self, reader: Reader) -> tuple[CountRow, ...]:
        values = {"dimension": self.dimension.value, "tenant": self.tenant}
        return tuple(map(CountRow._make, reader.run("history_totals", **values, **_of(self.span))))


class HistoryCourses(Query[tuple[CountRow, ...]], frozen=True):
    """The calls of some names in buckets of this length, all outcomes and latencies together."""

    is_search: ClassVar[bool] = True

    dimension: Dimension
    tenant: str | None
    names: Sequence[str]
    span: ChartSpan
    bucket_ms: int

    def run(self, reader: Reader) -> tuple[CountRow, ...]:
        values = {"dimension": self.dimension.value, "tenant": self.tenant, "names": _listed(self.names)}
        found = reader.run("history_courses", bucket_ms=self.bucket_ms, **values, **_of(self.span))
        return tuple(map(CountRow._make, found))


class HistoryLatencies(Query[tuple[CountRow, ...]], frozen=True):
    """The latencies of some names, added up over the range and all outcomes: `start_ms` is 0 and `outcome` empty."""

    is_search: ClassVar[bool] = True

    dimension: Dimension
    tenant: str | None
    names: Sequence[str]
    span: ChartSpan

    def run(self, reader: Reader) -> tuple[CountRow, ...]:
        values = {"dimension": self.dimension.value, "tenant": self.tenant, "names": _listed(self.names)}
        return tuple(map(CountRow._make, reader.run("history_latencies", **values, **_of(self.span))))


class HistoryNames(Query[tuple[str, ...]], frozen=True):
    """The names of a dimension that start with `begins`, in order, for suggestions."""

    is_search: ClassVar[bool] = True

    dimension: Dimension
    tenant: str | None
    begins: str
    limit: int

    def run(self, reader: Reader) -> tuple[str, ...]:
        values = {"dimension": self.dimension.value, "tenant": self.tenant, "limit": self.limit}
        found = reader.run("history_names", begins=self.begins, beyond=self.begins + "\U0010ffff", **values)
        return tuple(row[0] for row in found)


def _of(span: ChartSpan) -> dict[str, str | int]:
    return {"period": span.period.value, "since_ms": span.since_ms, "until_ms": span.until_ms}


def _listed(names: Sequence[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
