"""From a validated configuration file to the plan the gateway works from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from taskgate import __version__
from taskgate.assembly.governing import approval_policy, build_gates, build_governing, load_policy
from taskgate.config.files import read_text
from taskgate.config.load import LoadedConfig
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.providers import Provider
from taskgate.config.model.scopes import Scope, ScopeProfile
from taskgate.config.model.servers import Server
from taskgate.config.model.telemetry import Otel
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.delivery import DeliverySettings
from taskgate.core.governance.task_annotation import AnnotationMode
from taskgate.core.patterns import PatternSet
from taskgate.core.sampling.choose_model import Model
from taskgate.core.sampling.spending import SpendLimits
from taskgate.core.scoping.profile import Narrowing, resolve_profile
from taskgate.core.scoping.profile import Profile as ScopingProfile
from taskgate.core.scoping.registry import LeftOut, Registry, RegistryRecord, ServerBudgets, TransportKind
from taskgate.core.scoping.scope import HelperTools, ScopeMode, ScopePolicy
from taskgate.core.tool_class import ToolClass
from taskgate.gateway.plan import CallSettings, ExecuteOn, Features, Limits, ModelSource, Plan, ToolTrait, Validate

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

# From the configuration to what is switched on beyond carrying calls, with the models that may answer for a caller.
#
# Keys of model providers are read here, from the environment or from files, and go nowhere but into the provider. The
# HTTP client is made, and its library imported, only where a provider is configured.
#
# OpenTelemetry, where the configuration asks for it: provider, exporter and propagator, from our settings or OTEL_
# variables.

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

    from taskgate.telemetry.tracing import MetricsToCollector, SpansToCollector, TraceCollector, Tracing

    endpoint = str(otel.endpoint) if otel.endpoint else os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", DEFAULT_ENDPOINT)
    collector = TraceCollector(endpoint, otel.headers, otel.export_timeout.total_seconds())
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
        task_card=TaskCard(root.apps.task_card),
        result_not_ready=root.compat.result_not_ready,
        audit_every_call=root.audit.calls == "every",
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


def build_plan(loaded: LoadedConfig, before: Plan | None = None) -> Plan:
    """Compile a configuration. The registry's revision grows only if a record changed."""
    root = loaded.root
    revision = before.revision + 1 if before is not None else 1
    records = [*(_record(name, server) for name, server in root.servers.items()), *_left_out(loaded)]
    registry = before.registry.replaced_by(records) if before is not None else Registry.build(records)
    policy = load_policy(root)
    profiles = {name: _profile(name, profile) for name, profile in root.profiles.items()}
    scopes = {name: _scope(name, scope, profiles) for name, scope in root.scopes.items() if scope.enabled}
    if not root.scopes:
        scopes = {"default": ScopePolicy("default", ("*",))}
    return Plan(
        revision,
        registry,
        scopes,
        "default",
        build_gates(root, policy),
        build_limits(root),
        _call_settings(root),
        frozenset(name for name, server in root.servers.items() if server.trust_annotations),
        {
            (name, tool): ToolTrait(
                ToolClass(traits.tool_class) if traits.tool_class is not None else None, traits.key_argument
            )
            for name, server in root.servers.items()
            for tool, traits in server.tools.items()
        },
        build_governing(root, policy),
        frozenset(name for name, scope in root.scopes.items() if not scope.enabled),
        frozenset(name for name, server in root.servers.items() if server.questions == "refuse"),
        frozenset(name for name, server in root.servers.items() if server.sampling == "refuse"),
        root.facade.add_server,
        features=build_features(root, before.features if before is not None else None),
        profiles=profiles,
    )


def _record(name: str, server: Server) -> RegistryRecord:
    budgets = server.budgets
    return RegistryRecord(
        name,
        TransportKind.STDIO if server.command is not None else TransportKind.HTTP,
        server.display_name or name,
        PatternSet.of(server.allowed_tools),
        approval_policy=approval_policy(server),
        budgets=ServerBudgets(budgets.tool_timeout_ms, budgets.max_concurrency, budgets.max_tool_output_bytes),
        tags=frozenset(server.tags),
        namespace=server.namespace or "",
        enabled=server.enabled,
    )


def _left_out(loaded: LoadedConfig) -> list[RegistryRecord]:
    known = loaded.root.servers
    return [
        RegistryRecord(
            gone.server,
            left_out=LeftOut(gone.reason),
            left_out_detail=f"{gone.detail} is not set" if gone.reason == "env_missing" else gone.detail,
        )
        for gone in loaded.left_out
        if gone.reason in ("env_missing", "secret_missing") and gone.server not in known
    ]


def _scope(name: str, scope: Scope, profiles: Mapping[str, ScopingProfile]) -> ScopePolicy:
    profile = None
    if scope.profile is not None:
        overrides = scope.profile_overrides
        profile = resolve_profile(profiles, scope.profile).narrowed(
            Narrowing(
                overrides.servers,
                overrides.exclude_servers,
                PatternSet.of(overrides.tool_allowlist) if overrides.tool_allowlist is not None else None,
                PatternSet.of(overrides.tool_denylist),
            )
        )
    return ScopePolicy(
        name,
        scope.default_servers or (),
        scope.allowed_servers,
        PatternSet.of(scope.tool_allowlist) if scope.tool_allowlist is not None else None,
        PatternSet.of(scope.tool_denylist),
        profile,
        scope.tags,
        ScopeMode(scope.mode),
        NameStyle(scope.names),
        scope.enabled,
        HelperTools(scope.helper_tools),
    )


def _profile(name: str, profile: ScopeProfile) -> ScopingProfile:
    return ScopingProfile(
        name,
        (profile.extends,) if profile.extends is not None else (),
        profile.servers,
        profile.tags,
        profile.exclude_servers,
        PatternSet.of(profile.tool_allowlist) if profile.tool_allowlist is not None else None,
        PatternSet.of(profile.tool_denylist),
    )


def _call_settings(root: GatewayFile) -> CallSettings:
    tasks = root.tasks
    return CallSettings(
        tasks.execution_timeout_ms / 1000,
        tasks.sync_forward_timeout_ms / 1000,
        AnnotationMode(tasks.annotation_mode),
        ExecuteOn(tasks.execute_on),
        DeliverySettings(
            tasks.grace_ms / 1000,
            tasks.promote_after_ms / 1000,
            tasks.hold_ms / 1000,
            tasks.heartbeat_ms / 1000,
            tasks.clients,
        ),
        tasks.default_ttl_ms,
        tasks.max_ttl_ms,
        min(tasks.tool_face_default_ttl_ms, tasks.tool_face_max_ttl_ms),
        tasks.keep_result_ms,
        root.errors.task_codes == "seed",
        tasks.poll_interval_ms,
        tasks.approval_poll_interval_ms,
    )


def build_limits(root: GatewayFile) -> Limits:
    limits = root.limits
    return Limits(
        limits.request_bytes,
        limits.result_bytes,
        limits.tools_per_upstream,
        limits.tools_max_pages,
        limits.tools_fetch_timeout_ms / 1000,
        limits.list_max_age.total_seconds(),
        limits.sessions,
        limits.session_idle.total_seconds(),
        limits.open_tasks_per_caller,
        limits.pending_approvals_per_caller,
        queue_per_server=limits.queue_per_server,
        runs_per_server=limits.runs_per_server,
        calls_per_caller_per_second=limits.calls_per_caller_per_second,
        burst_per_caller=limits.burst_per_caller,
        calls_in_flight=limits.calls_in_flight,
        pending_questions_per_server=limits.pending_questions_per_server,
        question_timeout_s=limits.question_timeout.total_seconds(),
        busy_after_s=limits.busy_after.total_seconds(),
        json_depth=limits.json_depth,
        json_nodes=limits.json_nodes,
        stream_buffer_bytes=limits.stream_buffer_bytes,
        stream_buffer_events=limits.stream_buffer_events,
        events_per_caller=limits.events_per_caller,
        events_age_s=limits.events_age.total_seconds(),
        timers_per_session=limits.timers_per_session,
        header_timeout_s=limits.header_timeout.total_seconds(),
        body_timeout_s=limits.body_timeout.total_seconds(),
        drain_timeout_s=limits.drain_timeout.total_seconds(),
        sessions_per_caller=limits.sessions_per_caller,
        anonymous_sessions=limits.anonymous_sessions,
        connections=limits.connections,
        connections_per_address=limits.connections_per_address,
        anonymous_pending_approvals=limits.anonymous_pending_approvals,
        header_count=limits.header_count,
        header_bytes=limits.header_bytes,
        open_tasks_per_tenant=limits.open_tasks_per_tenant,
        pending_approvals_per_tenant=limits.pending_approvals_per_tenant,
        sessions_per_tenant=limits.sessions_per_tenant,
        calls_per_tenant_per_second=limits.calls_per_tenant_per_second,
        burst_per_tenant=limits.burst_per_tenant,
        calls_in_flight_per_caller=limits.calls_in_flight_per_caller,
        calls_in_flight_per_tenant=limits.calls_in_flight_per_tenant,
        sampling_of_tenant=SpendLimits(
            limits.sampling_tokens_per_tenant_per_hour, limits.sampling_money_per_tenant_per_hour
        ),
    )
