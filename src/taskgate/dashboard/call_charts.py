"""Charts of calls from counts of history: outcomes over time, latency over time, and how latencies are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from taskgate.core.history.counts import Series, Summary
from taskgate.core.history.row import CallOutcome
from taskgate.dashboard import units
from taskgate.dashboard.charts.band import latency_band
from taskgate.dashboard.charts.bars import histogram, stacked_bars
from taskgate.dashboard.charts.figure import Column
from taskgate.dashboard.charts.figure import Series as Drawn
from taskgate.dashboard.charts.sparkline import sparkline
from taskgate.dashboard.ranges import short_time, stamp
from taskgate.dashboard.web import with_query

_DAY_MS: Final = 86_400_000
_GROUPS: Final = (
    (Drawn("ok", "t-ok"), (CallOutcome.OK,)),
    (Drawn("tool error", "t-tool"), (CallOutcome.TOOL_ERROR,)),
    (Drawn("failed", "t-bad"), (CallOutcome.FAILED, CallOutcome.OUTCOME_UNKNOWN)),
    (Drawn("denied", "t-wait"), (CallOutcome.DENIED, CallOutcome.REJECTED, CallOutcome.EXPIRED)),
    (Drawn("cancelled", "t-off"), (CallOutcome.CANCELLED,)),
)
"""What is drawn in one colour."""
_STEP: Final = 2**0.5
"""Neighbouring bounds of latencies differ by this factor (`core.history.counts`)."""
MAX_STEPS: Final = 60
BAD_SHARE: Final = 0.2
"""From this share of bad calls on, a subject needs attention."""
Filter = Mapping[str, str | None]


def outcome_chart(series: Series, title: str, filters: Filter) -> Markup:
    """Calls by outcome. A column leads to the list of its calls: `filters` are those of the chart's subject."""
    columns = []
    for bucket in series.buckets:
        until = bucket.start_ms + series.bucket_ms
        counts = bucket.summary.counts
        values = tuple(float(sum(counts.get(one, 0) for one in outcomes)) for _, outcomes in _GROUPS)
        href = with_query("/tasks", filters, since=stamp(bucket.start_ms), until=stamp(until))
        columns.append(_column(series, bucket.start_ms, values, href if bucket.summary.calls else None))
    total = f"{units.count(series.total.calls)} calls"
    return stacked_bars(title, [drawn for drawn, _ in _GROUPS], columns, summary=total)


def latency_chart(series: Series, title: str) -> Markup:
    columns = [
        _column(series, bucket.start_ms, (bucket.summary.p50_ms, bucket.summary.p99_ms), None)
        for bucket in series.buckets
    ]
    summary = series.total
    text = (
        f"p50 {units.duration(summary.p50_ms)}, p99 {units.duration(summary.p99_ms)}" if summary.p50_ms else "no calls"
    )
    return latency_band(title, columns, summary=text)


def latency_histogram(series: Series, title: str) -> Markup:
    """How many calls took how long. Steps without calls between others are kept, so that the axis has no jumps."""
    known = dict(series.latencies)
    bounds = sorted(known)
    columns: list[Column] = []
    lower = 0.0
    place = 0
    while place < len(bounds):
        upper = bounds[place]
        following = lower * _STEP if lower >= 1 else upper
        if columns and following < upper * 0.99 and len(columns) < MAX_STEPS:
            columns.append(_step(following, 0))
            lower = following
            continue
        columns.append(_step(upper, known[upper]))
        lower = upper
        place += 1
    return histogram(title, columns, summary=f"{units.count(series.total.calls)} calls")


def _step(upper_ms: float, calls: int) -> Column:
    until = units.duration(upper_ms)
    return Column(f"up to {until}", (float(calls),), axis=until)


def call_sparkline(total: Summary, calls: Sequence[int]) -> Markup:
    return sparkline(calls, f"{units.count(total.calls)} calls", tone="t-bad" if is_bad(total) else "t-run")


def is_bad(summary: Summary) -> bool:
    """Whether so many calls ended badly that it needs attention."""
    return summary.calls > 0 and summary.bad / summary.calls >= BAD_SHARE


def _column(series: Series, at_ms: int, values: tuple[float | None, ...], href: str | None) -> Column:
    with_day = series.until_ms - series.since_ms > _DAY_MS
    label = f"{short_time(at_ms, with_day=with_day)} UTC"
    return Column(label, values, href, at_ms=at_ms, with_day=with_day)
