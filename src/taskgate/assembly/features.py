"""From the configuration to what is switched on beyond carrying calls, with the models that may answer for a caller.

Keys of model providers are read here, from the environment or from files, and go nowhere but into the provider. The HTTP client is
made, and its library imported, only where a provider is configured.

OpenTelemetry, where the configuration asks for it: provider, exporter and propagator, from our settings or OTEL_ variables.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from taskgate import __version__
from taskgate.config.gateway_file import GatewayFile
from taskgate.config.problems import ConfigError, Problem
from taskgate.config.servers import Provider
from taskgate.config.switches import Otel
from taskgate.config.value_sources import read_text
from taskgate.core.choose_model import Model, SpendLimits
from taskgate.gateway.plan.plan import Features, ModelSource, Validate

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

    from taskgate.telemetry.otlp import Collector, MetricsToCollector, SpansToCollector
    from taskgate.telemetry.tracing import Tracing

    endpoint = str(otel.endpoint) if otel.endpoint else os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", DEFAULT_ENDPOINT)
    collector = Collector(endpoint, otel.headers, otel.export_timeout.total_seconds())
    resource = Resource.create({"service.name": otel.service_name, "service.version": __version__})
    traces = TracerProvider(sampler=ParentBased(TraceIdRatioBased(otel.sample_ratio)), resource=resource)
    traces.add_span_processor(BatchSpanProcessor(SpansToCollector(collector)))
    meters = MeterProvider([PeriodicExportingMetricReader(MetricsToCollector(collector))], resource)

    def shut_down() -> None:
        traces.shutdown()
        meters.shutdown()

    return Tracing(
        traces.get_tracer("taskgate", __version__),
        meters.get_meter("taskgate", __version__),
        CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()]),
        shut_down,
    )


_MAX_KEY_BYTES = 64 * 1024


def build_features(root: GatewayFile, before: Features | None = None) -> Features:
    features = Features(
        Validate(root.validate_arguments),
        root.completion.learn,
        root.compat.vendor_methods,
        root.errors.profile == "erlmcp",
        root.limits.url_elicitations_per_minute,
        root.limits.url_elicitation_expiry.total_seconds(),
        root.limits.url_elicitation_loopback,
        root.store is not None and root.store.unsafe_degraded_passthrough,
        model_servers=frozenset(name for name, server in root.servers.items() if server.sampling == "provider"),
    )
    if not root.providers:
        return features
    keys = {name: _key(name, provider) for name, provider in root.providers.items()}
    origin = (root.model_dump(include={"providers"}), keys)
    if before is not None and before.models_origin == origin:
        # The same providers: the connections that are open to them stay.
        return replace(features, models=before.models, close_models=before.close_models, models_origin=origin)
    return replace(_with_models(features, root, keys), models_origin=origin)


def _with_models(features: Features, root: GatewayFile, keys: dict[str, str]) -> Features:
    import httpx2

    from taskgate.providers import ANTHROPIC_URL as ANTHROPIC
    from taskgate.providers import OPENAI_URL as OPENAI
    from taskgate.providers import AnthropicProvider, OpenAiProvider

    client = httpx2.AsyncClient(follow_redirects=False)
    sources = []
    for name, provider in root.providers.items():
        kind, vendor = (OpenAiProvider, OPENAI) if provider.kind == "openai" else (AnthropicProvider, ANTHROPIC)
        made = kind(
            name,
            _models(name, provider),
            client,
            keys[name],
            str(provider.base_url) if provider.base_url is not None else vendor,
            provider.timeout.total_seconds(),
        )
        budgets = provider.budgets
        limits = SpendLimits(budgets.tokens_per_hour, budgets.money_per_hour, budgets.requests_per_minute)
        sources.append(ModelSource(made, limits, provider.human_review))
    return replace(features, models=tuple(sources), close_models=client.aclose)


def _models(name: str, provider: Provider) -> tuple[Model, ...]:
    return tuple(
        Model(
            model.name,
            name,
            model.cost,
            model.speed,
            model.intelligence,
            model.input_price,
            model.output_price,
            model.max_tokens,
            model.images,
            model.audio,
            model.tools,
            model.aliases,
        )
        for model in provider.models
    )


def _key(name: str, provider: Provider) -> str:
    """The key, from where the configuration says it is; an OpenAI-compatible service on this machine may need none."""
    if provider.api_key_file is not None:
        return read_text(Path(provider.api_key_file), _MAX_KEY_BYTES).strip()
    if provider.api_key_env is None:
        return ""
    key = os.environ.get(provider.api_key_env)
    if key is None:
        problem = f"the variable {provider.api_key_env} is not set"
        raise ConfigError(
            [Problem("", 0, 0, f"providers.{name}.api_key_env", problem, "set it, or take the provider out")]
        )
    return key
