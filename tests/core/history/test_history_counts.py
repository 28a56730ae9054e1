"""Counts of calls: latency steps, percentiles, series and totals."""

from __future__ import annotations

import pytest

from taskgate.core.history.counts import (
    ANY_OUTCOME,
    LAST_STEP,
    NO_LATENCY,
    CountRow,
    Dimension,
    Period,
    Summary,
    bucket_length,
    counted,
    courses,
    latency_period,
    percentile,
    period_for,
    series,
    step_of,
    totals,
    totals_period,
    upper_bound_ms,
    with_latencies,
)
from taskgate.core.history.row import CallOutcome

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_800_000_000_000


@pytest.mark.parametrize("ms", [0.0, 0.4, 1.0, 1.5, 7.0, 100.0, 3_000.0, 86_000_000.0])
def test_latency_is_within_its_bucket(ms: float) -> None:
    step = step_of(ms)
    assert ms < upper_bound_ms(step)
    assert step == 0 or ms >= upper_bound_ms(step - 1) * 0.999


def test_longest_latency_is_in_the_last_bucket() -> None:
    assert step_of(1e15) == LAST_STEP


def test_percentiles_are_accurate_to_a_fifth() -> None:
    steps: dict[int, int] = {}
    for ms in range(1, 1_001):
        steps[step_of(ms)] = steps.get(step_of(ms), 0) + 1
    assert percentile(steps, 0.5) == pytest.approx(500, rel=0.2)
    assert percentile(steps, 0.99) == pytest.approx(990, rel=0.2)
    assert percentile({}, 0.5) is None
    assert percentile({0: 1}, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("ms", [2.0, 3_700.0, 267_600.0, 300_000.0])
def test_percentiles_of_one_call_are_equal_and_accurate_to_a_fifth(ms: float) -> None:
    steps = {step_of(ms): 1}
    assert percentile(steps, 0.5) == percentile(steps, 0.99) == pytest.approx(ms, rel=0.2)


def test_calls_that_were_not_sent_have_no_latency() -> None:
    found = totals([CountRow(0, "", "denied", NO_LATENCY, 5), CountRow(0, "", "ok", 3, 2)])[0].summary
    assert (found.calls, found.bad) == (7, 5)
    assert found.p50_ms is not None
    assert found.p50_ms <= upper_bound_ms(3)
    assert totals([CountRow(0, "", "denied", NO_LATENCY, 5)])[0].summary.p99_ms is None


@pytest.mark.parametrize(
    ("counts", "bad", "share"),
    [
        ({}, 0, None),
        ({CallOutcome.OK: 4}, 0, 0.0),
        ({CallOutcome.OK: 3, CallOutcome.DENIED: 1}, 1, 0.25),
        ({CallOutcome.TOOL_ERROR: 1, CallOutcome.OUTCOME_UNKNOWN: 1}, 2, 1.0),
        ({CallOutcome.GAP: 1, CallOutcome.FAILED: 1}, 1, 0.5),
    ],
)
def test_share_of_calls_that_ended_badly(counts: dict[CallOutcome, int], bad: int, share: float | None) -> None:
    summary = Summary(counts)
    assert (summary.bad, summary.bad_share) == (bad, share)


def test_latencies_are_counted_in_rows_without_an_outcome() -> None:
    rows = [CountRow(NOW, "", "ok", NO_LATENCY, 2), CountRow(NOW, "", "failed", NO_LATENCY, 1)]
    found = series([*rows, CountRow(NOW, "", ANY_OUTCOME, 3, 3)], NOW, NOW + 60_000, 60_000)
    assert found.total.counts == {CallOutcome.OK: 2, CallOutcome.FAILED: 1}
    assert found.latencies == ((upper_bound_ms(3), 3),)
    assert found.total.p50_ms is not None
    assert series(rows, NOW, NOW + 60_000, 60_000).total.p50_ms is None


def test_series_has_a_bucket_for_every_interval_also_without_calls() -> None:
    minute = 60_000
    rows = [
        CountRow(NOW, "", "ok", 3, 2),
        CountRow(NOW + 5 * minute, "", "tool_error", 5, 1),
        CountRow(NOW - HOUR, "", "ok", 3, 9),
    ]
    found = series(rows, NOW, NOW + 10 * minute, minute)
    assert [bucket.summary.calls for bucket in found.buckets] == [2, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert found.buckets[5].summary.counts == {CallOutcome.TOOL_ERROR: 1}
    assert found.total.calls == 3
    assert [calls for _, calls in found.latencies] == [2, 1]


@pytest.mark.parametrize(
    ("since", "until", "period"),
    [
        (NOW - HOUR, NOW, Period.MINUTE),
        (NOW - DAY, NOW, Period.QUARTER),
        (NOW - 7 * DAY, NOW, Period.TWO_HOURS),
        (NOW - 5 * HOUR, NOW - 4 * HOUR, Period.QUARTER),
        (NOW - 30 * DAY, NOW - 29 * DAY, Period.DAY),
        (NOW - 3650 * DAY, NOW, Period.DAY),
    ],
)
def test_period_is_the_finest_that_is_still_kept(since: int, until: int, period: Period) -> None:
    assert period_for(since, until, NOW) is period


@pytest.mark.parametrize(
    ("since", "period"),
    [
        (NOW - HOUR, Period.MINUTE),
        (NOW - DAY, Period.HOUR_SUM),
        (NOW - 7 * DAY, Period.DAY_SUM),
        (NOW - 3650 * DAY, Period.DAY_SUM),
    ],
)
def test_totals_of_long_ranges_come_from_sums_without_latencies(since: int, period: Period) -> None:
    assert totals_period(since, NOW, NOW) is period


def test_percentiles_of_totals_are_those_of_all_periods_together() -> None:
    """Of a day with 99 fast calls and a day with one slow one, not the average of two percentiles."""
    days = [CountRow(0, "a", "", step_of(10), 99), CountRow(0, "a", "", step_of(5_000), 1)]
    found = totals([CountRow(0, "a", "ok", -1, 100), CountRow(0, "b", "denied", -1, 7)])
    fast, denied = with_latencies(found, [*days, CountRow(0, "b", "", -1, 7), CountRow(0, "other", "", 3, 1)])
    assert fast.summary.counts == {CallOutcome.OK: 100}
    assert fast.summary.p50_ms is not None
    assert fast.summary.p99_ms is not None
    assert fast.summary.p50_ms < upper_bound_ms(step_of(10))
    assert fast.summary.p99_ms <= upper_bound_ms(step_of(10))
    assert (denied.name, denied.summary.p50_ms, denied.summary.p99_ms) == ("b", None, None)
    ((slower,), _) = with_latencies(found[:1], [*days, CountRow(0, "a", "", step_of(5_000), 1)]), None
    assert slower.summary.p99_ms is not None
    assert slower.summary.p99_ms > 2_000


@pytest.mark.parametrize("period", list(Period))
def test_totals_without_latencies_have_a_period_with_them(period: Period) -> None:
    found = latency_period(period)
    assert (found is None) == period.has_latencies
    assert found is None or (found.has_latencies and found.kept_ms >= period.kept_ms)


@pytest.mark.parametrize(
    ("length", "maximum"), [(HOUR, 60), (DAY, 96), (3650 * DAY, 100), (0, 60), (DAY, 0), (DAY, 10_000)]
)
def test_number_of_buckets_is_bounded(length: int, maximum: int) -> None:
    for period in Period:
        bucket_ms = bucket_length(NOW, NOW + length, period, maximum)
        assert bucket_ms % period.length_ms == 0
        assert length / bucket_ms <= min(max(1, maximum), 400)


def test_course_has_the_calls_of_every_bucket_also_without_calls() -> None:
    rows = [CountRow(start, name, "", -1, calls) for start, name, calls in ((0, "a", 9), (100, "a", 1), (300, "b", 2))]
    assert courses(rows, 150, 350, 100) == {"a": (1, 0, 0), "b": (0, 0, 2)}
    assert courses([], 150, 350, 100) == {}


def test_totals_are_ordered_by_calls() -> None:
    rows = [CountRow(0, "a", "ok", 1, 1), CountRow(0, "b", "ok", 1, 5), CountRow(0, "a", "failed", 1, 2)]
    assert [(total.name, total.summary.calls, total.summary.bad) for total in totals(rows)] == [
        ("b", 5, 0),
        ("a", 3, 2),
    ]


def test_calls_are_counted_by_each_dimension_that_they_have() -> None:
    every = counted("acme/ann", "acme", "files", "read", outcome=CallOutcome.OK, step=3, calls=1)
    assert {count.dimension: count.name for count in every} == {
        Dimension.ALL: "",
        Dimension.SERVER: "files",
        Dimension.TOOL: "files/read",
        Dimension.CALLER: "acme/ann",
    }
    refused = counted("acme/ann", "acme", "", "guessed", outcome=CallOutcome.DENIED, step=NO_LATENCY, calls=3)
    assert [count.dimension for count in refused] == [Dimension.ALL, Dimension.CALLER]
    assert Period.DAY.kept_ms > Period.TWO_HOURS.kept_ms > Period.QUARTER.kept_ms > Period.MINUTE.kept_ms
    assert [period for period in Period if not period.has_latencies] == [Period.HOUR_SUM, Period.DAY_SUM]
