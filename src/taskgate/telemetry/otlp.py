"""Export spans and metrics to a collector as OTLP over HTTP, in the JSON encoding.

The SDK calls the exporters from a thread of its own, in batches. If the collector is unavailable, spans are lost; requests are not
affected. There are no retries: one export takes at most the configured timeout.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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

_STATUS: Final = {"UNSET": 0, "OK": 1, "ERROR": 2}


class OtlpEndpoint:
    """The endpoint of a collector."""

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


class OtlpSpanExporter(SpanExporter):
    def __init__(self, endpoint: OtlpEndpoint) -> None:
        self._target = endpoint

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        scopes = [{"scope": {"name": "taskgate"}, "spans": [_span(span) for span in spans]}]
        resource = {"attributes": _attributes(spans[0].resource.attributes)} if spans else {}
        sent = self._target.send("/v1/traces", {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]})
        return SpanExportResult.SUCCESS if sent else SpanExportResult.FAILURE


class OtlpMetricExporter(MetricExporter):
    def __init__(self, endpoint: OtlpEndpoint) -> None:
        super().__init__(preferred_temporality={HistogramInstrument: AggregationTemporality.CUMULATIVE})
        self._target = endpoint

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_more: Any) -> MetricExportResult:
        body = {"resourceMetrics": [_resource_metrics(found) for found in metrics_data.resource_metrics]}
        sent = self._target.send("/v1/metrics", body)
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_more: Any) -> None:
        """Nothing to close."""


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
