"""Counts of calls by time, for charts: how many ended how, and how long they took.

Every call is counted, also those of which sampling keeps no row. A count belongs to a period of several lengths, to a subject
(all calls, one server, one tool, one caller) and to a tenant. Outcomes and steps of latency are counted separately. Steps grow by
the square root of two, so a percentile is accurate to about a fifth.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from math import ceil
from typing import Final, NamedTuple

import msgspec

from taskgate.core.history.row import BAD_OUTCOMES, CallOutcome

STEPS_PER_OCTAVE: Final = 2
LAST_STEP: Final = 53
"""The step of calls that took a day or longer."""
NO_LATENCY: Final = -1
"""The step of calls of which nothing was sent, and of rows that count outcomes."""
ANY_OUTCOME: Final = ""
"""The outcome of rows that count latencies."""
MAX_BUCKETS: Final = 400
MAX_TOTALS: Final = 1_000


class Period(StrEnum):
    """The length of the periods that calls are counted in. Shorter ones are kept for a shorter time."""

    MINUTE = "minute"
    QUARTER = "quarter"
    """15 minutes."""
    TWO_HOURS = "two_hours"
    DAY = "day"
    HOUR_SUM = "hour_sum"
    """An hour, without latencies: few rows, for totals of many names."""
    DAY_SUM = "day_sum"

    @property
    def length_ms(self) -> int:
        return _LENGTHS[self]

    @property
    def has_latencies(self) -> bool:
        return self not in (Period.HOUR_SUM, Period.DAY_SUM)

    @property
    def kept_ms(self) -> int:
        """How long counts of this length are kept, if `history.keep` is not shorter."""
        return _KEPT[self]


_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_LENGTHS: Final = {
    Period.MINUTE: 60_000,
    Period.QUARTER: 900_000,
    Period.TWO_HOURS: 2 * _HOUR_MS,
    Period.DAY: _DAY_MS,
    Period.HOUR_SUM: _HOUR_MS,
    Period.DAY_SUM: _DAY_MS,
}
_KEPT: Final = {
    Period.MINUTE: 3 * _HOUR_MS,
    Period.QUARTER: 27 * _HOUR_MS,
    Period.TWO_HOURS: 8 * _DAY_MS,
    Period.DAY: 3650 * _DAY_MS,
    Period.HOUR_SUM: 27 * _HOUR_MS,
    Period.DAY_SUM: 3650 * _DAY_MS,
}


class Dimension(StrEnum):
    """What calls are counted by."""

    ALL = "all"
    SERVER = "server"
    TOOL = "tool"
    """Named `SERVER/TOOL`."""
    CALLER = "caller"
    WAITING = "waiting"
    """Tasks that waited for approval; the latency is the time that they waited, and there is one name, which is empty."""
    ANSWERING = "answering"
    """Questions of tasks, like `WAITING`: the latency is the time until the answer, or until the task ended without one."""


class ChartSubject(msgspec.Struct, frozen=True):
    """Whose calls a chart shows. `name` is empty for `Dimension.ALL`; `tenant` None means of all tenants."""

    dimension: Dimension = Dimension.ALL
    name: str = ""
    tenant: str | None = None


class Counted(NamedTuple):
    """The number of calls with one outcome and step of latency."""

    dimension: Dimension
    name: str
    tenant: str
    outcome: CallOutcome
    step: int
    """The step of latency; see `step_of`."""
    calls: int


class CountRow(NamedTuple):
    """What the store returns: calls of one period and name with one outcome, or with one step of latency."""

    start_ms: int
    name: str
    outcome: str
    step: int
    calls: int


class Summary(msgspec.Struct, frozen=True):
    """Calls of one name or of one stretch of time."""

    counts: Mapping[CallOutcome, int]
    p50_ms: float | None = None
    """None if no call was sent."""
    p99_ms: float | None = None

    @property
    def calls(self) -> int:
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        """Calls that did not end well: tool errors, failures, denials and all other outcomes but `ok`."""
        return sum(count for outcome, count in self.counts.items() if outcome in BAD_OUTCOMES)

    @property
    def bad_share(self) -> float | None:
        """None without calls."""
        return self.bad / self.calls if self.calls else None


class Bucket(msgspec.Struct, frozen=True):
    start_ms: int
    summary: Summary


class Series(msgspec.Struct, frozen=True):
    """The calls of one subject over a range of time: buckets of equal length without gaps, oldest first, and all together."""

    since_ms: int
    until_ms: int
    bucket_ms: int
    buckets: tuple[Bucket, ...]
    total: Summary
    latencies: tuple[tuple[float, int], ...] = ()
    """The histogram: upper bound in milliseconds and number of calls, in order."""


class Total(msgspec.Struct, frozen=True):
    """The calls of one name of a dimension in a range of time."""

    name: str
    summary: Summary


def upper_bound_ms(step: int) -> float:
    return float(2 ** (step / STEPS_PER_OCTAVE))


step_of: Final[Callable[[float], int]] = partial(bisect_right, [upper_bound_ms(step) for step in range(LAST_STEP)])
"""The step of a latency in milliseconds. Step 0 is everything below one. Not a `def`: every call is counted with it."""


def period_for(since_ms: int, until_ms: int, now_ms: int) -> Period:
    """The shortest period whose counts still exist for the whole range, and of which the range does not contain too many."""
    for period in (Period.MINUTE, Period.QUARTER, Period.TWO_HOURS):
        if until_ms - since_ms <= period.kept_ms and since_ms >= now_ms - period.kept_ms:
            return period
    return Period.DAY


def totals_period(since_ms: int, until_ms: int, now_ms: int) -> Period:
    """The period for totals of all names: with latencies for up to three hours, without them for longer ranges."""
    period = period_for(since_ms, until_ms, now_ms)
    if period is Period.MINUTE:
        return period
    return Period.HOUR_SUM if period is Period.QUARTER else Period.DAY_SUM


def latency_period(period: Period) -> Period | None:
    """The period that has the latencies for totals of this one; None if it has them itself.

    Fewer and longer periods than a chart of the range would use, because many names are read together.
    """
    return {Period.HOUR_SUM: Period.TWO_HOURS, Period.DAY_SUM: Period.DAY}.get(period)


def bucket_length(since_ms: int, until_ms: int, period: Period, maximum: int) -> int:
    """The length of the buckets of a chart: whole periods, so that there are at most `maximum` buckets."""
    maximum = min(max(1, maximum), MAX_BUCKETS)
    periods = max(1, ceil((until_ms - since_ms) / period.length_ms))
    return ceil(periods / maximum) * period.length_ms


def series(rows: Iterable[CountRow], since_ms: int, until_ms: int, bucket_ms: int) -> Series:
    """Add up counts into buckets. The range is widened to whole buckets."""
    first = since_ms // bucket_ms * bucket_ms
    number = max(1, ceil((until_ms - first) / bucket_ms))
    sums = [_Sums() for _ in range(number)]
    total = _Sums()
    for start, _, outcome, step, calls in rows:
        place = (start - first) // bucket_ms
        if 0 <= place < number:
            sums[place].add(outcome, step, calls)
            total.add(outcome, step, calls)
    buckets = tuple(Bucket(first + place * bucket_ms, part.summary()) for place, part in enumerate(sums))
    latencies = tuple((upper_bound_ms(step), total.steps[step]) for step in sorted(total.steps))
    return Series(
        since_ms=first,
        until_ms=first + number * bucket_ms,
        bucket_ms=bucket_ms,
        buckets=buckets,
        total=total.summary(),
        latencies=latencies,
    )


def courses(rows: Iterable[CountRow], since_ms: int, until_ms: int, bucket_ms: int) -> dict[str, tuple[int, ...]]:
    """The number of calls of each name in each bucket, oldest first."""
    first = since_ms // bucket_ms * bucket_ms
    number = max(1, ceil((until_ms - first) / bucket_ms))
    found: dict[str, list[int]] = {}
    for start, name, _, _, calls in rows:
        place = (start - first) // bucket_ms
        if 0 <= place < number:
            found.setdefault(name, [0] * number)[place] += calls
    return {name: tuple(calls) for name, calls in found.items()}


def totals(rows: Iterable[CountRow]) -> tuple[Total, ...]:
    """One total for each name, most calls first."""
    named: dict[str, _Sums] = {}
    for _, name, outcome, step, calls in rows:
        sums = named.get(name)
        if sums is None:
            sums = named[name] = _Sums()
        sums.add(outcome, step, calls)
    found = [Total(name, sums.summary()) for name, sums in named.items()]
    return tuple(sorted(found, key=lambda total: (-total.summary.calls, total.name)))[:MAX_TOTALS]


def with_latencies(found: Iterable[Total], rows: Iterable[CountRow]) -> tuple[Total, ...]:
    """The same totals with percentiles from these counts: the histograms of all periods are added up for each name."""
    steps: dict[str, dict[int, int]] = {}
    for row in rows:
        if row.step != NO_LATENCY:
            named = steps.setdefault(row.name, {})
            named[row.step] = named.get(row.step, 0) + row.calls
    return tuple(
        Total(
            total.name,
            Summary(
                total.summary.counts,
                percentile(steps.get(total.name, {}), 0.5),
                percentile(steps.get(total.name, {}), 0.99),
            ),
        )
        for total in found
    )


class _Sums:
    """Calls by outcome and by step of latency, while they are added up."""

    __slots__ = ("counts", "steps")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.steps: dict[int, int] = {}

    def add(self, outcome: str, step: int, calls: int) -> None:
        counts, steps = self.counts, self.steps
        if outcome != ANY_OUTCOME:
            counts[outcome] = counts.get(outcome, 0) + calls
        if step != NO_LATENCY:
            steps[step] = steps.get(step, 0) + calls

    def summary(self) -> Summary:
        counts = {CallOutcome(outcome): calls for outcome, calls in self.counts.items()}
        return Summary(counts, percentile(self.steps, 0.5), percentile(self.steps, 0.99))


def percentile(steps: Mapping[int, int], part: float) -> float | None:
    """Estimate the latency in milliseconds that this part of the calls does not exceed: it is off by less than a fifth.

    The calls of a step are taken as evenly spread over it; one alone is in its middle.
    """
    rank, passed = max(1, ceil(part * sum(steps.values()))), 0
    for step in sorted(steps):
        if passed + steps[step] >= rank:
            place = (rank - passed - 0.5) / steps[step]
            high = upper_bound_ms(step)
            low = upper_bound_ms(step - 1) if step else 0.0
            return round(low * (high / low) ** place if low else high * place, 1)
        passed += steps[step]
    return None


def counted(
    caller: str, tenant: str, server: str, tool: str, *, outcome: CallOutcome, step: int, calls: int
) -> tuple[Counted, ...]:
    """The counts that calls add to, one for each dimension. An empty server or tool is not counted by name."""
    found = [Counted(dimension=Dimension.ALL, name="", tenant=tenant, outcome=outcome, step=step, calls=calls)]
    if server:
        found.append(
            Counted(dimension=Dimension.SERVER, name=server, tenant=tenant, outcome=outcome, step=step, calls=calls)
        )
    if server and tool:
        found.append(
            Counted(
                dimension=Dimension.TOOL,
                name=f"{server}/{tool}",
                tenant=tenant,
                outcome=outcome,
                step=step,
                calls=calls,
            )
        )
    found.append(
        Counted(dimension=Dimension.CALLER, name=caller, tenant=tenant, outcome=outcome, step=step, calls=calls)
    )
    return tuple(found)
