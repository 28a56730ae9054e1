"""The `telemetry` section: metrics, OpenTelemetry and logs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from taskgate.config.model.values import Duration, HeaderMap, HttpUrl, Patterns, TraceUrl
from taskgate.config.sections import Field, Section


class Otel(Section):
    """OpenTelemetry export."""

    enabled: bool = Field(default=False, description="Export traces and metrics.")
    endpoint: HttpUrl | None = Field(
        default=None,
        description="OTLP/HTTP endpoint, for example `http://127.0.0.1:4318`. Default: the `OTEL_*` environment variables.",
    )
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="HTTP headers for the collector.")
    service_name: str = Field(default="taskgate", description="Service name in exported data.")
    sample_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=1.0,
        description="Fraction of traces that is exported, 0 to 1.",
    )
    baggage: Patterns = Field(
        default=(),
        description="Names (globs) of W3C baggage entries that are passed on to servers, for example `[tenant]`. Others are "
        "removed.",
    )
    export_timeout: Duration = Field(default=timedelta(seconds=10), description="Timeout of one export.")


class Telemetry(Section):
    """Logs, metrics and traces."""

    metrics: bool = Field(default=True, description="Serve Prometheus metrics at `/metrics`.")
    names: Literal["all", "see"] | None = Field(
        default=None,
        description="Who sees the names of servers at `/metrics` and `/ready`: `all` callers, or holders of a credential with the "
        "permission `see`; others get the same numbers without these labels. Default: `see` if callers need a credential, "
        "otherwise `all`.",
    )
    otel: Otel = Field(default_factory=Otel.model_construct, description="OpenTelemetry export.")
    trace_url: TraceUrl | None = Field(
        default=None,
        description="Address of a trace in your tracing system, with `{trace_id}` in it, for example "
        "`https://jaeger.example/trace/{trace_id}`. The console links the trace ids of calls to it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Minimum level of log messages.",
    )
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="`auto` logs text on a terminal and JSON elsewhere.",
    )
