"""What one scope, narrowed by one session, sees of everything that is offered, and what may be done with it.

A view is built once per change of the plan or of the lists, and then answers from dictionaries: the decision for each tool is
taken when the view is built, by the same function that a call goes through, so what is listed and what may be called agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address, folders_above
from taskgate.core.catalog.apps import UI_SCHEME, is_for_apps
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.links import scheme_of
from taskgate.core.catalog.merge import merge
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.own_tool_names import RESERVED_NAMES
from taskgate.core.catalog.skills import SKILL_FILE
from taskgate.core.catalog.task_support import TaskSupport, supports_tasks
from taskgate.core.governance.decision import Denied, Forward, Gate
from taskgate.core.governance.pipeline import decide
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.scope import ScopeMode, ScopePolicy
from taskgate.core.scoping.session_request import NO_WISH, SessionRequest
from taskgate.core.scoping.subset import Subset, compose
from taskgate.core.uri_template import UriTemplate
from taskgate.gateway.catalog.catalogs import Catalogs, CatalogSnapshot
from taskgate.gateway.catalog.offer import NOTHING_OMITTED, Offer, OmittedTools
from taskgate.gateway.catalog.shown_addresses import SKILL_SCHEME, HeldAddresses, ShownAddresses
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.view import PromptRef as PromptRef
from taskgate.gateway.catalog.view import Quarantined
from taskgate.gateway.catalog.view import ToolRef as ToolRef
from taskgate.gateway.catalog.view import View as View
from taskgate.gateway.dynamic_servers import ScopeRecord
from taskgate.gateway.plan import Plan
from taskgate.telemetry.logs import log

MAX_VIEWS: Final = 2000
BUILT_AT_ONCE: Final = 200
"""Entries of a view that is built in one go, within a few milliseconds."""
REBUILT: Final = 3
"""How often a view is built anew because the lists changed meanwhile, before that is done in one go."""


_BuildKey = tuple[str, SessionRequest, int, int]
"""A view that is being built: of which scope and wish, and of which revisions of the plan and the lists."""


def _policy(plan: Plan, scope: str) -> ScopePolicy:
    """The scope in force; one that a reload took away shows nothing to the sessions that are still open in it."""
    return plan.scopes.get(scope) or ScopePolicy(scope, enabled=False)


class Views:
    """The views in use, each rebuilt when what it was built from has changed."""

    def __init__(self, catalogs: Catalogs, scope_record: ScopeRecord, slow_tools: SlowTools) -> None:
        self._catalogs = catalogs
        self._slow_tools = slow_tools
        self._lists = catalogs.revision
        self._scope_record = scope_record
        self._views: dict[tuple[str, SessionRequest], tuple[int, int, View]] = {}
        self._whole: dict[str, tuple[int, int, View]] = {}
        """The views of callers who do not narrow their scope, which is most: found without comparing any wishes."""
        self._subsets: dict[tuple[str, SessionRequest, bool], tuple[int, Subset]] = {}
        self._held = HeldAddresses()
        self._building: dict[_BuildKey, asyncio.Task[View]] = {}

    def subset(self, plan: Plan, scope: str, narrowing: SessionRequest, asking: bool = False) -> Subset:
        """What a session of this scope gets. With `asking`, servers beyond the scope's limit raise NotAllowed."""
        key = (scope, narrowing, asking)
        found = self._subsets.get(key)
        if found is not None and found[0] == plan.revision:
            return found[1]
        subset = compose(plan.registry, _policy(plan, scope), narrowing, asking=asking)
        if len(self._subsets) >= MAX_VIEWS:
            self._subsets.clear()
        self._subsets[key] = (plan.revision, subset)
        other = self._subsets.get((scope, narrowing, not asking))
        if other is None or other[0] != plan.revision:
            self._scope_record.composed(subset)
        return subset

    def forget(self, scopes: frozenset[str]) -> None:
        """These scopes are no more; who still asks in one of them sees nothing."""
        self._held.forget(scopes)
        for scope in scopes:
            self._whole.pop(scope, None)
        for key in [key for key in self._views if key[0] in scopes]:
            del self._views[key]
        for wish in [wish for wish in self._subsets if wish[0] in scopes]:
            del self._subsets[wish]

    def current(self, plan: Plan, caller: Caller, narrowing: SessionRequest) -> View | None:
        """The view if it is fresh: the hot path's one look-up."""
        if narrowing is NO_WISH:
            found = self._whole.get(caller.scope)
        else:
            found = self._views.get((caller.scope, narrowing))
        if found is not None and found[0] == plan.revision and found[1] == self._lists.number:
            return found[2]
        return None

    async def view(self, plan: Plan, caller: Caller, narrowing: SessionRequest, *, listing: bool = False) -> View:
        """What this caller sees of what is known. Only one that lists waits for servers of which nothing is known yet."""
        view = self.current(plan, caller, narrowing)
        if view is not None and self._catalogs.is_settled(view.subset.servers):
            return view
        subset = self.subset(plan, caller.scope, narrowing)
        await self._catalogs.settled(subset.servers, listing=listing)
        view = self.current(plan, caller, narrowing)
        return view or await self._built(plan, caller.scope, narrowing, subset)

    async def _built(self, plan: Plan, scope: str, narrowing: SessionRequest, subset: Subset) -> View:
        """A view of the lists as they are when it is returned. A large one is built beside the event loop, once for all callers who
        wait for it.
        """
        for _ in range(REBUILT):
            number, lists = self._lists.number, self._catalogs.snapshot(subset.servers)
            if lists.count() <= BUILT_AT_ONCE:
                break
            view = await self._built_beside(plan, (scope, narrowing, plan.revision, number), subset, lists)
            if self._lists.number == number:
                return self._stored(plan, scope, narrowing, view)
        lists = self._catalogs.snapshot(subset.servers)
        view = self._build(plan, scope, subset, lists, self._held.of(scope))
        return self._stored(plan, scope, narrowing, view)

    async def _built_beside(self, plan: Plan, key: _BuildKey, subset: Subset, lists: CatalogSnapshot) -> View:
        building = self._building.get(key)
        if building is None:
            scope, held = key[0], dict(self._held.of(key[0]))
            work = asyncio.to_thread(self._build, plan, scope, subset, lists, held)
            building = self._building[key] = asyncio.get_running_loop().create_task(work)
            building.add_done_callback(lambda _: self._building.pop(key, None))
        return await asyncio.shield(building)

    def _build(self, plan: Plan, scope: str, subset: Subset, lists: CatalogSnapshot, held: Mapping[str, str]) -> View:
        return build_view(plan, _policy(plan, scope), subset, lists, held, slow_tools=self._slow_tools)

    def _stored(self, plan: Plan, scope: str, narrowing: SessionRequest, view: View) -> View:
        fresh = (plan.revision, self._lists.number, view)
        known = self._whole.get(scope) if narrowing is NO_WISH else self._views.get((scope, narrowing))
        if known is not None and known[:2] == fresh[:2]:
            return known[2]
        self._held.keep(scope, view.addresses.unchanged())
        if len(self._views) >= MAX_VIEWS:
            self._views.clear()
        if narrowing is NO_WISH:
            self._whole[scope] = fresh
        else:
            self._views[scope, narrowing] = fresh
        for note in view.notes:
            log.warning("catalog", note=note)
        self._put_on_record(view)
        return view

    def _put_on_record(self, view: View) -> None:
        subset = view.subset
        tools: dict[str, list[str]] = {s: [] for s in subset.servers if self._catalogs.offer(s) is not None}
        excluded: dict[str, str] = {}
        for tool in view.tools.values():
            if isinstance(tool.decision, Denied):
                excluded[f"{tool.server}:{tool.name}"] = "rule_denied"
            else:
                tools.setdefault(tool.server, []).append(tool.name)
        for server, name in view.withheld.get(PatternKind.TOOL, ()):
            why = subset.explain(server, name)
            excluded[f"{server}:{name}"] = why.reason.value if why is not None else "hidden"
        self._scope_record.shown(subset, tools, excluded)


def build_view(
    plan: Plan,
    scope: ScopePolicy,
    subset: Subset,
    catalogs: CatalogSnapshot,
    held: Mapping[str, str],
    *,
    slow_tools: SlowTools,
) -> View:
    """`held`: addresses that callers of this scope were given before, and whose they were."""
    offers = catalogs.offers
    capabilities = {server: offer.capabilities for server, offer in offers.items()}
    visible: dict[EntryKind, dict[str, list[CatalogEntry]]] = {kind: {} for kind in EntryKind}
    withheld: dict[PatternKind, tuple[tuple[str, str], ...]] = {}
    for kind, listed in visible.items():
        for server, offer in offers.items():
            entries = offer.entries.get(kind, ())
            listed[server] = [e for e in entries if _visible(plan, subset, e, catalogs.quarantined)]
            if len(listed[server]) < len(entries):
                shown = {e.name for e in listed[server]}
                hidden = tuple((server, name) for e in entries if e.name not in shown for name in _names_of(e))
                withheld[_PATTERNS[kind]] = withheld.get(_PATTERNS[kind], ()) + hidden
    omitted = {server: _omitted(offer, plan.limits.tools_per_upstream) for server, offer in offers.items()}
    addresses = _addresses(plan, subset, visible, catalogs.quarantined, held)
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
    tools = {
        name: _tool(plan, name, e, capabilities[e.server], catalogs, revision=subset.revision)
        for name, e in found[EntryKind.TOOL].entries.items()
    }
    return View(
        scope,
        subset,
        plan,
        tools,
        {name: PromptRef(name, e.server, e.name, e) for name, e in found[EntryKind.PROMPT].entries.items()},
        found[EntryKind.RESOURCE].entries,
        tuple((UriTemplate(name), e) for name, e in found[EntryKind.TEMPLATE].entries.items()),
        tuple(notes),
        tool_names,
        capabilities,
        catalogs.quarantined,
        withheld,
        _schemes((*found[EntryKind.RESOURCE].entries.values(), *found[EntryKind.TEMPLATE].entries.values()), addresses),
        addresses,
        found[EntryKind.SKILL].entries,
        _app_tools(tools.values(), addresses),
        slow_tools,
        {server: each for server, each in omitted.items() if each != NOTHING_OMITTED},
    )


def _omitted(offer: Offer, limit: int) -> OmittedTools:
    """What is beyond a limit, also where lists were fetched or kept under a higher one."""
    tools = offer.entries.get(EntryKind.TOOL, ())
    return offer.omitted.with_names(entry.name for entry in tools[limit:]) if len(tools) > limit else offer.omitted


def _addresses(
    plan: Plan,
    subset: Subset,
    visible: Mapping[EntryKind, Mapping[str, list[CatalogEntry]]],
    quarantined: Quarantined,
    held: Mapping[str, str],
) -> ShownAddresses:
    """The interfaces that are used in this view: those that tools declare, listed or not, and those that are listed."""
    interfaces: dict[str, set[str]] = {}
    refused: set[Address] = set()
    for server, tools in visible[EntryKind.TOOL].items():
        for uri in {uri for tool in tools for uri in tool.ui_addresses}:
            interfaces.setdefault(server, set()).add(uri)
            if not _admitted(plan, subset, PatternKind.RESOURCE, server, uri, quarantined=quarantined):
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
    """The folders of a server's skills. A server without the extension may list skills as resources, with the same addresses."""
    folders = {entry.skill.root for entry in skills}
    listed = [entry.name for entry in resources if entry.name.startswith(SKILL_SCHEME)]
    folders |= {uri.removesuffix(SKILL_FILE) for uri in listed if uri.endswith(SKILL_FILE)}
    return frozenset(folders | {uri for uri in listed if folders.isdisjoint(folders_above(uri))})


def _names_of(entry: CatalogEntry) -> tuple[str, ...]:
    """What an entry that is withheld stands for: a skill for all its files."""
    if entry.kind is not EntryKind.SKILL:
        return (entry.name,)
    return (entry.name, *(file.uri for file in entry.skill.files or () if file.uri != entry.name))


def _app_tools(tools: Iterable[ToolRef], addresses: ShownAddresses) -> dict[str, tuple[ToolRef, ...]]:
    found: dict[str, tuple[ToolRef, ...]] = {}
    for tool in tools:
        if tool.server in addresses.interfaces and tool.entry is not None and is_for_apps(tool.entry.definition):
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
    """With plain names and no facade a server's tool wins over ours: the gateway is to be transparent there."""
    transparent = scope.names is NameStyle.PLAIN and scope.mode is ScopeMode.DIRECT
    return frozenset() if transparent else RESERVED_NAMES


_PATTERNS: Final = {
    EntryKind.TOOL: PatternKind.TOOL,
    EntryKind.PROMPT: PatternKind.PROMPT,
    EntryKind.RESOURCE: PatternKind.RESOURCE,
    EntryKind.TEMPLATE: PatternKind.RESOURCE,
    EntryKind.SKILL: PatternKind.RESOURCE,
}


def _tool(
    plan: Plan,
    name: str,
    entry: CatalogEntry,
    capabilities: Mapping[str, Any],
    catalogs: CatalogSnapshot,
    *,
    revision: str,
) -> ToolRef:
    decision = decide(plan.gates, PatternKind.TOOL, entry.server, entry.name, quarantined=catalogs.quarantined)
    forced = plan.gates.rules.forced(entry.server, entry.name)
    params, unfit = entry.header_params or (), entry.header_params is None
    tasks = supports_tasks(capabilities)
    raw_name = wire.raw(entry.name)
    forwarded = type(decision) is Forward and decision.note is None
    as_task = entry.task_support is TaskSupport.REQUIRED or (tasks and entry.task_support is TaskSupport.OPTIONAL)
    plain = forwarded and not forced and not params and not as_task
    return ToolRef(
        name,
        entry.server,
        entry.name,
        decision,
        entry,
        tasks,
        forced,
        raw_name,
        params,
        unfit,
        revision,
        plain,
        "outputSchema" in entry.definition,
        plan.plain_timeout_of(entry.server),
        catalogs.changed_interface(entry),
    )


def _visible(plan: Plan, subset: Subset, entry: CatalogEntry, quarantined: Quarantined) -> bool:
    """In this scope, and for everything but tools also allowed; a tool's decision is kept with it, because it may be shown."""
    kind = _PATTERNS[entry.kind]
    if entry.kind is not EntryKind.TOOL:
        return _admitted(plan, subset, kind, entry.server, entry.name, quarantined=quarantined)
    if not subset.admits_kind(entry.server, entry.name, kind):
        return False
    decision = decide(plan.gates, kind, entry.server, entry.name, quarantined=quarantined)
    return not isinstance(decision, Denied) or decision.gate is not Gate.VISIBILITY


def _admitted(
    plan: Plan, subset: Subset, kind: PatternKind, server: str, name: str, *, quarantined: Quarantined
) -> bool:
    if not subset.admits_kind(server, name, kind):
        return False
    return not isinstance(decide(plan.gates, kind, server, name, quarantined=quarantined), Denied)
