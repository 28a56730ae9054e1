"""List each scope's tools, and why others are excluded (`taskgate scopes`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field
from msgspec.structs import replace

from taskgate.assembly.listing import listed_servers
from taskgate.assembly.plan import build_plan
from taskgate.config.load import LoadedConfig
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.names import NameTable, alike_names
from taskgate.core.errors import CallerError
from taskgate.core.facts.table import Facts
from taskgate.core.governance.decision import Decision, Denied, Gate, Residue, describe
from taskgate.core.governance.pipeline import RiskOf, decide_listed
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.explain import ExplainRow, explain
from taskgate.core.scoping.scope import ScopePolicy, ScopeProblem, check
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Exclusion, Reason, Subset, compose
from taskgate.core.text.similar_names import similar_names
from taskgate.gateway.catalog.risks import risks_of
from taskgate.gateway.plan import Plan


class ScopeSummary(msgspec.Struct, frozen=True):
    """One scope in a list."""

    policy: ScopePolicy
    servers: tuple[str, ...]
    problems: tuple[ScopeProblem, ...]


class Explained(msgspec.Struct, frozen=True):
    """Every server and tool, included or excluded, with the names under which tools are shown."""

    policy: ScopePolicy
    subset: Subset
    rows: tuple[ExplainRow, ...]
    names: Mapping[tuple[str, str], str] = field(default_factory=dict)
    problems: tuple[ScopeProblem, ...] = ()


def list_scopes(loaded: LoadedConfig) -> list[ScopeSummary]:
    """Return every scope of a configuration, including disabled ones."""
    plan = build_plan(loaded)
    policies = [*plan.scopes.values(), *(ScopePolicy(name, enabled=False) for name in sorted(plan.disabled_scopes))]
    return [
        ScopeSummary(policy, compose(plan.registry, policy).servers, check(policy, plan.registry))
        for policy in policies
    ]


def scope_named(plan: Plan, name: str) -> ScopePolicy:
    """Return the scope of that name, enabled or not. Raises CallerError, with the nearest name, if there is none."""
    policy = plan.scopes.get(name)
    if policy is None and name in plan.disabled_scopes:
        policy = ScopePolicy(name, enabled=False)
    if policy is None:
        there = ", ".join(sorted(plan.scopes)) or "none"
        near = similar_names(name[:80], sorted(plan.scopes))
        hint = f" Did you mean {near[0]}?" if near else ""
        raise CallerError("scope_refused", f"There is no scope {name[:80]!r}.{hint} There are: {there}.")
    return policy


async def explain_scope(loaded: LoadedConfig, name: str, narrowing: SessionRequest, *, connect: bool) -> Explained:
    """Raises CallerError for an unknown scope, and NotAllowed for a request beyond it."""
    plan = build_plan(loaded)
    policy = scope_named(plan, name)
    subset = compose(plan.registry, policy, narrowing)
    problems = check(policy, plan.registry)
    if not connect:
        return Explained(policy, subset, explain(subset), problems=problems)
    tools, risks, failures = await _listed(loaded, plan, subset)
    subset = subset.after_listing(failures)
    names = _names(plan, policy, subset, tools)
    alike = {server: alike_names(listed) for server, listed in tools.items()}
    gates = plan.gates.of_caller(Facts(scope=name, from_script=False))

    def decided(row: ExplainRow) -> ExplainRow:
        if not row.tool:
            return row
        server, others = row.server, alike[row.server].get(row.tool, ())
        decision = decide_listed(gates, PatternKind.TOOL, server, row.tool, others, risk_of=risks[server])
        return _decided(row, decision, names)

    rows = tuple(map(decided, explain(subset, tools)))
    return Explained(policy=policy, subset=subset, rows=rows, names=names.to_wire, problems=problems)


async def _listed(
    loaded: LoadedConfig, plan: Plan, subset: Subset
) -> tuple[dict[str, list[str]], dict[str, RiskOf], dict[str, Exclusion]]:
    """Return the tools of every server in the subset, with their risks. A server that fails is reported and does not affect the
    others.
    """
    tools: dict[str, list[str]] = {}
    risks: dict[str, RiskOf] = {}
    failures: dict[str, Exclusion] = {}
    async with listed_servers(loaded, plan.limits, subset.servers) as catalogs:
        for name in subset.servers:
            offer, problem = catalogs.offer(name), catalogs.failure(name)
            if offer is not None:
                tools[name] = [entry.name for entry in offer.entries.get(EntryKind.TOOL, ())]
                risks[name] = risks_of(plan, name, offer, {})
            elif problem is not None:
                late = problem.error_type == "upstream_timeout"
                failures[name] = Exclusion(name, Reason.LIST_TIMEOUT if late else Reason.LIST_FAILED, problem.message)
    return tools, risks, failures


def _names(plan: Plan, policy: ScopePolicy, subset: Subset, tools: Mapping[str, list[str]]) -> NameTable:
    seen = [(server, tool) for server, listed in tools.items() for tool in subset.admitted(server, listed)]
    return NameTable.build(seen, policy.names, prefixes=plan.prefixes)


def _decided(row: ExplainRow, decision: Decision, names: NameTable) -> ExplainRow:
    """Apply what the subset does not cover: a tool may be hidden by its server's expose list or a rule, or its name may collide."""
    if not row.seen:
        return row
    if isinstance(decision, Denied):
        reason = "hidden" if decision.gate is Gate.VISIBILITY else "rule_denied"
        because = f" because {decision.because}" if decision.because else ""
        return replace(row, seen=False, reason=reason, detail=f"{decision.reason}{because}")
    if (row.server, row.tool) not in names.to_wire:
        clash = next(c for c in names.refused if (row.server, row.tool) in c.pairs)
        return replace(row, seen=False, reason=Reason.NAME_COLLISION.value, detail=str(clash))
    return replace(row, detail=describe(decision)) if isinstance(decision, Residue) else row
