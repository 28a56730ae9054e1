"""Set up OpenTelemetry, if the configuration enables it: provider, exporter and propagator.

Spans and metrics are sent by the OTLP/HTTP exporter of OpenTelemetry, in batches and from threads of the SDK: the event loop never
waits for the collector. The queue of spans is bounded: while the collector is unavailable, the oldest spans are dropped.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from taskgate import __version__, clock
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.globs import AnyOf, Glob
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.telemetry import Otel

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskgate.telemetry.tracing import Tracing

_PACKAGES = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
"""The packages that are needed, each with a module of it."""


def build_tracing(root: GatewayFile) -> Tracing | None:
    """Return None unless tracing is enabled; then nothing of OpenTelemetry is imported. Raises ConfigError."""
    check_tracing(root)
    return _build(root.telemetry.otel) if root.telemetry.otel.enabled else None


def check_tracing(root: GatewayFile) -> None:
    """Raises ConfigError if tracing is enabled and a package is not installed."""
    missing = [name for name, module in _PACKAGES.items() if not _is_installed(module)]
    if root.telemetry.otel.enabled and missing:
        hint = "install it: pip install 'taskgate[otel]'"
        raise ConfigError(
            [
                Problem(
                    file="",
                    line=0,
                    column=0,
                    key="telemetry.otel",
                    message=f"needs the package {' and '.join(missing)}",
                    hint=hint,
                )
            ]
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that contains it is missing
        return False


def _build(otel: Otel) -> Tracing:
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from taskgate.telemetry.tracing import Tracing

    timeout_s = otel.export_timeout
    headers = dict(otel.headers) or None
    # Without an endpoint the exporters read the `OTEL_*` environment variables.
    base = str(otel.endpoint).rstrip("/") if otel.endpoint else None
    spans = OTLPSpanExporter(f"{base}/v1/traces" if base else None, headers=headers, timeout=timeout_s)
    metrics = OTLPMetricExporter(f"{base}/v1/metrics" if base else None, headers=headers, timeout=timeout_s)
    resource = Resource.create({"service.name": otel.service_name, "service.version": __version__})
    traces = TracerProvider(sampler=ParentBased(TraceIdRatioBased(otel.sample_ratio)), resource=resource)
    traces.add_span_processor(BatchSpanProcessor(spans))
    meters = MeterProvider([PeriodicExportingMetricReader(metrics)], resource)

    def shut_down() -> None:
        if not _finished_within(timeout_s, traces.shutdown, meters.shutdown):
            # The collector is unavailable: end the retries, which would otherwise continue for each queued batch.
            spans.shutdown()  # type: ignore[no-untyped-call]
            metrics.shutdown()

    return Tracing(
        traces.get_tracer("taskgate", __version__),
        meters.get_meter("taskgate", __version__),
        CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()]),
        AnyOf.of(map(Glob.compile, otel.baggage)),
        shut_down,
    )


def _finished_within(timeout_s: float, *jobs: Callable[[], object]) -> bool:
    """Run blocking functions at the same time; return whether all of them finished in time."""
    threads = [threading.Thread(target=job, name="taskgate-tracing-end", daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    deadline = clock.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic()))
    return not any(thread.is_alive() for thread in threads)
