"""Build the view of one scope and session from the servers' lists.

The decision for each tool is taken here, by the same function that decides a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address, folders_above
from taskgate.core.catalog.apps import UI_SCHEME
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.links import scheme_of
from taskgate.core.catalog.merge import merge
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.own_tool_names import RESERVED_NAMES, SCRIPT_NAMES
from taskgate.core.catalog.skills import SKILL_FILE
from taskgate.core.catalog.task_support import TaskSupport, supports_tasks
from taskgate.core.facts.table import NO_FACTS, Facts
from taskgate.core.governance.decision import Denied, Forward, Gate
from taskgate.core.governance.pipeline import Gates, RiskOf, decide, decide_listed
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.scope import ScopeMode, ScopePolicy
from taskgate.core.scoping.subset import Subset
from taskgate.core.uri_template import UriTemplate
from taskgate.gateway.catalog.offer import NOTHING_OMITTED, Offer, OmittedTools
from taskgate.gateway.catalog.refs import PromptRef as PromptRef
from taskgate.gateway.catalog.refs import ToolRef as ToolRef
from taskgate.gateway.catalog.risks import risks_of
from taskgate.gateway.catalog.shown_addresses import SKILL_SCHEME, ShownAddresses
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.snapshot import CatalogSnapshot
from taskgate.gateway.catalog.view import Quarantined
from taskgate.gateway.catalog.view import View as View
from taskgate.gateway.plan import Plan


def build_view(
    plan: Plan,
    scope: ScopePolicy,
    subset: Subset,
    catalogs: CatalogSnapshot,
    held: Mapping[str, str],
    *,
    slow_tools: SlowTools,
    caller: Facts = NO_FACTS,
) -> View:
    """Build the view. `held`: URIs that callers of this scope received before, and their servers. `caller`: what rules distinguish
    callers by.
    """
    offers, gates = catalogs.offers, plan.gates.of_caller(caller)
    capabilities = {server: offer.capabilities for server, offer in offers.items()}
    risks = {server: risks_of(plan, server, offer, catalogs.stated_risks) for server, offer in offers.items()}
    visible: dict[EntryKind, dict[str, list[CatalogEntry]]] = {kind: {} for kind in EntryKind}
    withheld: dict[PatternKind, tuple[tuple[str, str], ...]] = {}
    for kind, listed in visible.items():
        for server, offer in offers.items():
            entries = offer.entries.get(kind, ())
            alike = offer.alike(kind) if kind in _NAMED else _NONE_ALIKE
            listed[server] = _visible(
                gates, subset, server, entries, alike, quarantined=catalogs.quarantined, risk_of=risks[server]
            )
            if len(listed[server]) < len(entries):
                shown = {e.name for e in listed[server]}
                hidden = tuple((server, name) for e in entries if e.name not in shown for name in _names_of(e))
                withheld[_PATTERNS[kind]] = withheld.get(_PATTERNS[kind], ()) + hidden
    omitted = {server: _omitted(offer, plan.limits.tools_per_upstream) for server, offer in offers.items()}
    addresses = _addresses(gates, subset, visible, catalogs.quarantined, held)
    found = {
        kind: merge(
            kind,
            listed,
            scope.names,
            reserved=_reserved(scope),
            per_server=plan.limits.tools_per_upstream,
            prefixes=plan.prefixes,
            address=addresses.of_entry,
        )
        for kind, listed in visible.items()
    }
    notes = [note for offer in offers.values() for note in offer.notes]
    notes += [note for merged in found.values() for note in merged.notes]
    tool_names = found[EntryKind.TOOL].names
    assert tool_names is not None
    with_tasks = {server: supports_tasks(found) for server, found in capabilities.items()}
    of_servers = {
        server: _OfServer(with_tasks[server], plan.plain_timeout_of(server), offer.alike(EntryKind.TOOL), risks[server])
        for server, offer in offers.items()
    }
    tools = {
        name: _tool(gates, name, e, catalogs, server=of_servers[e.server], revision=subset.revision)
        for name, e in found[EntryKind.TOOL].entries.items()
    }
    return View(
        scope=scope,
        subset=subset,
        plan=plan,
        gates=gates,
        risks=risks,
        tools=tools,
        prompts={name: PromptRef(name, e.server, e.name, e) for name, e in found[EntryKind.PROMPT].entries.items()},
        resources=found[EntryKind.RESOURCE].entries,
        templates=tuple((UriTemplate(name), e) for name, e in found[EntryKind.TEMPLATE].entries.items()),
        notes=tuple(notes),
        tool_names=tool_names,
        capabilities=capabilities,
        quarantined=catalogs.quarantined,
        withheld=withheld,
        schemes=_schemes(
            (*found[EntryKind.RESOURCE].entries.values(), *found[EntryKind.TEMPLATE].entries.values()), addresses
        ),
        addresses=addresses,
        skills=found[EntryKind.SKILL].entries,
        app_tools=_app_tools(tools.values(), addresses),
        slow_tools=slow_tools,
        omitted={server: each for server, each in omitted.items() if each != NOTHING_OMITTED},
        alike={(_PATTERNS[kind], server): offer.alike(kind) for server, offer in offers.items() for kind in _NAMED},
    )


def _omitted(offer: Offer, limit: int) -> OmittedTools:
    """Return the entries beyond the limit, also if the lists were fetched under a higher limit."""
    tools = offer.entries.get(EntryKind.TOOL, ())
    return offer.omitted.with_names(entry.name for entry in tools[limit:]) if len(tools) > limit else offer.omitted


def _addresses(
    gates: Gates,
    subset: Subset,
    visible: Mapping[EntryKind, Mapping[str, list[CatalogEntry]]],
    quarantined: Quarantined,
    held: Mapping[str, str],
) -> ShownAddresses:
    """Return the interfaces of this view: those that tools declare, and those that are listed."""
    interfaces: dict[str, set[str]] = {}
    refused: set[Address] = set()
    for server, tools in visible[EntryKind.TOOL].items():
        for uri in {uri for tool in tools for uri in tool.ui_addresses}:
            interfaces.setdefault(server, set()).add(uri)
            if not _admitted(gates, subset, PatternKind.RESOURCE, server, uri, quarantined=quarantined):
                refused.add(Address(server, uri))
    for server, resources in visible[EntryKind.RESOURCE].items():
        listed = {entry.name for entry in resources if entry.name.startswith(UI_SCHEME)}
        if listed:
            interfaces.setdefault(server, set()).update(listed)
    servers = frozenset(subset.servers)
    skills = {
        server: folders
        for server in visible[EntryKind.SKILL]
        if (folders := _skill_folders(visible[EntryKind.SKILL][server], visible[EntryKind.RESOURCE][server]))
    }
    return ShownAddresses(
        {server: frozenset(uris) for server, uris in interfaces.items()},
        skills,
        held={uri: server for uri, server in held.items() if server in servers},
        refused=frozenset(refused),
    )


def _skill_folders(skills: Iterable[CatalogEntry], resources: Iterable[CatalogEntry]) -> frozenset[str]:
    """Return the folders of a server's skills. A server without the extension may list them as resources with the same URIs."""
    folders = {entry.skill.root for entry in skills}
    listed = [entry.name for entry in resources if entry.name.startswith(SKILL_SCHEME)]
    folders |= {uri.removesuffix(SKILL_FILE) for uri in listed if uri.endswith(SKILL_FILE)}
    return frozenset(folders | {uri for uri in listed if folders.isdisjoint(folders_above(uri))})


def _names_of(entry: CatalogEntry) -> tuple[str, ...]:
    """Return the names that a withheld entry covers: a skill covers all its files."""
    if entry.kind is not EntryKind.SKILL:
        return (entry.name,)
    return (entry.name, *(file.uri for file in entry.skill.files or () if file.uri != entry.name))


def _app_tools(tools: Iterable[ToolRef], addresses: ShownAddresses) -> dict[str, tuple[ToolRef, ...]]:
    found: dict[str, tuple[ToolRef, ...]] = {}
    for tool in tools:
        if tool.server in addresses.interfaces and tool.entry is not None and tool.entry.traits.is_for_apps:
            found[tool.name] = (*found.get(tool.name, ()), tool)
    return found


def _schemes(entries: Iterable[CatalogEntry], addresses: ShownAddresses) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {"ui": set(addresses.interfaces)} if addresses.interfaces else {}
    for server, folders in addresses.skills.items():
        for scheme in {scheme_of(folder) for folder in folders}:
            found.setdefault(scheme or "", set()).add(server)
    for entry in entries:
        scheme = scheme_of(entry.name)
        if scheme is not None:
            found.setdefault(scheme, set()).add(entry.server)
    return {scheme: frozenset(servers) for scheme, servers in found.items()}


def _reserved(scope: ScopePolicy) -> frozenset[str]:
    """Return the reserved names. With plain names and no facade only those of scripts: a server's tool comes first."""
    transparent = scope.names is NameStyle.PLAIN and scope.mode is ScopeMode.DIRECT
    of_scripts = SCRIPT_NAMES if scope.scripts else frozenset()
    return of_scripts if transparent else RESERVED_NAMES | of_scripts


_NAMED: Final = (EntryKind.TOOL, EntryKind.PROMPT)
_NONE_ALIKE: Final[Mapping[str, tuple[str, ...]]] = {}
_PATTERNS: Final = {
    EntryKind.TOOL: PatternKind.TOOL,
    EntryKind.PROMPT: PatternKind.PROMPT,
    EntryKind.RESOURCE: PatternKind.RESOURCE,
    EntryKind.TEMPLATE: PatternKind.RESOURCE,
    EntryKind.SKILL: PatternKind.RESOURCE,
}


class _OfServer(msgspec.Struct, frozen=True):
    """What all tools of a server have in common."""

    has_tasks: bool
    plain_timeout_s: float
    alike: Mapping[str, tuple[str, ...]]
    risk_of: RiskOf


def _tool(
    gates: Gates,
    name: str,
    entry: CatalogEntry,
    catalogs: CatalogSnapshot,
    *,
    server: _OfServer,
    revision: str,
) -> ToolRef:
    alike = server.alike.get(entry.name, ())
    decision = decide_listed(
        gates,
        PatternKind.TOOL,
        entry.server,
        entry.name,
        alike,
        quarantined=catalogs.quarantined,
        risk_of=server.risk_of,
    )
    forced = any(gates.rules.forced(entry.server, name) for name in (entry.name, *alike))
    traits = entry.traits
    params, unfit = traits.header_params or (), traits.header_params is None
    raw_name = wire.raw(entry.name)
    forwarded = type(decision) is Forward and decision.note is None
    support = traits.task_support
    as_task = support is TaskSupport.REQUIRED or (server.has_tasks and support is TaskSupport.OPTIONAL)
    plain = forwarded and not forced and not params and not as_task
    return ToolRef(
        wire=name,
        server=entry.server,
        name=entry.name,
        decision=decision,
        entry=entry,
        upstream_tasks=server.has_tasks,
        forced=forced,
        raw_name=raw_name,
        header_params=params,
        unfit_for_headers=unfit,
        revision=revision,
        plain=plain,
        has_output_schema=traits.has_output_schema,
        timeout_s=server.plain_timeout_s,
        risk=server.risk_of(entry.name),
        changed_interface=catalogs.changed_interface(entry),
    )


def _visible(
    gates: Gates,
    subset: Subset,
    server: str,
    entries: Sequence[CatalogEntry],
    alike: Mapping[str, tuple[str, ...]],
    *,
    quarantined: Quarantined,
    risk_of: RiskOf,
) -> list[CatalogEntry]:
    """Return the entries of one list that are in this scope and, except for tools, allowed. A tool carries its own decision."""
    if not entries:
        return []
    kind = _PATTERNS[entries[0].kind]
    may_be_denied = entries[0].kind is EntryKind.TOOL
    admitted = subset.admitted_of_kind(server, [entry.name for entry in entries], kind)
    visible: list[CatalogEntry] = []
    for entry in entries:
        others = alike.get(entry.name, ())
        if entry.name in admitted and not (others and subset.denies_lookalike(server, entry.name, kind)):
            decision = decide_listed(gates, kind, server, entry.name, others, quarantined=quarantined, risk_of=risk_of)
            if not isinstance(decision, Denied) or (may_be_denied and decision.gate is not Gate.VISIBILITY):
                visible.append(entry)
    return visible


def _admitted(
    gates: Gates, subset: Subset, kind: PatternKind, server: str, name: str, *, quarantined: Quarantined
) -> bool:
    if not subset.admits_kind(server, name, kind):
        return False
    return not isinstance(decide(gates, kind, server, name, quarantined=quarantined), Denied)
