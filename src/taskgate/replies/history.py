"""Calls that have ended, and their counts for charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Struct

from taskgate.core.history.row import CallOutcome, EndedCall, HistoryRow, RowKind, why
from taskgate.core.timestamps import iso
from taskgate.replies.fields import Time, about


class HistoryEntry(EndedCall, frozen=True, kw_only=True):
    """A call that has ended, with times as text."""

    id: Annotated[str, about("id of the task, or of the row if the call was not a task")]
    ended_at: Annotated[Time | None, about("time of the end")]
    accepted_at: Annotated[Time | None, about("time of the call; of a gap, its beginning")]
    sent_at: Annotated[Time | None, about("time at which it was last sent to its server")]
    duration_ms: Annotated[int, about("from the call to its end, in milliseconds")]
    tenant: Annotated[str, about("tenant of the caller; may be empty")]

    @property
    def shown_state(self) -> str:
        """The outcome, in the words of the states of tasks."""
        return "completed" if self.outcome is CallOutcome.OK else self.outcome.value

    @property
    def took_ms(self) -> int | None:
        """None of a denial, and where the beginning is unknown."""
        return self.duration_ms if self.kind is not RowKind.DENIAL and self.accepted_at is not None else None

    @property
    def why(self) -> str:
        """Why it did not end well. Empty for calls that did."""
        if self.outcome is CallOutcome.OK:
            return ""
        return " · ".join(why(self.outcome, self.error_type, self.reason, self.rule))


def history_entry(row: HistoryRow) -> HistoryEntry:
    """A stored row for a reply."""
    as_stored = {name: getattr(row, name) for name in EndedCall.__struct_fields__}
    return HistoryEntry(
        **as_stored,
        id=row.id,
        ended_at=_time(row.ended_ms),
        accepted_at=_time(row.accepted_ms),
        sent_at=_time(row.sent_ms),
        duration_ms=row.duration_ms,
        tenant=row.tenant,
    )


def _time(ms: int) -> str | None:
    return iso(ms) if ms else None


class EndedCalls(Struct, frozen=True, kw_only=True):
    """A page of calls that have ended."""

    rows: Sequence[HistoryEntry]
    next: Annotated[str | None, about("value of `after` for the next page; null at the end")]


class HistoryDetail(HistoryEntry, frozen=True, kw_only=True):
    """One call that has ended."""

    trace_url: Annotated[str | None, about("address of the trace by `telemetry.trace_url`; null without either")]
    content: Annotated[Any, about("redacted arguments and result, where `history.content` keeps them; else null")]
    audit: Annotated[Mapping[str, Any], about("query parameters of `/api/v1/audit` that find its audit rows")]


class CallSummary(Struct, frozen=True, kw_only=True):
    """Numbers of some calls."""

    calls: Annotated[int, about("number of calls")]
    bad: Annotated[int, about("calls with another outcome than ok")]
    outcomes: Annotated[Mapping[str, Any], about("number of calls by outcome")]
    p50_ms: Annotated[float | None, about("median latency; null if nothing was sent")]
    p99_ms: Annotated[float | None, about("99th percentile of the latency")]


class NamedSummary(CallSummary, frozen=True, kw_only=True):
    """The calls of one server, tool or caller."""

    name: Annotated[str, about("name of the server or caller, or SERVER/TOOL")]


class SeriesBucket(CallSummary, frozen=True, kw_only=True):
    """The calls of a part of a range of time."""

    start: Annotated[Time, about("start of the bucket")]


class LatencyStep(Struct, frozen=True, kw_only=True):
    """A step of the latency histogram."""

    up_to_ms: Annotated[float, about("upper bound of the latency")]
    calls: Annotated[int, about("number of calls")]


class HistorySeries(Struct, frozen=True, kw_only=True):
    """Calls over time."""

    since: Annotated[Time, about("start of the first bucket")]
    until: Annotated[Time, about("end of the last bucket")]
    bucket_ms: Annotated[int, about("length of a bucket in milliseconds")]
    buckets: Annotated[Sequence[SeriesBucket], about("all buckets of the range, oldest first")]
    total: CallSummary
    latencies: Annotated[Sequence[LatencyStep], about("latency histogram")]
