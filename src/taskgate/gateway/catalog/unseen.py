"""Explain why a caller does not see a name, for the audit log and the operator's commands. Callers never get the reason.

A name that is hidden, denied, quarantined or unknown gets one and the same reply, so that a caller that guesses names learns
nothing. The operator needs the difference: which server and tool the name refers to, and what excluded them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.names import SEPARATOR, NameStyle, wire_name
from taskgate.core.catalog.pin_keys import resource_key
from taskgate.core.governance.decision import Denied, Gate
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.view import View
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.plan import Live, Plan

MAX_PREFIXED: Final = 1_000
"""Maximum number of prefixed names in an index. Building that many takes a few milliseconds."""


class Unseen(msgspec.Struct, frozen=True):
    """What a name refers to (`server` is empty if it refers to nothing) and why it is hidden. `reason` begins with a
    stable code: those of `core.scoping.subset.Reason`, or `quarantined`, `rule_denied`, `hidden`, `name_collision`, `not_listed`.
    """

    server: str
    name: str
    reason: str
    rule: str = ""


class UnseenNames(msgspec.Struct, eq=False):
    _plan: Live[Plan]
    _catalogs: Catalogs
    _views: Views

    def explain(
        self, caller: Caller, narrowing: SessionRequest, kind: PatternKind, shown: str, *, server: str = ""
    ) -> Unseen:
        """`server`: the server that the caller named in addition, if any."""
        view = self._views.current(self._plan.value, caller, narrowing)
        if view is None:
            return Unseen(server, shown, "not_listed: the lists changed while the request was answered")
        return explain_unseen(view, self._catalogs, kind, shown, server=server)


def explain_unseen(view: View, catalogs: Catalogs, kind: PatternKind, shown: str, *, server: str = "") -> Unseen:
    """Return what excludes the name from this view."""
    target = (server, shown) if server else _resolve(view, catalogs, kind, shown)
    if target is None:
        return Unseen("", shown, "not_listed: no server lists this name")
    server, name = target
    excluded = view.subset.explain(server, name, kind)
    if excluded is not None:
        return Unseen(server, name, f"{excluded.reason.value}: {excluded.detail}")
    decision = view.decision_on(kind, server, name)
    if isinstance(decision, Denied):
        return Unseen(server, name, f"{_code(view, kind, server, name, decision)}: {decision.reason}", decision.rule)
    if any(target in collision.pairs for collision in view.tool_names.refused) and kind is PatternKind.TOOL:
        return Unseen(server, name, "name_collision: another tool would have the same name")
    return Unseen(server, name, f"not_listed: {server} does not list it")


def _code(view: View, kind: PatternKind, server: str, name: str, decision: Denied) -> str:
    key = resource_key(name) if kind is PatternKind.RESOURCE else name
    if (server, key) in view.quarantined:
        return "quarantined"
    return "hidden" if decision.gate is Gate.VISIBILITY else "rule_denied"


def _resolve(view: View, catalogs: Catalogs, kind: PatternKind, shown: str) -> tuple[str, str] | None:
    """Return the server and its own name for the caller's name, even if the server is outside the caller's scope."""
    if kind is PatternKind.RESOURCE:
        address = view.address_of(shown, None)
        return (address.server, address.uri) if address is not None else _indexed(view, catalogs, kind).get(shown)
    found = _indexed(view, catalogs, kind).get(shown)
    if found is not None or view.scope.names is not NameStyle.PREFIXED:
        return found
    prefix, separator, own = shown.partition(SEPARATOR)
    servers = view.plan.registry.records
    server = next((s for s in servers if view.plan.prefixes.get(s, s) == prefix), None) if separator else None
    return (server, own) if server is not None else None


def _indexed(view: View, catalogs: Catalogs, kind: PatternKind) -> dict[str, tuple[str, str]]:
    """Return the entries that servers list and this view hides, by the name they would have in it. Built once for each view, so
    that a guessed name costs one lookup. A prefixed name beyond `MAX_PREFIXED` is split at its prefix instead.
    """
    index = view.unseen.get(kind)
    if index is None:
        index = view.unseen[kind] = {}
        prefixed = kind is not PatternKind.RESOURCE and view.scope.names is NameStyle.PREFIXED
        pairs = _unseen_pairs(view, catalogs, kind)
        for pair in islice(pairs, MAX_PREFIXED) if prefixed else pairs:
            name = wire_name(view.plan.prefixes.get(pair[0], pair[0]), pair[1]) if prefixed else pair[1]
            index.setdefault(name, pair)
    return index


_ENTRIES = {
    PatternKind.TOOL: (EntryKind.TOOL,),
    PatternKind.PROMPT: (EntryKind.PROMPT,),
    PatternKind.RESOURCE: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}


def _unseen_pairs(view: View, catalogs: Catalogs, kind: PatternKind) -> Iterator[tuple[str, str]]:
    yield from view.withheld.get(kind, ())
    if kind is PatternKind.TOOL:
        yield from (pair for collision in view.tool_names.refused for pair in collision.pairs)
    for server in view.plan.registry.records:
        offer = catalogs.offer(server) if server not in view.subset.filters else None
        if offer is not None:
            yield from ((server, entry.name) for part in _ENTRIES[kind] for entry in offer.entries.get(part, ()))
