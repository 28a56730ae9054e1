"""Spans and durations by OpenTelemetry's conventions for MCP, and the trace context in `_meta` and headers.

Made only where the operator switched it on; nobody else imports OpenTelemetry. One span for each request we answer
(`tools/call NAME`, kind server), one for each request we send on (kind client) inside it, and two histograms. Context comes from
the caller's `_meta` (traceparent, tracestate, baggage) or, failing that, from its HTTP headers, and goes on in both.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.metrics import Meter
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from taskgate import clock

SERVER_DURATION: Final = "mcp.server.operation.duration"
CLIENT_DURATION: Final = "mcp.client.operation.duration"
BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
CONTEXT_KEYS: Final = ("traceparent", "tracestate", "baggage")
_TARGETS: Final = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",
    "resources/subscribe": "mcp.resource.uri",
    "resources/unsubscribe": "mcp.resource.uri",
}
_MADE_UP: Final = ("unknown_tool", "unknown_prompt", "unknown_resource", "method_not_found")
_IN_SPAN_NAME: Final = ("tools/call", "prompts/get")


class SpanOutcome:
    """How one operation ended, as far as its span needs to know."""

    __slots__ = ("error_type", "status_code")

    def __init__(self) -> None:
        self.error_type = ""
        self.status_code = ""

    def failed(self, error_type: str, code: int | None = None) -> None:
        self.error_type = error_type
        self.status_code = str(code) if code is not None else ""


class Tracing:
    def __init__(
        self, tracer: Tracer, meter: Meter, propagator: TextMapPropagator, shut_down: Callable[[], None]
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._shut_down = shut_down
        self._served = meter.create_histogram(
            SERVER_DURATION,
            "s",
            "How long it took to answer a request.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._called = meter.create_histogram(
            CLIENT_DURATION,
            "s",
            "How long a server took to answer a request of ours.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    @contextmanager
    def serving(
        self, method: str, target: str, meta: Mapping[str, Any], headers: Mapping[bytes, bytes], more: Mapping[str, str]
    ) -> Iterator[SpanOutcome]:
        """Around one request of a caller."""
        carrier = _in_meta(meta)
        if "traceparent" not in carrier:
            carrier = {k: v.decode("latin-1") for k in CONTEXT_KEYS if (v := headers.get(k.encode())) is not None}
        parent = self._propagator.extract(carrier)
        with self._operation(SpanKind.SERVER, method, target, more, parent, histogram=self._served) as (outcome, _):
            yield outcome

    @contextmanager
    def calling(
        self, method: str, target: str, server: str, kept: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[SpanOutcome, dict[str, str]]]:
        """Around one request of ours to a server; the second value is the context to send along.

        `kept` is the `_meta` of a call that may run long after its request, started by another one: it stays in its trace.
        """
        more = {"taskgate.server": server}
        parent = self._begun_elsewhere(kept) if kept is not None else None
        with self._operation(SpanKind.CLIENT, method, target, more, parent, histogram=self._called) as (outcome, _):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield outcome, carrier

    def _begun_elsewhere(self, kept: Mapping[str, Any]) -> contexts.Context | None:
        """The context that a call came with, if what is being served now is no part of that trace."""
        context = self._propagator.extract(_in_meta(kept), contexts.Context())
        began = get_current_span(context).get_span_context()
        now = get_current_span().get_span_context()
        return context if began.is_valid and began.trace_id != now.trace_id else None

    @contextmanager
    def _operation(
        self,
        kind: SpanKind,
        method: str,
        target: str,
        more: Mapping[str, str],
        parent: contexts.Context | None,
        *,
        histogram: Any,
    ) -> Iterator[tuple[SpanOutcome, Span]]:
        outcome, began = SpanOutcome(), clock.monotonic()
        attributes: dict[str, str] = {"mcp.method.name": method, **more}
        key = _TARGETS.get(method)
        if key is not None and target:
            attributes[key] = target
        name = f"{method} {target}" if target and method in _IN_SPAN_NAME else method
        measured = {k: v for k, v in attributes.items() if k in ("mcp.method.name", "gen_ai.tool.name")}
        with self._tracer.start_as_current_span(
            name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield outcome, span
            except BaseException as problem:
                outcome.failed(outcome.error_type or type(problem).__name__)
                raise
            finally:
                if outcome.error_type:
                    span.set_attribute("error.type", outcome.error_type)
                    span.set_status(Status(StatusCode.ERROR, outcome.error_type))
                    measured["error.type"] = outcome.error_type
                    if outcome.error_type in _MADE_UP:
                        # Names that callers make up must not become time series.
                        measured.pop("gen_ai.tool.name", None)
                    if outcome.error_type == "method_not_found":
                        measured["mcp.method.name"] = "_OTHER"
                if outcome.status_code:
                    span.set_attribute("rpc.response.status_code", outcome.status_code)
                histogram.record(clock.monotonic() - began, measured)

    def close(self) -> None:
        """Send what is still held back. Blocks for at most the export timeout."""
        self._shut_down()


def _in_meta(meta: Mapping[str, Any]) -> dict[str, str]:
    return {key: meta[key] for key in CONTEXT_KEYS if type(meta.get(key)) is str}


# Sends spans and metrics to a collector as OTLP over HTTP, in its JSON form.
#
# Written here because the SDK is then the only extra that tracing needs. The SDK calls it from a thread of its own, in
# batches; a collector that is away costs spans, never a request.

_STATUS: Final = {"UNSET": 0, "OK": 1, "ERROR": 2}


class TraceCollector:
    """Where to send to."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"content-type": "application/json", **headers}
        self._timeout_s = timeout_s

    def send(self, path: str, body: Mapping[str, Any]) -> bool:
        request = urllib.request.Request(
            f"{self._endpoint}{path}", json.dumps(body).encode(), self._headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                return bool(200 <= reply.status < 300)
        except (urllib.error.URLError, OSError, ValueError):
            return False


class SpansToCollector(SpanExporter):
    def __init__(self, collector: TraceCollector) -> None:
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        scopes = [{"scope": {"name": "taskgate"}, "spans": [_span(span) for span in spans]}]
        resource = {"attributes": _attributes(spans[0].resource.attributes)} if spans else {}
        sent = self._collector.send("/v1/traces", {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]})
        return SpanExportResult.SUCCESS if sent else SpanExportResult.FAILURE


class MetricsToCollector(MetricExporter):
    def __init__(self, collector: TraceCollector) -> None:
        super().__init__(preferred_temporality={HistogramInstrument: AggregationTemporality.CUMULATIVE})
        self._collector = collector

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_more: Any) -> MetricExportResult:
        body = {"resourceMetrics": [_resource_metrics(found) for found in metrics_data.resource_metrics]}
        sent = self._collector.send("/v1/metrics", body)
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_more: Any) -> None:
        """Nothing of its own is open."""


def _span(span: ReadableSpan) -> dict[str, Any]:
    own = span.get_span_context()
    assert own is not None
    shown: dict[str, Any] = {
        "traceId": f"{own.trace_id:032x}",
        "spanId": f"{own.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "status": {"code": _STATUS[span.status.status_code.name]},
    }
    if span.parent is not None:
        shown["parentSpanId"] = f"{span.parent.span_id:016x}"
    return shown


def _resource_metrics(found: Any) -> dict[str, Any]:
    scopes = [
        {
            "scope": {"name": scope.scope.name},
            "metrics": [_metric(metric) for metric in scope.metrics if isinstance(metric.data, Histogram)],
        }
        for scope in found.scope_metrics
    ]
    return {"resource": {"attributes": _attributes(found.resource.attributes)}, "scopeMetrics": scopes}


def _metric(metric: Any) -> dict[str, Any]:
    points = [
        {
            "attributes": _attributes(point.attributes),
            "startTimeUnixNano": str(point.start_time_unix_nano),
            "timeUnixNano": str(point.time_unix_nano),
            "count": str(point.count),
            "sum": point.sum,
            "bucketCounts": [str(count) for count in point.bucket_counts],
            "explicitBounds": list(point.explicit_bounds),
        }
        for point in metric.data.data_points
    ]
    histogram = {"dataPoints": points, "aggregationTemporality": 2}
    return {"name": metric.name, "unit": metric.unit, "description": metric.description, "histogram": histogram}


def _attributes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in found.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return {"arrayValue": {"values": [_value(part) for part in value]}}
    return {"stringValue": str(value)}
