"""All metrics of a gateway, each with one sentence. Counters are plain attributes, read when Prometheus scrapes them.

A counter increment through the Prometheus library costs more than reading a whole request, so calls are counted in a dictionary and
shown by a collector.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from taskgate import clock

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SESSION_BUCKETS = (1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 14_400.0, 28_800.0, 86_400.0)

Labels = tuple[str, ...]
NAMING: Final = frozenset({"server", "server_id", "tool"})
"""Labels that name what is behind the gateway."""


class Counter:
    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[Labels, float] = defaultdict(float)

    def add(self, *labels: str, by: float = 1) -> None:
        self.values[labels] += by


class Gauge(msgspec.Struct, frozen=True, eq=False):
    """Read only when metrics are scraped."""

    name: str
    text: str
    labels: Labels
    read: Callable[[], Iterable[tuple[Labels, float]]]


class TraceOfValue(msgspec.Struct, frozen=True):
    """The trace of the last value in a bucket: an OpenMetrics exemplar."""

    trace_id: str
    span_id: str
    value: float
    at: float


CurrentTrace = Callable[[], tuple[str, str] | None]
"""Returns trace id and span id of the running request; None if it is not sampled."""


class Histogram:
    def __init__(
        self,
        name: str,
        text: str,
        labels: Labels = (),
        current_trace: CurrentTrace | None = None,
        bounds: tuple[float, ...] = BUCKETS,
    ) -> None:
        self.name, self.text, self.labels, self.bounds = name, text, labels, bounds
        self.values: dict[Labels, list[float]] = {}
        """For each bucket how many values it has, then how many are above all buckets, then the sum of the values."""
        self.traces: dict[tuple[Labels, int], TraceOfValue] = {}
        self._current_trace = current_trace

    def observe(self, seconds: float, *labels: str) -> None:
        row = self.values.get(labels)
        if row is None:
            row = self.values[labels] = [0.0] * (len(self.bounds) + 2)
        place = bisect_left(self.bounds, seconds)
        row[place] += 1
        row[-1] += seconds
        if self._current_trace is not None and (trace := self._current_trace()) is not None:
            self.traces[labels, place] = TraceOfValue(*trace, seconds, clock.wall())


class Metrics:
    """The metrics of one gateway."""

    def __init__(self, current_trace: CurrentTrace | None = None) -> None:
        self.requests = Counter("taskgate_requests", "Requests answered, by method and outcome.", ("method", "outcome"))
        self.denied = Counter("taskgate_denied", "Requests refused by a gate, by reason.", ("reason",))
        self.validation_errors = Counter(
            "taskgate_task_validation_errors", "Calls that violated a tool's task contract.", ("error",)
        )
        self.schema_violations = Counter(
            "taskgate_schema_violations",
            "Arguments and outputs that do not match their tool's schema.",
            ("error_type",),
        )
        self.transitions = Counter("taskgate_task_transitions", "Task state changes, by new state.", ("state",))
        self.approvals = Counter("taskgate_approvals", "Approvals, by outcome.", ("outcome",))
        self.injection = Counter(
            "taskgate_mcp_injection",
            "Servers of each computed set of tools, by status.",
            ("server_id", "status"),
        )
        self.denied_reason = Counter(
            "taskgate_mcp_denied_reason", "Servers and tools excluded from a scope, by reason.", ("server_id", "reason")
        )
        self.list_latency = Histogram(
            "taskgate_mcp_list_tools_latency_seconds", "Time to fetch a server's lists.", ("server_id",)
        )
        self.request_seconds = Histogram(
            "taskgate_request_seconds", "Time to answer a request.", ("method",), current_trace
        )
        self.session_seconds = Histogram(
            "taskgate_session_seconds", "How long sessions of callers lasted.", ("transport",), bounds=SESSION_BUCKETS
        )
        self.server_session_seconds = Histogram(
            "taskgate_server_session_seconds",
            "How long sessions with a server lasted.",
            ("server",),
            bounds=SESSION_BUCKETS,
        )
        self.usage_calls = Counter("taskgate_usage_calls", "Calls that reached a server, by server.", ("server",))
        self.usage_errors = Counter("taskgate_usage_errors", "Calls to a server that failed.", ("server",))
        self.usage_seconds = Counter(
            "taskgate_usage_seconds", "Total duration of calls to a server, in seconds.", ("server",)
        )
        self.usage_bytes = Counter(
            "taskgate_usage_bytes", "Bytes of their arguments (in) and results (out).", ("server", "direction")
        )
        self.usage_cost = Counter("taskgate_usage_sampling_cost", "Cost of models that answered servers.", ("server",))
        self.calls_ended = Counter(
            "taskgate_calls_ended",
            "Calls that have ended, by server and outcome; a tool error is a result with isError.",
            ("server", "outcome"),
        )
        self.gauges: list[Gauge] = []

    def answered(self, method: str, outcome: str, seconds: float) -> None:
        """Count one answered request. Runs for every call."""
        self.requests.values[method, outcome] += 1
        self.request_seconds.observe(seconds, method)

    def show(self, *gauges: Gauge) -> None:
        """Add gauges, which are read when metrics are scraped."""
        self.gauges.extend(gauges)

    def exposition(self, *, openmetrics: bool = False, names: bool = True) -> bytes:
        """Return the Prometheus text format, or OpenMetrics, which also has exemplars. The library is imported on first use.

        Without `names`, values that differ only in the labels of `NAMING` are added up.
        """
        from prometheus_client import generate_latest
        from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
        from prometheus_client.registry import CollectorRegistry

        registry, metrics = CollectorRegistry(), self

        class Collector:
            def collect(self) -> Iterable[Any]:
                yield from metrics._families(openmetrics, names)

        registry.register(Collector())
        render: Callable[[CollectorRegistry], bytes] = generate_openmetrics if openmetrics else generate_latest
        return render(registry)

    def _families(self, openmetrics: bool, names: bool) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for item in vars(self).values():
            if isinstance(item, Counter):
                labels, values = (
                    (item.labels, item.values) if names else _without_names(item.labels, item.values.items())
                )
                family = CounterMetricFamily(item.name, item.text, labels=labels)
                for of, value in values.items():
                    family.add_metric(of, value)
                yield family
            elif isinstance(item, Histogram):
                labels, rows = (item.labels, item.values) if names else _rows_without_names(item)
                histogram = HistogramMetricFamily(item.name, item.text, labels=labels)
                for of, row in rows.items():
                    shown = buckets(row, item.bounds)
                    if openmetrics:
                        shown = with_exemplars(shown, item.traces, of)
                    histogram.add_metric(of, shown, sum_value=row[-1])
                yield histogram
        for gauge in self.gauges:
            labels, values = (gauge.labels, dict(gauge.read())) if names else _without_names(gauge.labels, gauge.read())
            read = GaugeMetricFamily(gauge.name, gauge.text, labels=labels)
            for of, value in values.items():
                read.add_metric(of, value)
            yield read


def _without_names(labels: Labels, values: Iterable[tuple[Labels, float]]) -> tuple[Labels, dict[Labels, float]]:
    """Return the labels that name nothing, and the sums of the values for each of their combinations."""
    kept = [place for place, label in enumerate(labels) if label not in NAMING]
    sums: dict[Labels, float] = defaultdict(float)
    for of, value in values:
        sums[tuple(of[place] for place in kept)] += value
    return tuple(labels[place] for place in kept), sums


def _rows_without_names(histogram: Histogram) -> tuple[Labels, dict[Labels, list[float]]]:
    """As `_without_names`, for the rows of a histogram."""
    kept = [place for place, label in enumerate(histogram.labels) if label not in NAMING]
    sums: dict[Labels, list[float]] = {}
    for of, row in histogram.values.items():
        key = tuple(of[place] for place in kept)
        sums[key] = [one + other for one, other in zip(sums.get(key, [0.0] * len(row)), row, strict=True)]
    return tuple(histogram.labels[place] for place in kept), sums


def with_exemplars(
    shown: list[tuple[Any, ...]], traces: Mapping[tuple[Labels, int], TraceOfValue], labels: Labels
) -> list[tuple[Any, ...]]:
    """Add the trace of the last value to each bucket that has one."""
    from prometheus_client.samples import Exemplar

    found = [traces.get((labels, place)) for place in range(len(shown))]
    return [
        (*bucket, Exemplar({"trace_id": trace.trace_id, "span_id": trace.span_id}, trace.value, trace.at))
        if trace is not None
        else (*bucket, None)
        for bucket, trace in zip(shown, found, strict=True)
    ]


def buckets(row: list[float], bounds: tuple[float, ...]) -> list[tuple[Any, ...]]:
    """Return cumulative buckets, as Prometheus expects them."""
    total = 0.0
    made: list[tuple[Any, ...]] = []
    for index, bound in enumerate(bounds):
        total += row[index]
        made.append((str(bound), total))
    return [*made, ("+Inf", total + row[-2])]
