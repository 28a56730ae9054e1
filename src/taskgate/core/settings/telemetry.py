"""The `telemetry` section: metrics, OpenTelemetry and logs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import SECRET, Section
from taskgate.core.settings.values import Duration, HeaderMap, HttpUrl, Patterns, TraceUrl


class Otel(Section):
    """OpenTelemetry export."""

    enabled: Annotated[bool, Meta(description="Export traces and metrics.")] = False
    endpoint: Annotated[
        HttpUrl | None,
        Meta(
            description="OTLP/HTTP endpoint, for example `http://127.0.0.1:4318`. Default: the `OTEL_*` environment "
            "variables."
        ),
    ] = None
    headers: Annotated[HeaderMap, Meta(extra=SECRET, description="HTTP headers for the collector.")] = field(
        default_factory=dict
    )
    service_name: Annotated[str, Meta(description="Service name in exported data.")] = "taskgate"
    sample_ratio: Annotated[float, Meta(ge=0.0, le=1.0, description="Fraction of traces that is exported, 0 to 1.")] = (
        1.0
    )
    baggage: Annotated[
        Patterns,
        Meta(
            description="Names (globs) of W3C baggage entries that are passed on to servers, for example `[tenant]`. Others "
            "are removed."
        ),
    ] = ()
    export_timeout: Annotated[Duration, Meta(description="Timeout of one export.")] = duration("10s")


class Telemetry(Section):
    """Logs, metrics and traces."""

    metrics: Annotated[bool, Meta(description="Serve Prometheus metrics at `/metrics`.")] = True
    names: Annotated[
        Literal["all", "see"] | None,
        Meta(
            description="Who sees the names of servers at `/metrics` and `/ready`: `all` callers, or holders of a credential "
            "with the permission `see`; others get the same numbers without these labels. Default: `see` if "
            "callers need a credential, otherwise `all`."
        ),
    ] = None
    otel: Annotated[Otel, Meta(description="OpenTelemetry export.")] = Otel()
    trace_url: Annotated[
        TraceUrl | None,
        Meta(
            description="Address of a trace in your tracing system, with `{trace_id}` in it, for example "
            "`https://jaeger.example/trace/{trace_id}`. The console links the trace ids of calls to it."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of log messages.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"], Meta(description="`auto` logs text on a terminal and JSON elsewhere.")
    ] = "auto"
