"""The `telemetry` section: metrics, OpenTelemetry and logs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from taskgate.config.model.values import Duration, HeaderMap, HttpUrl, Section


class Otel(Section):
    """OpenTelemetry."""

    enabled: bool = Field(default=False, description="Send spans and metrics.")
    endpoint: HttpUrl | None = Field(default=None, description="OTLP over HTTP; default: the OTEL_ variables.")
    headers: HeaderMap = Field(default_factory=dict, repr=False, description="Headers for the collector.")
    service_name: str = Field(default="taskgate", description="Name of this service.")
    sample_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=1.0,
        description="Share of traces that is kept.",
    )
    export_timeout: Duration = Field(default=timedelta(seconds=10), description="For one export.")


class Telemetry(Section):
    """What is measured."""

    metrics: bool = Field(default=True, description="Serve /metrics.")
    otel: Otel = Field(default_factory=Otel, description="OpenTelemetry, off unless configured.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least important line that is logged.",
    )
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="auto: text on a terminal, JSON elsewhere.",
    )
