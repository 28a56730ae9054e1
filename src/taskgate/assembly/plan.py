"""Build the plan that the gateway works from, from a validated configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskgate.assembly import scripts
from taskgate.assembly.governing import approval_policy, build_gates, build_governing, load_policy
from taskgate.config.load import LoadedConfig
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.scopes import Scope, ScopeProfile
from taskgate.config.model.servers import Server
from taskgate.core.catalog.names import NameStyle
from taskgate.core.delivery import DeliverySettings
from taskgate.core.governance.task_annotation import AnnotationMode
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.profile import Narrowing, resolve_profile
from taskgate.core.scoping.profile import Profile as ScopingProfile
from taskgate.core.scoping.registry import Registry, RegistryRecord, ServerBudgets, SkipReason, TransportKind
from taskgate.core.scoping.scope import HelperTools, ScopeMode, ScopePolicy
from taskgate.core.tool_class import ToolClass
from taskgate.gateway.call_settings import CallSettings, ExecuteOn, ToolTrait
from taskgate.gateway.plan import HistorySettings, Plan

if TYPE_CHECKING:
    pass
from taskgate.assembly.features import build_features
from taskgate.assembly.limits import build_limits


def build_plan(loaded: LoadedConfig, before: Plan | None = None) -> Plan:
    """Compile a configuration. The registry's revision grows only if a record changed."""
    root = loaded.root
    revision = before.revision + 1 if before is not None else 1
    records = [*(_record(name, server) for name, server in root.servers.items()), *_skipped_servers(loaded)]
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
        history=_history_settings(root),
        profiles=profiles,
        trace_url=root.telemetry.trace_url,
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


def _skipped_servers(loaded: LoadedConfig) -> list[RegistryRecord]:
    known = loaded.root.servers
    return [
        RegistryRecord(
            skipped.server,
            skipped=SkipReason(skipped.reason),
            skip_detail=f"{skipped.detail} is not set" if skipped.reason == "env_missing" else skipped.detail,
        )
        for skipped in loaded.skipped
        if skipped.reason in ("env_missing", "secret_missing") and skipped.server not in known
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
        scope.scripts == "on" and scripts.interpreter().availability().available,
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
            tasks.promote_latest_ms / 1000,
        ),
        tasks.default_ttl_ms,
        tasks.max_ttl_ms,
        min(tasks.tool_face_default_ttl_ms, tasks.tool_face_max_ttl_ms),
        tasks.keep_result_ms,
        root.errors.task_codes == "seed",
        tasks.poll_interval_ms,
        tasks.approval_poll_interval_ms,
    )


def _history_settings(root: GatewayFile) -> HistorySettings:
    given = root.history
    return HistorySettings(
        round(given.keep.total_seconds() * 1000), given.max_rows, given.sample, content=given.content
    )
