"""What one scope, narrowed by one session, sees of everything that is offered, and what may be done with it.

A view is built once per change of the plan or of the lists, and then answers from dictionaries: the decision for each tool is
taken when the view is built, by the same function that a call goes through, so what is listed and what may be called agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.caller import Caller
from taskgate.core.catalog.annotate import TaskSupport, shown_support, supports_tasks
from taskgate.core.catalog.audience import Audience
from taskgate.core.catalog.entry import Entry, EntryKind, render
from taskgate.core.catalog.merge import Merged, merge
from taskgate.core.catalog.names import RESERVED_NAMES, SEPARATOR, NameStyle, NameTable
from taskgate.core.catalog.param_headers import InvalidParamHeader, ParamHeader, param_headers_of
from taskgate.core.catalog.search import SearchIndex
from taskgate.core.catalog.uri_template import UriTemplate, first_matching
from taskgate.core.generations import Generation
from taskgate.core.governance.decision import Decision, Denied, Forward, Gate, action_of
from taskgate.core.governance.pipeline import UNKNOWN, decide, decide_unlisted
from taskgate.core.patterns import PatternKind, judged_skeleton
from taskgate.core.scoping.request import NO_WISH, SessionRequest
from taskgate.core.scoping.scope import ScopeMode, ScopePolicy
from taskgate.core.scoping.subset import Subset, compose
from taskgate.core.wire import Raw
from taskgate.gateway.catalogs import Catalogs
from taskgate.gateway.plan import Plan
from taskgate.gateway.scope_record import ScopeRecord
from taskgate.telemetry.logs import log

MAX_VIEWS: Final = 2000
Quarantined = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ToolRef:
    """A tool as a caller may name it."""

    wire: str
    server: str
    name: str
    decision: Decision
    entry: Entry | None
    upstream_tasks: bool
    forced: bool
    raw_name: Raw
    header_params: tuple[ParamHeader, ...] = ()
    unfit_for_headers: bool = False
    """Its `x-mcp-header` annotations break the rules: stateless callers must not be shown such a tool."""
    revision: str = ""
    """Of the subset it was found in, so that a call can be traced to what was in force."""
    plain: bool = False
    """Nothing stands between a call and its server: no gate but those that let it through, no task, no headers."""
    has_output_schema: bool = False
    timeout_s: float = 0.0
    """How long a plain call may take."""


@dataclass(frozen=True, slots=True)
class PromptRef:
    wire: str
    server: str
    name: str
    entry: Entry


@dataclass(slots=True)
class View:
    scope: ScopePolicy
    subset: Subset
    plan: Plan
    tools: Mapping[str, ToolRef]
    prompts: Mapping[str, PromptRef]
    resources: Mapping[str, Entry]
    templates: tuple[tuple[UriTemplate, Entry], ...]
    notes: tuple[str, ...]
    tool_names: NameTable
    capabilities: Mapping[str, Mapping[str, Any]]
    quarantined: Quarantined
    withheld: Mapping[PatternKind, tuple[tuple[str, str], ...]]
    """(server, name) of what is listed and yet is not for this caller. Nothing may pass by looking like it."""
    rendered: dict[tuple[EntryKind, Audience], list[bytes]] = field(default_factory=dict)
    search_index: SearchIndex | None = None

    def tool(self, name: str) -> ToolRef | None:
        found = self.tools.get(name)
        if found is not None:
            return found
        pair = self.tool_names.resolve(name)
        if pair is not None:
            return self.tools.get(self.tool_names.to_wire[pair])
        return self._unlisted(name)

    def _unlisted(self, name: str) -> ToolRef | None:
        """A server need not list what it answers: with plain names and one server the name is judged and sent on."""
        if self.scope.names is not NameStyle.PLAIN or len(self.subset.servers) != 1:
            return None
        server = self.subset.servers[0]
        if not self.subset.admits(server, name) or _refused(self.tool_names, (server, name)):
            return None
        decision = self.decision_on(PatternKind.TOOL, server, name)
        raw = wire.raw(name)
        timeout_s = self.plan.plain_timeout_of(server)
        revision = self.subset.revision
        return ToolRef(name, server, name, decision, None, False, False, raw, revision=revision, timeout_s=timeout_s)

    def server_named_in(self, name: str) -> str | None:
        """The server that a prefixed name points to, whether or not it has listed anything yet."""
        if self.scope.names is NameStyle.PREFIXED:
            prefix, found, _ = name.partition(SEPARATOR)
            server = next((s for s in self.subset.servers if self.plan.prefixes.get(s, s) == prefix), None)
            return server if found else None
        return None

    def may_have(self, name: str) -> tuple[str, ...]:
        """The servers that a name which is not listed may belong to."""
        server = self.server_named_in(name)
        if server is not None:
            return (server,)
        return self.subset.servers if self.scope.names is NameStyle.PLAIN else ()

    def prompt(self, name: str) -> PromptRef | None:
        return self.prompts.get(name)

    def owner_of(self, uri: str) -> str | None:
        """The server a URI belongs to: one that lists it, one with a template for it, or the only one there is."""
        entry = self.resources.get(uri)
        if entry is not None:
            return entry.server
        template = first_matching(self.templates, uri)
        if template is not None:
            return template.server
        able = [server for server in self.subset.servers if "resources" in self.capabilities.get(server, {})]
        return able[0] if len(able) == 1 else None

    def template(self, uri: str) -> tuple[UriTemplate, Entry] | None:
        return next((found for found in self.templates if found[1].name == uri), None)

    def decision_on(self, kind: PatternKind, server: str, name: str) -> Decision:
        """What the gates say of a name, whether or not its server lists it. One that it does not list is never judged more
        kindly than what it looks like."""
        if not self.subset.admits_kind(server, name, kind):
            return Denied(Gate.VISIBILITY, "outside the scope", UNKNOWN)
        if self._lists(kind, server, name):
            return decide(self.plan.gates, kind, server, name, quarantined=self.quarantined)
        excluded = self.subset.denies_lookalike(server, name, kind)
        if excluded is not None:
            return Denied(Gate.VISIBILITY, excluded.detail, UNKNOWN)
        looks = judged_skeleton(name, kind)
        alike = any(s == server and judged_skeleton(n, kind) == looks for s, n in self.withheld.get(kind, ()))
        return decide_unlisted(
            self.plan.gates, kind, server, name, quarantined=self.quarantined, withheld=(looks,) if alike else ()
        )

    def _lists(self, kind: PatternKind, server: str, name: str) -> bool:
        if kind is PatternKind.TOOL:
            return (server, name) in self.tool_names.to_wire
        if kind is PatternKind.PROMPT:
            return any(prompt.server == server and prompt.name == name for prompt in self.prompts.values())
        entry = self.resources.get(name)
        template = self.template(name) if entry is None else None
        owner = entry.server if entry is not None else (template[1].server if template is not None else None)
        return owner == server

    def index(self, search_index: SearchIndex) -> SearchIndex:
        """Keep what searching it needs, as long as the view."""
        self.search_index = search_index
        return search_index

    def shown(self, tool: ToolRef, task_aware: bool) -> TaskSupport | None:
        return shown_support(
            self.plan.calls.annotation_mode,
            action_of(tool.decision),
            upstream_tasks=tool.upstream_tasks,
            upstream_support=tool.entry.task_support if tool.entry is not None else None,
            task_aware=task_aware,
            forced=tool.forced,
        )

    def render_tool(self, tool: ToolRef, audience: Audience) -> bytes:
        assert tool.entry is not None
        support = self.shown(tool, audience.task_aware)
        return render(tool.entry, tool.wire, support, audience, notices=self._may_be_replaced(tool))

    def _may_be_replaced(self, tool: ToolRef) -> bool:
        """Whether a call of it may be answered with a notice of ours: it may take too long, be held, or give too much."""
        record = self.plan.registry.records.get(tool.server)
        cut = record is not None and bool(record.budgets.max_tool_output_bytes)
        return cut or not tool.plain or self.plan.calls.delivery.promote_after_s > 0

    def listing(self, kind: EntryKind, audience: Audience) -> list[bytes]:
        """The rendered entries of one kind, in order, as this kind of caller sees them."""
        key = (kind, audience)
        found = self.rendered.get(key)
        if found is None:
            found = self.rendered[key] = list(self._render(kind, audience))
        return found

    def _render(self, kind: EntryKind, audience: Audience) -> Iterable[bytes]:
        if kind is EntryKind.TOOL:
            for tool in self.tools.values():
                hidden = tool.unfit_for_headers and audience.generation is Generation.STATELESS
                if tool.entry is not None and not hidden and self.shown(tool, audience.task_aware) is not None:
                    yield self.render_tool(tool, audience)
        elif kind is EntryKind.PROMPT:
            for prompt in self.prompts.values():
                yield render(prompt.entry, prompt.wire, None, audience)
        elif kind is EntryKind.RESOURCE:
            for entry in self.resources.values():
                yield bytes(entry.raw)
        else:
            for _, entry in self.templates:
                yield bytes(entry.raw)


def _policy(plan: Plan, scope: str) -> ScopePolicy:
    """The scope in force; one that a reload took away shows nothing to the sessions that are still open in it."""
    return plan.scopes.get(scope) or ScopePolicy(scope, enabled=False)


class Views:
    """The views in use, each rebuilt when what it was built from has changed."""

    def __init__(self, catalogs: Catalogs, scope_record: ScopeRecord) -> None:
        self._catalogs = catalogs
        self._scope_record = scope_record
        self._views: dict[tuple[str, SessionRequest], tuple[int, int, View]] = {}
        self._whole: dict[str, tuple[int, int, View]] = {}
        """The views of callers who do not narrow their scope, which is most: found without comparing any wishes."""
        self._subsets: dict[tuple[str, SessionRequest, bool], tuple[int, Subset]] = {}

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

    def current(self, plan: Plan, caller: Caller, narrowing: SessionRequest) -> View | None:
        """The view if it is fresh: the hot path's one look-up."""
        if narrowing is NO_WISH:
            found = self._whole.get(caller.scope)
        else:
            found = self._views.get((caller.scope, narrowing))
        if found is not None and found[0] == plan.revision and found[1] == self._catalogs.revision:
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
        if view is None:
            view = build_view(plan, _policy(plan, caller.scope), subset, self._catalogs)
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            fresh = (plan.revision, self._catalogs.revision, view)
            if narrowing is NO_WISH:
                self._whole[caller.scope] = fresh
            else:
                self._views[caller.scope, narrowing] = fresh
            for note in view.notes:
                log.warning("catalog", note=note)
        return view


def build_view(plan: Plan, scope: ScopePolicy, subset: Subset, catalogs: Catalogs) -> View:
    offers = {server: offer for server in subset.servers if (offer := catalogs.offer(server)) is not None}
    capabilities = {server: offer.capabilities for server, offer in offers.items()}
    found: dict[EntryKind, Merged] = {}
    withheld: dict[PatternKind, tuple[tuple[str, str], ...]] = {}
    for kind in EntryKind:
        listed: dict[str, list[Entry]] = {}
        for server, offer in offers.items():
            entries = offer.entries.get(kind, ())
            listed[server] = [e for e in entries if _visible(plan, subset, e, catalogs.quarantined)]
            if len(listed[server]) < len(entries):
                shown = {e.name for e in listed[server]}
                hidden = tuple((server, e.name) for e in entries if e.name not in shown)
                withheld[_PATTERNS[kind]] = withheld.get(_PATTERNS[kind], ()) + hidden
        found[kind] = merge(
            kind,
            listed,
            scope.names,
            reserved=_reserved(scope),
            per_server=plan.limits.tools_per_upstream,
            prefixes=plan.prefixes,
        )
    notes = [note for offer in offers.values() for note in offer.notes]
    notes += [note for merged in found.values() for note in merged.notes]
    tool_names = found[EntryKind.TOOL].names
    assert tool_names is not None
    return View(
        scope,
        subset,
        plan,
        {
            name: _tool(plan, name, e, capabilities[e.server], catalogs.quarantined, subset.revision)
            for name, e in found[EntryKind.TOOL].entries.items()
        },
        {name: PromptRef(name, e.server, e.name, e) for name, e in found[EntryKind.PROMPT].entries.items()},
        found[EntryKind.RESOURCE].entries,
        tuple((UriTemplate(name), e) for name, e in found[EntryKind.TEMPLATE].entries.items()),
        tuple(notes),
        tool_names,
        capabilities,
        catalogs.quarantined,
        withheld,
    )


def _reserved(scope: ScopePolicy) -> frozenset[str]:
    """With plain names and no facade a server's tool wins over ours: the gateway is to be transparent there."""
    transparent = scope.names is NameStyle.PLAIN and scope.mode is ScopeMode.DIRECT
    return frozenset() if transparent else RESERVED_NAMES


_PATTERNS: Final = {
    EntryKind.TOOL: PatternKind.TOOL,
    EntryKind.PROMPT: PatternKind.PROMPT,
    EntryKind.RESOURCE: PatternKind.RESOURCE,
    EntryKind.TEMPLATE: PatternKind.RESOURCE,
}


def _tool(
    plan: Plan, name: str, entry: Entry, capabilities: Mapping[str, Any], quarantined: Quarantined, revision: str
) -> ToolRef:
    decision = decide(plan.gates, PatternKind.TOOL, entry.server, entry.name, quarantined=quarantined)
    forced = plan.gates.rules.forced(entry.server, entry.name)
    try:
        params, unfit = param_headers_of(entry.input_schema), False
    except InvalidParamHeader:
        params, unfit = (), True
    tasks = supports_tasks(capabilities)
    raw_name = wire.raw(entry.name)
    forwarded = type(decision) is Forward and decision.note is None
    plain = forwarded and not forced and not params and entry.task_support is not TaskSupport.REQUIRED
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
    )


def _visible(plan: Plan, subset: Subset, entry: Entry, quarantined: Quarantined) -> bool:
    """In this scope, and for everything but tools also allowed; a tool's decision is kept with it, because it may be shown."""
    if not subset.admits_kind(entry.server, entry.name, _PATTERNS[entry.kind]):
        return False
    decision = decide(plan.gates, _PATTERNS[entry.kind], entry.server, entry.name, quarantined=quarantined)
    if not isinstance(decision, Denied):
        return True
    return entry.kind is EntryKind.TOOL and decision.gate is not Gate.VISIBILITY


def _refused(names: NameTable, pair: tuple[str, str]) -> bool:
    return any(pair in collision.pairs for collision in names.refused)
