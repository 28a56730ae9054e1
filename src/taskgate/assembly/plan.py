"""Build the plan that the gateway works from, from a validated configuration."""

from __future__ import annotations

from collections.abc import Mapping

from taskgate.assembly import scripts
from taskgate.assembly.features import build_features
from taskgate.assembly.governing import approval_policy, build_gates, build_governing, load_policy
from taskgate.config.load import LoadedConfig
from taskgate.core.catalog.names import NameStyle
from taskgate.core.governance.unmatched_patterns import patterns_in
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.profile import Narrowing, resolve_profile
from taskgate.core.scoping.profile import Profile as ScopingProfile
from taskgate.core.scoping.registry import Registry, RegistryRecord, SkipReason, TransportKind
from taskgate.core.scoping.scope import HelperTools, ScopeMode, ScopePolicy
from taskgate.core.settings.scopes import Scope, ScopeProfile
from taskgate.core.settings.servers import Server
from taskgate.gateway.plan import Plan


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
        revision=revision,
        registry=registry,
        scopes=scopes,
        default_scope="default",
        gates=build_gates(root, policy),
        limits=root.limits,
        tasks=root.tasks,
        trusted=frozenset(name for name, server in root.servers.items() if server.trust_annotations),
        traits={(name, tool): traits for name, server in root.servers.items() for tool, traits in server.tools.items()},
        governing=build_governing(root, policy),
        disabled_scopes=frozenset(name for name, scope in root.scopes.items() if not scope.enabled),
        refuse_questions=frozenset(name for name, server in root.servers.items() if server.questions == "refuse"),
        refuse_sampling=frozenset(name for name, server in root.servers.items() if server.sampling == "refuse"),
        add_server=root.facade.add_server,
        features=build_features(root, before.features if before is not None else None),
        history=root.history,
        profiles=profiles,
        trace_url=root.telemetry.trace_url,
        patterns=patterns_in(root),
    )


def _record(name: str, server: Server) -> RegistryRecord:
    return RegistryRecord(
        name,
        TransportKind.STDIO if server.command is not None else TransportKind.HTTP,
        server.display_name or name,
        PatternSet.of(server.allowed_tools),
        approval_policy=approval_policy(server),
        budgets=server.budgets,
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
        name=name,
        default_servers=scope.default_servers or (),
        allowed_servers=scope.allowed_servers,
        tool_allowlist=PatternSet.of(scope.tool_allowlist) if scope.tool_allowlist is not None else None,
        tool_denylist=PatternSet.of(scope.tool_denylist),
        profile=profile,
        tags=scope.tags,
        mode=ScopeMode(scope.mode),
        names=NameStyle(scope.names),
        enabled=scope.enabled,
        helper_tools=HelperTools(scope.helper_tools),
        scripts=scope.scripts == "on" and scripts.interpreter().availability().available,
    )


def _profile(name: str, profile: ScopeProfile) -> ScopingProfile:
    return ScopingProfile(
        name=name,
        extends=(profile.extends,) if profile.extends is not None else (),
        servers=profile.servers,
        tags=profile.tags,
        exclude_servers=profile.exclude_servers,
        tool_allowlist=PatternSet.of(profile.tool_allowlist) if profile.tool_allowlist is not None else None,
        tool_denylist=PatternSet.of(profile.tool_denylist),
    )
