"""Which own tools a caller is shown and may call, by the mode of its scope and what its client supports."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import Family, ToolFace
from taskgate.core.catalog.pages import EntryList
from taskgate.core.catalog.rendering import Audience
from taskgate.core.catalog.task_card import CARD_URI, TaskCard
from taskgate.core.generations.generation import Generation
from taskgate.core.scoping.scope import FACADE_MODES, HelperTools, ScopeMode, ScopePolicy
from taskgate.gateway.catalog.views import View
from taskgate.gateway.own_tools.table import TOOLS

_FACADE_TEXT: Final = (
    "This gateway offers its servers through a few tools: list_servers and list_tools list what is available, execute_tool "
    "runs a tool, await_activity waits for events, get_elicitations shows what servers ask you."
)
_CARD_CALLS: Final = OwnToolName.CANCEL_TASK
"""The tool that the card calls besides `show_tasks`."""
_RUNS_SERVER_TOOL: Final = frozenset({OwnToolName.EXECUTE_TOOL, OwnToolName.CALL_TOOL})
"""Own tools that run a tool of a server, so that their reply may be a task."""


def shown_families(scope: ScopePolicy, audience: Audience) -> tuple[Family, ...]:
    """The families of own tools that `tools/list` shows."""
    shown = _shown_families(scope, audience)
    return (*shown, Family.SCRIPT) if scope.scripts else shown


def _shown_families(scope: ScopePolicy, audience: Audience) -> tuple[Family, ...]:
    if scope.mode in FACADE_MODES:
        return (Family.HELPER, Family.FACADE)
    search = (Family.SEARCH,) if scope.mode is ScopeMode.SEARCH else ()
    if scope.helper_tools is HelperTools.ALWAYS:
        return (*search, Family.HELPER)
    # In search mode the list stays small: `call_tool` also calls helpers that a reply named.
    omitted = scope.helper_tools is HelperTools.NEVER or scope.mode is ScopeMode.SEARCH or audience.task_aware
    return search if omitted else (Family.HELPER,)


def shows_card(view: View, audience: Audience, families: tuple[Family, ...]) -> bool:
    """Whether this caller is shown `show_tasks`. Lists of stateless callers do not depend on whether a request declares apps, so
    there it is one of the helpers.
    """
    if view.plan.features.task_card is TaskCard.OFF or not view.shows_cards():
        return False
    stateless = audience.generation is Generation.STATELESS
    return audience.renders_apps or (stateless and Family.HELPER in families)


def callable_families(scope: ScopePolicy) -> tuple[Family, ...]:
    """The families that may be called, including those that are not listed for this caller, because a reply may have named such a
    tool.
    """
    families = _callable_families(scope)
    return (*families, Family.SCRIPT) if scope.scripts else families


def _callable_families(scope: ScopePolicy) -> tuple[Family, ...]:
    if scope.mode in FACADE_MODES:
        return (Family.HELPER, Family.FACADE, Family.CARD, Family.SKILL)
    search = (Family.SEARCH, Family.SKILL) if scope.mode is ScopeMode.SEARCH else ()
    return (*search, Family.HELPER, Family.CARD) if scope.has_helpers else search


def listing(view: View, servers_tools: EntryList, audience: Audience, hidden: frozenset[str]) -> EntryList:
    """The servers' tools, unless this scope shows only the facade or the search, followed by the own tools."""
    families = shown_families(view.scope, audience)
    if view.skills and view.scope.mode in (*FACADE_MODES, ScopeMode.SEARCH):
        families = (*families, Family.SKILL)
    shown = EntryList([]) if view.scope.mode in (ScopeMode.FACADE, ScopeMode.SEARCH) else servers_tools
    card = shows_card(view, audience, families)
    ours = _listed_for(audience, families, card)
    own = [entry for name, entry in ours if name not in view.tools and name not in hidden]
    return shown.plus(own) if own else shown


@lru_cache(maxsize=256)
def _listed_for(audience: Audience, families: tuple[Family, ...], card: bool) -> tuple[tuple[str, bytes], ...]:
    """The own tools that such callers are shown, by name. Cached, because rendering them took a tenth of the time of a list."""
    every = ((name, _rendered(tool.face, audience, families, card=card)) for name, tool in TOOLS.items())
    return tuple((name, entry) for name, entry in every if entry is not None)


def _rendered(face: ToolFace, audience: Audience, families: tuple[Family, ...], *, card: bool) -> bytes | None:
    """One own tool as this caller is shown it; None if it is not shown."""
    if face.family is Family.CARD:
        return face.rendered(audience, interface=CARD_URI) if card else None
    if face.family in families:
        with_card = card and audience.renders_apps and face.name in _RUNS_SERVER_TOOL
        return face.rendered(audience, interface=CARD_URI if with_card else None)
    # A host lets its apps call no tool that is not listed.
    return face.rendered(audience, only_for_apps=True) if card and face.name == _CARD_CALLS else None


def instructions(scope: ScopePolicy | None) -> str:
    """Instructions for clients of a scope that shows only the facade."""
    return _FACADE_TEXT if scope is not None and scope.mode is ScopeMode.FACADE else ""
