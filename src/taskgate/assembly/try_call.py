"""Show how one call would be decided: `taskgate policy test`. It is decided like a call of a client, and nothing is sent.

The name is looked up in the view of the scope and decided by the functions that a call passes (`View.tool`, `View.decision_on`,
`evaluate`). Standing grants and quarantined definitions exist only in the running gateway, so they are not considered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.assembly.explain_scope import scope_named
from taskgate.assembly.listing import listed_servers
from taskgate.config.load import LoadedConfig
from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.names import SEPARATOR, NameStyle
from taskgate.core.catalog.own_tool_names import OWN_SERVER, RESERVED_NAMES
from taskgate.core.catalog.schema_check import InvalidArguments
from taskgate.core.errors import CallerError
from taskgate.core.facts.table import Facts
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.decision import Decision, Denied, Gate, NeedsApproval, Settled
from taskgate.core.governance.pipeline import UNKNOWN, decide, not_evaluated, undeclared_risk
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.subset import compose
from taskgate.core.text.similar_names import similar_names
from taskgate.gateway.catalog.build_view import build_view
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.unseen import explain_unseen
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.catalog.views import View, facts_of_caller
from taskgate.gateway.governance.evaluate import evaluate, facts_of
from taskgate.gateway.governance.gated_call import GatedCall, gated_reading, gated_tool_call
from taskgate.gateway.plan import Live, Plan


class Subject(msgspec.Struct, frozen=True):
    """The tool, resource or prompt that a name refers to in a scope."""

    kind: PatternKind
    server: str
    name: str
    shown: str
    """Its name for clients; empty if it is hidden from them."""
    is_listed: bool
    """Whether its server lists it. False if the server was not connected or is unreachable."""


class Tried(msgspec.Struct, frozen=True):
    subject: Subject
    first: Decision
    """The decision by name."""
    last: Settled
    """The decision with the arguments."""
    notes: tuple[str, ...]


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What conditions can depend on besides the caller and the arguments. None is not known; of the time, now."""

    from_script: bool = False
    client: str | None = None
    generation: Generation | None = None
    at_s: int | None = None


NO_CIRCUMSTANCES: Final = Circumstances()


async def try_call(
    loaded: LoadedConfig,
    plan: Plan,
    name: str,
    arguments: bytes,
    caller: Caller,
    *,
    connect: bool,
    within: Circumstances = NO_CIRCUMSTANCES,
) -> Tried:
    """Raises CallerError for an unknown scope or name, and for invalid arguments."""
    policy = scope_named(plan, caller.scope)
    subset = compose(plan.registry, policy)
    chosen = _servers_named(plan, name, policy.names) or subset.servers
    async with listed_servers(loaded, plan.limits, chosen if connect else ()) as catalogs:
        known = facts_of_caller(plan, caller, from_script=within.from_script)
        snapshot = catalogs.snapshot(subset.servers)
        view = build_view(plan, policy, subset, snapshot, {}, slow_tools=SlowTools(), caller=known)
        notes = [*_unreached(catalogs, chosen)] if connect else []
        subject = _subject(view, catalogs, name)
        first, call = _decided(view, catalogs, subject, caller, arguments)
        call = replace(call, from_script=within.from_script, client=within.client, generation=within.generation)
        at_s = int(clock.wall()) if within.at_s is None else within.at_s
        last = evaluate(plan, call, first, (), 0, at_s=at_s)
        if not subject.is_listed:
            notes.append(f"{subject.server} has not listed {subject.name!r}; only the name was evaluated.")
        notes += _about_conditions(first, facts_of(plan, call, at_s))
        notes += _about_arguments(view, subject, last, arguments)
        return Tried(subject, first, last, tuple(notes))


def _servers_named(plan: Plan, name: str, names: NameStyle) -> tuple[str, ...]:
    """Return the server that is part of the name, so that no other has to be started."""
    server = name.partition(":")[0]
    if server in plan.registry.records:
        return (server,)
    prefix, separator, _ = name.partition(SEPARATOR)
    if separator and names is NameStyle.PREFIXED:
        return tuple(s for s in plan.registry.records if plan.prefixes.get(s, s) == prefix)
    return ()


def _unreached(catalogs: Catalogs, servers: Collection[str]) -> list[str]:
    return [f"{server}: {problem.message}" for server in servers if (problem := catalogs.failure(server)) is not None]


def _subject(view: View, catalogs: Catalogs, name: str) -> Subject:
    """Resolve a name as clients see it, `SERVER:TOOL`, `SERVER:resource:URI`, `SERVER:prompt:NAME`, or without the server if
    that is unambiguous."""
    tool = view.tool(name)
    if tool is not None and tool.entry is not None:
        return Subject(kind=PatternKind.TOOL, server=tool.server, name=tool.name, shown=tool.wire, is_listed=True)
    server, colon, rest = name.partition(":")
    if not colon or server not in (*view.plan.registry.records, OWN_SERVER):
        server, rest = "", name
    kind = PatternKind.TOOL
    word, colon, own = rest.partition(":")
    if colon and word in tuple(PatternKind):
        kind, rest = PatternKind(word), own
    if kind is PatternKind.TOOL and (server == OWN_SERVER or (not server and rest in RESERVED_NAMES)):
        return _own_tool(view, rest)
    if server:
        return _of_server(view, catalogs, kind, server, rest)
    return _anywhere(view, catalogs, kind, rest)


def _own_tool(view: View, name: str) -> Subject:
    if name not in RESERVED_NAMES:
        raise _nothing(view, f"{OWN_SERVER}:{name}", RESERVED_NAMES)
    return Subject(kind=PatternKind.TOOL, server=OWN_SERVER, name=name, shown=name, is_listed=True)


def _of_server(view: View, catalogs: Catalogs, kind: PatternKind, server: str, name: str) -> Subject:
    listed = _listed(catalogs, kind, server)
    address = view.address_of(name, None) if kind is PatternKind.RESOURCE else None
    if listed is not None and name not in listed and (address is None or address.server != server):
        raise _nothing(view, f"{server}:{name}", [f"{server}:{one}" for one in listed])
    shown = view.tool_names.to_wire.get((server, name), "") if kind is PatternKind.TOOL else ""
    return Subject(kind=kind, server=server, name=name, shown=shown, is_listed=listed is not None)


def _anywhere(view: View, catalogs: Catalogs, kind: PatternKind, name: str) -> Subject:
    """Resolve a name without a server: as clients would see it, or the name that only one server uses."""
    if kind is PatternKind.RESOURCE and (address := view.address_of(name, None)) is not None:
        return Subject(kind=kind, server=address.server, name=address.uri, shown=name, is_listed=True)
    if kind is PatternKind.PROMPT and (prompt := view.prompt(name)) is not None:
        return Subject(
            kind=kind, server=prompt.server, name=prompt.name, shown=prompt.wire, is_listed=prompt.entry is not None
        )
    unseen = explain_unseen(view, catalogs, kind, name)
    if unseen.server:
        return _of_server(view, catalogs, kind, unseen.server, unseen.name)
    servers = tuple(view.plan.registry.records)
    having = [server for server in servers if name in (_listed(catalogs, kind, server) or ())]
    if len(having) > 1:
        choice = ", ".join(f"{server}:{name}" for server in having)
        raise CallerError("unknown_tool", f"Several servers have {name[:120]!r}. Name one of: {choice}.")
    only = having or (view.subset.servers if view.scope.names is NameStyle.PLAIN else servers)
    if len(only) == 1:
        return _of_server(view, catalogs, kind, only[0], name)
    raise _nothing(view, name, view.tools)


_ENTRIES = {
    PatternKind.TOOL: (EntryKind.TOOL,),
    PatternKind.PROMPT: (EntryKind.PROMPT,),
    PatternKind.RESOURCE: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}


def _listed(catalogs: Catalogs, kind: PatternKind, server: str) -> list[str] | None:
    """Return the names that a server lists; None if it was not connected or is unreachable."""
    offer = catalogs.offer(server)
    return None if offer is None else [entry.name for part in _ENTRIES[kind] for entry in offer.entries.get(part, ())]


def _nothing(view: View, name: str, known: Collection[str]) -> CallerError:
    near = similar_names(name[:120], [*view.tools, *known], 3)
    hint = (
        f" Did you mean {' or '.join(near)}?" if near else " `taskgate scopes explain SCOPE --connect` lists all names."
    )
    return CallerError("unknown_tool", f"{name[:120]!r} matches nothing in the scope {view.scope.name!r}.{hint}")


def _decided(
    view: View, catalogs: Catalogs, subject: Subject, caller: Caller, arguments: bytes
) -> tuple[Decision, GatedCall]:
    """Return the decision by name, and the call as the gates evaluate it."""
    kind, server, name = subject.kind, subject.server, subject.name
    tool = view.tool(subject.shown) if kind is PatternKind.TOOL and subject.shown else None
    if tool is not None:
        return tool.decision, gated_tool_call(caller, tool, arguments)
    if kind is PatternKind.TOOL:
        call = GatedCall(
            principal=caller.principal,
            roles=caller.roles,
            scope=caller.scope,
            server=server,
            name=name,
            arguments=arguments,
            risk=view.risks.get(server, undeclared_risk)(name),
        )
    else:
        call = gated_reading(caller, kind, server, name, arguments, revision=view.subset.revision)
    if server == OWN_SERVER:
        return decide(view.gates, kind, server, name), call
    decision = view.decision_on(kind, server, name)
    is_seen = kind is not PatternKind.TOOL or not subject.is_listed
    if isinstance(decision, Denied) and decision.gate is not Gate.VISIBILITY:
        return decision, call
    if isinstance(decision, Denied) or not is_seen:
        why = explain_unseen(view, catalogs, kind, name, server=server)
        return Denied(Gate.VISIBILITY, why.reason, UNKNOWN, why.rule), call
    return decision, call


def _about_conditions(first: Decision, facts: Facts) -> list[str]:
    """A condition that cannot be evaluated, and whether an option states its fact."""
    left = not_evaluated(first, facts)
    if not left:
        return []
    fact = left[0].fact
    hint = f" Give --{fact.name} to state the {fact.about}." if fact.name in ("client", "generation") else ""
    return [f"The condition {left[0]} cannot be evaluated, so the strictest possible decision counts.{hint}"]


def _about_arguments(view: View, subject: Subject, last: Settled, arguments: bytes) -> list[str]:
    """A call with arguments that do not match the schema is rejected instead of held."""
    tool = view.tools.get(subject.shown)
    if not isinstance(last, NeedsApproval) or tool is None:
        return []
    try:
        value = wire.parse_strictly(arguments)
        Validation(Live(view.plan), lambda _: None).before_hold(tool.entry, tool.wire, value, arguments)
    except InvalidArguments as problem:
        return [f"A call with these arguments is rejected before approval: {problem.message}"]
    return []
