"""What one scope, narrowed by one session, sees of everything that is offered, and what may be done with it.

A view is built once per change of the plan or of the lists, and then answers from dictionaries: the decision for each tool is
taken when the view is built, by the same function that a call goes through, so what is listed and what may be called agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate.core.caller import Caller
from taskgate.core.catalog.annotate import TaskSupport, shown_support, supports_tasks
from taskgate.core.catalog.entry import Entry, EntryKind, render
from taskgate.core.catalog.names import SEPARATOR, NameStyle, NameTable
from taskgate.core.generations import Generation
from taskgate.core.governance.decision import Decision, Denied, action_of
from taskgate.core.governance.pipeline import decide
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.request import SessionRequest
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.subset import Subset, compose
from taskgate.gateway.catalogs import Catalogs
from taskgate.gateway.plan import Plan

MAX_VIEWS: Final = 2000


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
    templates: tuple[tuple[re.Pattern[str], Entry], ...]
    notes: tuple[str, ...]
    tool_names: NameTable
    capabilities: Mapping[str, Mapping[str, Any]]
    rendered: dict[tuple[EntryKind, Generation, bool], list[bytes]] = field(default_factory=dict)

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
        decision = decide(self.plan.gates, PatternKind.TOOL, server, name)
        return ToolRef(name, server, name, decision, None, False, False)

    def server_named_in(self, name: str) -> str | None:
        """The server that a prefixed name points to, whether or not it has listed anything yet."""
        if self.scope.names is NameStyle.PREFIXED:
            server, found, _ = name.partition(SEPARATOR)
            return server if found and server in self.subset.servers else None
        return None

    def prompt(self, name: str) -> PromptRef | None:
        return self.prompts.get(name)

    def owner_of(self, uri: str) -> str | None:
        """The server a URI belongs to: one that lists it, one with a template for it, or the only one there is."""
        entry = self.resources.get(uri)
        if entry is not None:
            return entry.server
        for pattern, template in self.templates:
            if pattern.fullmatch(uri):
                return template.server
        able = [server for server in self.subset.servers if "resources" in self.capabilities.get(server, {})]
        return able[0] if len(able) == 1 else None

    def template(self, uri: str) -> Entry | None:
        return next((entry for _, entry in self.templates if entry.name == uri), None)

    def shown(self, tool: ToolRef, task_aware: bool) -> TaskSupport | None:
        return shown_support(
            self.plan.calls.annotation_mode,
            action_of(tool.decision),
            upstream_tasks=tool.upstream_tasks,
            upstream_support=tool.entry.task_support if tool.entry is not None else None,
            task_aware=task_aware,
            forced=tool.forced,
        )

    def listing(self, kind: EntryKind, generation: Generation, task_aware: bool) -> list[bytes]:
        """The rendered entries of one kind, in order, as this kind of caller sees them."""
        key = (kind, generation, task_aware)
        found = self.rendered.get(key)
        if found is None:
            found = self.rendered[key] = list(self._render(kind, generation, task_aware))
        return found

    def _render(self, kind: EntryKind, generation: Generation, task_aware: bool) -> Iterable[bytes]:
        if kind is EntryKind.TOOL:
            for tool in self.tools.values():
                support = self.shown(tool, task_aware)
                if support is not None and tool.entry is not None:
                    yield render(tool.entry, tool.wire, support, generation)
        elif kind is EntryKind.PROMPT:
            for prompt in self.prompts.values():
                yield render(prompt.entry, prompt.wire, None, generation)
        elif kind is EntryKind.RESOURCE:
            for entry in self.resources.values():
                yield bytes(entry.raw)
        else:
            for _, entry in self.templates:
                yield bytes(entry.raw)


class Views:
    """The views in use, each rebuilt when what it was built from has changed."""

    def __init__(self, catalogs: Catalogs, note: Callable[[str], None]) -> None:
        self._catalogs = catalogs
        self._note = note
        self._views: dict[tuple[str, SessionRequest], tuple[tuple[int, int], View]] = {}
        self._subsets: dict[tuple[str, SessionRequest], tuple[int, Subset]] = {}

    def subset(self, plan: Plan, scope: str, narrowing: SessionRequest, asking: bool = False) -> Subset:
        key = (scope, narrowing)
        found = self._subsets.get(key)
        if found is not None and found[0] == plan.revision:
            return found[1]
        subset = compose(plan.registry, plan.scopes[scope], narrowing, asking=asking)
        if len(self._subsets) >= MAX_VIEWS:
            self._subsets.clear()
        self._subsets[key] = (plan.revision, subset)
        return subset

    def current(self, plan: Plan, caller: Caller, narrowing: SessionRequest) -> View | None:
        """The view if it is fresh: the hot path's one look-up."""
        found = self._views.get((caller.scope, narrowing))
        if found is not None and found[0] == (plan.revision, self._catalogs.revision):
            return found[1]
        return None

    async def view(self, plan: Plan, caller: Caller, narrowing: SessionRequest) -> View:
        view = self.current(plan, caller, narrowing)
        if view is not None and self._catalogs.known(view.subset.servers):
            return view
        subset = self.subset(plan, caller.scope, narrowing)
        await self._catalogs.ready(subset.servers)
        view = self.current(plan, caller, narrowing)
        if view is None:
            view = build_view(plan, plan.scopes[caller.scope], subset, self._catalogs)
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            self._views[caller.scope, narrowing] = ((plan.revision, self._catalogs.revision), view)
            for note in view.notes:
                self._note(note)
        return view


def build_view(plan: Plan, scope: ScopePolicy, subset: Subset, catalogs: Catalogs) -> View:
    offers = {server: offer for server in subset.servers if (offer := catalogs.offer(server)) is not None}
    capabilities = {server: offer.capabilities for server, offer in offers.items()}
    entries: dict[EntryKind, list[Entry]] = {kind: [] for kind in EntryKind}
    notes: list[str] = []
    for server, offer in offers.items():
        notes.extend(offer.notes)
        for kind, listed in offer.entries.items():
            pattern = _PATTERNS[kind]
            entries[kind].extend(entry for entry in listed if subset.admits_kind(server, entry.name, pattern))
    tool_names = NameTable.build([(entry.server, entry.name) for entry in entries[EntryKind.TOOL]], scope.names)
    prompt_names = NameTable.build([(e.server, e.name) for e in entries[EntryKind.PROMPT]], scope.names, reserved=())
    notes.extend(str(collision) for collision in (*tool_names.refused, *prompt_names.refused))
    return View(
        scope,
        subset,
        plan,
        _tools(plan, entries[EntryKind.TOOL], tool_names, capabilities),
        _prompts(plan, entries[EntryKind.PROMPT], prompt_names),
        _resources(plan, entries[EntryKind.RESOURCE], notes),
        tuple((template_pattern(e.name), e) for e in entries[EntryKind.TEMPLATE] if _allowed(plan, e)),
        tuple(notes),
        tool_names,
        capabilities,
    )


_PATTERNS: Final = {
    EntryKind.TOOL: PatternKind.TOOL,
    EntryKind.PROMPT: PatternKind.PROMPT,
    EntryKind.RESOURCE: PatternKind.RESOURCE,
    EntryKind.TEMPLATE: PatternKind.RESOURCE,
}


def _tools(
    plan: Plan, entries: list[Entry], names: NameTable, capabilities: Mapping[str, Mapping[str, Any]]
) -> dict[str, ToolRef]:
    found: dict[str, ToolRef] = {}
    for entry in entries:
        name = names.to_wire.get((entry.server, entry.name))
        if name is None:
            continue
        decision = decide(plan.gates, PatternKind.TOOL, entry.server, entry.name)
        upstream_tasks = supports_tasks(capabilities[entry.server])
        forced = plan.gates.rules.forced(entry.server, entry.name)
        found[name] = ToolRef(name, entry.server, entry.name, decision, entry, upstream_tasks, forced)
    return found


def _prompts(plan: Plan, entries: list[Entry], names: NameTable) -> dict[str, PromptRef]:
    return {
        name: PromptRef(name, entry.server, entry.name, entry)
        for entry in entries
        if (name := names.to_wire.get((entry.server, entry.name))) is not None and _allowed(plan, entry)
    }


def _resources(plan: Plan, entries: list[Entry], notes: list[str]) -> dict[str, Entry]:
    """URIs are never rewritten; where two servers offer the same one, the first in order wins, with a warning."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            first = found[entry.name].server
            notes.append(f"both {first} and {entry.server} offer the resource {entry.name}; {first} is used")
        elif _allowed(plan, entry):
            found[entry.name] = entry
    return found


def _allowed(plan: Plan, entry: Entry) -> bool:
    return not isinstance(decide(plan.gates, _PATTERNS[entry.kind], entry.server, entry.name), Denied)


def _refused(names: NameTable, pair: tuple[str, str]) -> bool:
    return any(pair in collision.pairs for collision in names.refused)


_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


def template_pattern(template: str) -> re.Pattern[str]:
    """A URI template (RFC 6570) as a pattern for URIs that may have been made from it."""
    parts: list[str] = []
    at = 0
    for match in _EXPRESSION.finditer(template):
        parts.append(re.escape(template[at : match.start()]))
        parts.append(".*" if match.group(1) in ("+", "#", "/", "?", "&", ";") else "[^/]*")
        at = match.end()
    parts.append(re.escape(template[at:]))
    return re.compile("".join(parts))
