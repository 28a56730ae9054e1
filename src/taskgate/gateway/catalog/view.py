"""The view: what one scope, narrowed by one session, contains. All lookups are in dictionaries; decisions are precomputed.

Callers may name what no server lists, because servers need not list what they offer. Such a name is decided by itself and sent
only to the one server that it can belong to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import Address
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.links import scheme_of
from taskgate.core.catalog.names import SEPARATOR, NameStyle, NameTable
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.pages import EntryList, LateEntries
from taskgate.core.catalog.rendering import Audience, render
from taskgate.core.catalog.search import SearchIndex
from taskgate.core.catalog.skills import rewritten_entry, skill_resource
from taskgate.core.catalog.task_card import CARD_URI, has_card
from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.decision import Decision, Denied, Gate, action_of
from taskgate.core.governance.pipeline import UNKNOWN, Gates, RiskOf, decide_listed, decide_unlisted, undeclared_risk
from taskgate.core.governance.task_annotation import shown_support
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.scoping.scope import HelperTools, ScopePolicy
from taskgate.core.scoping.subset import Subset
from taskgate.core.settings.governance import Action
from taskgate.core.uri_template import UriTemplate, first_matching
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.offer import NOTHING_OMITTED, OmittedTools
from taskgate.gateway.catalog.refs import PromptRef, ToolRef
from taskgate.gateway.catalog.shown_addresses import ShownAddresses
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.plan import Plan

Quarantined = frozenset[tuple[str, str]]
RENDERED_AT_ONCE: Final = 500
"""Up to this many entries are rendered on the event loop, in a few milliseconds."""


class _Look(msgspec.Struct, frozen=True):
    """How a tool is shown to one kind of caller, apart from its definition and its name."""

    support: TaskSupport | None
    """None: it is not listed."""
    has_notices: bool
    has_card: bool
    interfaces: Mapping[str, str | None]

    def text(self, ui_addresses: Sequence[str]) -> str:
        """Return a text that differs if a tool with these interfaces looks different. It is the same at all gateways."""
        shown = [(uri, self.interfaces[uri]) for uri in ui_addresses if uri in self.interfaces]
        return f"{self.support} {self.has_notices} {self.has_card} {shown}"


class View(msgspec.Struct):
    scope: ScopePolicy
    subset: Subset
    plan: Plan
    gates: Gates
    """Those of its callers, if rules distinguish callers."""
    risks: Mapping[str, RiskOf]
    """By server."""
    tools: Mapping[str, ToolRef]
    prompts: Mapping[str, PromptRef]
    resources: Mapping[str, CatalogEntry]
    templates: tuple[tuple[UriTemplate, CatalogEntry], ...]
    notes: tuple[str, ...]
    tool_names: NameTable
    capabilities: Mapping[str, Mapping[str, Any]]
    quarantined: Quarantined
    withheld: Mapping[PatternKind, tuple[tuple[str, str], ...]]
    """(server, name) of listed entries that are withheld from this caller. A lookalike name is refused too."""
    schemes: Mapping[str, frozenset[str]]
    """Servers by URI scheme of their resources, templates and interfaces."""
    addresses: ShownAddresses
    skills: Mapping[str, CatalogEntry]
    """Skills by the URI of their SKILL.md as callers see it."""
    app_tools: Mapping[str, tuple[ToolRef, ...]]
    """Tools that apps may call, by the server's own names, which are the only ones an app has."""
    slow_tools: SlowTools
    omitted: Mapping[str, OmittedTools] = msgspec.field(default_factory=dict)
    """By server: listed tools beyond the limit."""
    alike: Mapping[tuple[PatternKind, str], Mapping[str, tuple[str, ...]]] = msgspec.field(default_factory=dict)
    """By kind and server: names that look like others of that server, with these others."""
    rendered: dict[tuple[EntryKind, Audience, int], EntryList] = msgspec.field(default_factory=dict)
    search_index: SearchIndex | None = None
    unseen: dict[PatternKind, dict[str, tuple[str, str]]] = msgspec.field(default_factory=dict)
    """Listed entries that are not in this view, by the name they would have. Filled by `unseen` on first use."""

    def tool(self, name: str) -> ToolRef | None:
        found = self.tools.get(name)
        if found is not None:
            return found
        pair = self.tool_names.resolve(name)
        if pair is not None:
            return self.tools.get(self.tool_names.to_wire[pair])
        of_apps = self.app_tools.get(name, ())
        return of_apps[0] if len(of_apps) == 1 else self._unlisted(name)

    def _unlisted(self, name: str) -> ToolRef | None:
        """Return a tool that is not listed. With plain names and a single server, the name is evaluated by the gates and
        forwarded.
        """
        if self.scope.names is not NameStyle.PLAIN or len(self.subset.servers) != 1:
            return None
        server = self.subset.servers[0]
        if not self.subset.admits(server, name) or _refused(self.tool_names, (server, name)):
            return None
        decision = self.decision_on(PatternKind.TOOL, server, name)
        raw = wire.raw(name)
        timeout_s = self.plan.plain_timeout_of(server)
        revision = self.subset.revision
        return ToolRef(
            wire=name,
            server=server,
            name=name,
            decision=decision,
            entry=None,
            upstream_tasks=False,
            forced=False,
            raw_name=raw,
            revision=revision,
            timeout_s=timeout_s,
            risk=self.risks.get(server, undeclared_risk)(name),
        )

    def server_named_in(self, name: str) -> str | None:
        """Return the server of a prefixed name, even if its lists are not known yet."""
        if self.scope.names is NameStyle.PREFIXED:
            prefix, found, _ = name.partition(SEPARATOR)
            server = next((s for s in self.subset.servers if self.plan.prefixes.get(s, s) == prefix), None)
            return server if found else None
        return None

    def may_have(self, name: str) -> tuple[str, ...]:
        """Return the servers that an unlisted name may belong to."""
        server = self.server_named_in(name)
        if server is not None:
            return (server,)
        return self.subset.servers if self.scope.names is NameStyle.PLAIN else ()

    def prompt(self, name: str) -> PromptRef | None:
        """Return the prompt with this name. A prompt that is not listed is returned if only one server can have it, because
        servers need not list all their prompts.
        """
        listed = self.prompts.get(name)
        if listed is not None:
            return listed
        server = self.server_named_in(name)
        if server is not None:
            own = name.partition(SEPARATOR)[2]
        else:
            able = self._able("prompts")
            own = name if self.scope.names is NameStyle.PLAIN and len(able) == 1 else ""
            server = able[0] if own else None
        if not own or server not in self._able("prompts"):
            return None
        return PromptRef(name, server, own, None)

    def address_of(self, uri: str, handed_out_by: str | None) -> Address | None:
        """Return the server that a URI belongs to, and its own URI there: the server that lists it, whose tool declares it as its
        interface, whose skill contains it, that returned it before, that has a template for it, that alone uses its scheme, or that
        alone has resources. No request is sent.
        """
        # First, because no server may list an entry under another server's URI.
        found = self.addresses.owner(uri)
        if found is not None and found.server in self.subset.servers:
            return found
        entry = self.resources.get(uri)
        if entry is not None:
            return Address(entry.server, entry.name)
        if found is not None:
            return None
        if handed_out_by in self.subset.servers:
            return Address(handed_out_by, uri)
        if self.addresses.is_ambiguous(uri):
            return None
        template = first_matching(self.templates, uri)
        if template is not None:
            return Address(template.server, uri)
        alike = self.schemes.get(scheme_of(uri) or "", frozenset())
        candidates = alike or self._able("resources")
        return Address(next(iter(candidates)), uri) if len(candidates) == 1 else None

    def _able(self, capability: str) -> list[str]:
        """Return the servers that declare a capability. A single server counts even if it does not declare it: no other can be
        meant.
        """
        declare = [server for server in self.subset.servers if capability in self.capabilities.get(server, {})]
        return declare or list(self.subset.servers if len(self.subset.servers) == 1 else ())

    def template(self, uri: str) -> tuple[UriTemplate, CatalogEntry] | None:
        return next((found for found in self.templates if found[0].template == uri), None)

    def decision_on(self, kind: PatternKind, server: str, name: str) -> Decision:
        """Return the decision on a name, whether or not its server lists it. A name that is not listed never gets a more permissive
        decision than the listed names that it resembles."""
        gates, risk_of = self.gates, self.risks.get(server, undeclared_risk)
        if not self.subset.admits_kind(server, name, kind):
            return Denied(Gate.VISIBILITY, "outside the scope", UNKNOWN)
        alike = self.alike.get((kind, server), {}).get(name, ())
        is_listed = self._lists(kind, server, name)
        if is_listed and not alike:
            return decide_listed(gates, kind, server, name, (), quarantined=self.quarantined, risk_of=risk_of)
        excluded = self.subset.denies_lookalike(server, name, kind)
        if excluded is not None:
            return Denied(Gate.VISIBILITY, excluded.detail, UNKNOWN)
        if is_listed:
            return decide_listed(gates, kind, server, name, alike, quarantined=self.quarantined, risk_of=risk_of)
        if kind is PatternKind.TOOL and self.omitted.get(server, NOTHING_OMITTED).covers(name):
            return Denied(Gate.VISIBILITY, "omitted from its server's list", UNKNOWN)
        looks = checked_skeleton(name, kind)
        is_withheld = any(s == server and checked_skeleton(n, kind) == looks for s, n in self.withheld.get(kind, ()))
        withheld = (looks,) if is_withheld else ()
        return decide_unlisted(
            gates, kind, server, name, quarantined=self.quarantined, withheld=withheld, risk_of=risk_of
        )

    def _lists(self, kind: PatternKind, server: str, name: str) -> bool:
        if kind is PatternKind.TOOL:
            return (server, name) in self.tool_names.to_wire
        if kind is PatternKind.PROMPT:
            return any(prompt.server == server and prompt.name == name for prompt in self.prompts.values())
        shown = self.addresses.shown(server, name)
        entry = self.resources.get(shown)
        template = self.template(shown) if entry is None else None
        owner = entry.server if entry is not None else (template[1].server if template is not None else None)
        return owner == server

    def index(self, search_index: SearchIndex) -> SearchIndex:
        """Return the search index, which is kept as long as the view."""
        self.search_index = search_index
        return search_index

    def shown(self, tool: ToolRef, task_aware: bool) -> TaskSupport | None:
        return shown_support(
            self.plan.tasks.annotation_mode,
            action_of(tool.decision),
            upstream_tasks=tool.upstream_tasks,
            upstream_support=tool.entry.task_support if tool.entry is not None else None,
            task_aware=task_aware,
            forced=tool.forced,
        )

    def render_tool(self, tool: ToolRef, audience: Audience) -> bytes:
        return self._render_as(self._look(tool, audience), tool, audience)

    def _look(self, tool: ToolRef, audience: Audience) -> _Look:
        assert tool.entry is not None
        return _Look(
            self.shown(tool, audience.task_aware),
            self._may_be_replaced(tool),
            self._has_card(tool, audience),
            self.addresses.shown_interfaces(tool.server) if tool.entry.ui_addresses else {},
        )

    def _render_as(self, look: _Look, tool: ToolRef, audience: Audience) -> bytes:
        assert tool.entry is not None
        return render(
            tool.entry,
            tool.wire,
            look.support,
            audience,
            notices=look.has_notices,
            interfaces=look.interfaces,
            card=CARD_URI if look.has_card else None,
        )

    def shows_cards(self) -> bool:
        """Return whether calls may show the gateway's task card, which reads tasks with an own tool."""
        return self.scope.helper_tools is not HelperTools.NEVER and OwnToolName.SHOW_TASKS not in self.tools

    def _has_card(self, tool: ToolRef, audience: Audience) -> bool:
        assert tool.entry is not None
        if tool.entry.ui_addresses or not tool.is_for_model or not self.shows_cards():
            return False
        decision = tool.decision
        support = tool.entry.task_support
        return has_card(
            self.plan.features.task_card,
            audience,
            held=tool.forced or action_of(decision) in (Action.APPROVE, Action.POLICY),
            promotable=self.plan.tasks.promote_after_ms > 0,
            takes_long=support in (TaskSupport.OPTIONAL, TaskSupport.REQUIRED)
            or (tool.server, tool.name) in self.slow_tools,
        )

    def _may_be_replaced(self, tool: ToolRef) -> bool:
        """Return whether a call may get a reply of the gateway: it may become a task, be held, or be cut."""
        record = self.plan.registry.records.get(tool.server)
        cut = record is not None and bool(record.budgets.max_tool_output_bytes)
        return cut or not tool.plain or self.plan.tasks.promote_after_ms > 0

    async def listed(self, kind: EntryKind, audience: Audience) -> EntryList:
        """Like `listing`; a long list is composed in a thread."""
        if (
            self._rendered_key(kind, audience) in self.rendered
            or len(self.tools) + len(self.resources) + len(self.skills) <= RENDERED_AT_ONCE
        ):
            return self.listing(kind, audience)
        return await asyncio.to_thread(self._listing_with_digest, kind, audience)

    def _listing_with_digest(self, kind: EntryKind, audience: Audience) -> EntryList:
        found = self.listing(kind, audience)
        found.digest  # noqa: B018 - computed here, beside the event loop
        return found

    def listing(self, kind: EntryKind, audience: Audience) -> EntryList:
        """Return the entries of one kind, in order, for this kind of caller."""
        key = self._rendered_key(kind, audience)
        found = self.rendered.get(key)
        if found is None:
            found = self.rendered[key] = EntryList(self._entries(kind, audience))
        return found

    def _late_tools(self, audience: Audience) -> LateEntries:
        """Return the tools that such callers are shown. Each is rendered when its page is read.

        How a tool looks depends on little besides its definition and name, so few tools look different.
        """
        tools, looks, texts = list[ToolRef](), list[_Look](), list[str]()
        known: dict[tuple[object, ...], tuple[_Look, str]] = {}
        for tool in self.tools.values():
            entry = tool.entry
            if entry is None or (tool.unfit_for_headers and audience.generation is Generation.STATELESS):
                continue
            is_slow = (tool.server, tool.name) in self.slow_tools
            # Decisions and traits are shared by the tools for which they are equal.
            alike = (
                tool.server,
                id(tool.decision),
                id(entry.traits),
                tool.upstream_tasks,
                tool.forced,
                tool.plain,
                is_slow,
            )
            if alike not in known:
                look = self._look(tool, audience)
                known[alike] = look, look.text(entry.ui_addresses)
            look, text = known[alike]
            if look.support is not None:
                tools.append(tool)
                looks.append(look)
                # The length keeps a name apart from what follows.
                texts.append(f"{entry.digest}{text}{len(tool.wire)}:{tool.wire}")
        fingerprint = "".join((repr(audience), *texts)).encode()
        return LateEntries(len(tools), lambda place: self._render_as(looks[place], tools[place], audience), fingerprint)

    def _rendered_key(self, kind: EntryKind, audience: Audience) -> tuple[EntryKind, Audience, int]:
        return (kind, audience, self.slow_tools.version if kind is EntryKind.TOOL else 0)

    def _entries(self, kind: EntryKind, audience: Audience) -> Sequence[bytes] | LateEntries:
        match kind:
            case EntryKind.TOOL:
                return self._late_tools(audience)
            case EntryKind.PROMPT:
                return [render(p.entry, p.wire, None, audience) for p in self.prompts.values() if p.entry is not None]
            case EntryKind.RESOURCE:
                return list(self._render_resources(audience))
            case EntryKind.TEMPLATE:
                return [render(entry, template.template, None, audience) for template, entry in self.templates]
            case EntryKind.SKILL:
                return [self.render_skill(entry.server, entry.raw) for entry in self.skills.values()]
            case _:
                assert_never(kind)

    def _render_resources(self, audience: Audience) -> Iterable[bytes]:
        """Return resources for stateful callers, which have no skills: each SKILL.md is added as a resource."""
        for shown, entry in self.resources.items():
            yield render(entry, shown, None, audience)
        for shown, entry in self.skills.items() if audience.generation is Generation.STATEFUL else ():
            if shown not in self.resources:
                yield wire.encode(skill_resource(entry.skill, shown))

    def render_skill(self, server: str, raw: Raw) -> bytes:
        """Return a skill's entry for callers; with several servers it includes the server's name."""
        several = len(self.subset.servers) > 1
        if not several and not self.addresses.any_renamed:
            return bytes(raw)
        return rewritten_entry(raw, lambda uri: self.addresses.shown(server, uri), server if several else None)


def _refused(names: NameTable, pair: tuple[str, str]) -> bool:
    return any(pair in collision.pairs for collision in names.refused)
