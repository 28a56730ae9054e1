"""Set up OpenTelemetry, if the configuration enables it: provider, exporter and propagator."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from taskgate import __version__
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.telemetry import Otel
from taskgate.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


DEFAULT_ENDPOINT = "http://127.0.0.1:4318"


def build_tracing(root: GatewayFile) -> Tracing | None:
    """None unless switched on: then nothing of OpenTelemetry is imported."""
    check_tracing(root)
    return _build(root.telemetry.otel) if root.telemetry.otel.enabled else None


def check_tracing(root: GatewayFile) -> None:
    """Say before the start what would be missing at it."""
    if root.telemetry.otel.enabled and find_spec("opentelemetry.sdk") is None:
        hint = "install it: pip install 'taskgate[otel]'"
        raise ConfigError([Problem("", 0, 0, "telemetry.otel", "needs the OpenTelemetry SDK", hint)])


def _build(otel: Otel) -> Tracing:
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from taskgate.telemetry.otlp import OtlpEndpoint, OtlpMetricExporter, OtlpSpanExporter
    from taskgate.telemetry.tracing import Tracing

    endpoint = str(otel.endpoint) if otel.endpoint else os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", DEFAULT_ENDPOINT)
    collector = OtlpEndpoint(endpoint, otel.headers, otel.export_timeout.total_seconds())
    resource = Resource.create({"service.name": otel.service_name, "service.version": __version__})
    traces = TracerProvider(sampler=ParentBased(TraceIdRatioBased(otel.sample_ratio)), resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OtlpSpanExporter(collector)))
    meters = MeterProvider([PeriodicExportingMetricReader(OtlpMetricExporter(collector))], resource)

    def shut_down() -> None:
        traces.shutdown()
        meters.shutdown()

    return Tracing(
        traces.get_tracer("taskgate", __version__),
        meters.get_meter("taskgate", __version__),
        CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()]),
        shut_down,
    )
