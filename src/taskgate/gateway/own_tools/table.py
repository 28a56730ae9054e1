"""All of the gateway's own tools by name, and its own resources: which a caller sees, and how one is called."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.own_resources import LISTED
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import Family, ToolFace
from taskgate.core.catalog.pages import EntryList
from taskgate.core.catalog.rendering import Audience
from taskgate.core.catalog.task_card import CARD_URI, TaskCard
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.error_codes import error_data
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import cached_privately
from taskgate.core.scoping.scope import FACADE_MODES, HelperTools, ScopeMode, ScopePolicy
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.views import View
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.own_tools import (
    answer_questions,
    await_activity,
    execute_tool,
    follow_tasks,
    list_offers,
    manage_servers,
    run_scripts,
    search_tools,
    task_card,
    timers_and_logs,
    use_resources,
    use_skills,
)
from taskgate.gateway.own_tools.own_resources import ResourceParts, own_content
from taskgate.gateway.own_tools.reply_events import with_events
from taskgate.gateway.own_tools.tool import BoundTool, OwnTool, ToolReply, refused
from taskgate.gateway.requests.replies import executed_stated
from taskgate.gateway.requests.request import Request
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.upstream_replies import RelayedError

_FAMILIES: Final = (
    follow_tasks.TASK_TOOLS,
    await_activity.WAITING_TOOLS,
    answer_questions.QUESTION_TOOLS,
    list_offers.LISTING_TOOLS,
    execute_tool.EXECUTE_TOOLS,
    use_resources.TOOLS,
    timers_and_logs.SESSION_TOOLS,
    manage_servers.MANAGING_TOOLS,
    search_tools.SEARCH_TOOLS,
    task_card.CARD_TOOLS,
    use_skills.SKILL_TOOLS,
    run_scripts.SCRIPT_TOOLS,
)
TOOLS: Final[dict[str, OwnTool[Any]]] = {tool.face.name: tool for family in _FAMILIES for tool in family}
LOCAL_STATE_TOOLS: Final = frozenset(name for name, tool in TOOLS.items() if tool.has_local_state)
"""Own tools that must be called at the gateway that has their state."""


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
    unwanted = scope.helper_tools is HelperTools.NEVER or scope.mode is ScopeMode.SEARCH or audience.task_aware
    return search if unwanted else (Family.HELPER,)


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


# Resources of the gateway itself: diagrams of how it works, and the state of its servers as this caller may see it.
#
# They are listed wherever the gateway is not meant to be transparent (plain names, no facade), and can be read
# everywhere.

_RENDERED: Final = [wire.encode(resource) for resource in LISTED]
_FACADE_TEXT: Final = (
    "This gateway offers its servers through a few tools: list_servers and list_tools list what is available, execute_tool "
    "runs a tool, await_activity waits for events, get_elicitations shows what servers ask you."
)


def shown(scope: ScopePolicy | None) -> bool:
    return scope is not None and (scope.names is not NameStyle.PLAIN or scope.mode in FACADE_MODES)


def resource_listing(scope: ScopePolicy, servers_own: EntryList) -> EntryList:
    return servers_own.plus(_RENDERED) if shown(scope) else servers_own


def instructions(scope: ScopePolicy | None) -> str:
    return _FACADE_TEXT if scope is not None and scope.mode is ScopeMode.FACADE else ""


@dataclass(frozen=True, slots=True)
class OwnTools:
    """Find and call the gateway's own tools, and read its own resources."""

    lookup: Lookup
    tools: Mapping[str, BoundTool]
    resources: ResourceParts
    denials: Denials

    async def find(self, request: Request) -> BoundTool | None:
        """The own tool that a call names, or None if it names a server's tool."""
        name = request.params.get("name")
        tool = self.tools.get(name) if type(name) is str else None
        if tool is None:
            return None
        view = await self.lookup.view(request)
        if tool.face.family not in callable_families(view.scope) or name in view.tools:
            return None
        off = view.plan.features.task_card is TaskCard.OFF
        return None if tool.face.family is Family.CARD and off else tool

    async def call(self, request: Request, tool: BoundTool) -> bytes:
        """Run the tool. Errors become results with the next step, because models see results."""
        if "task" in request.params and not tool.face.as_task:
            raise CallerError(
                "task_forbidden",
                f"{tool.face.name!r} cannot be called as a task. It was not executed.",
                data={"tool": tool.face.name, "reason": "The gateway answers this tool itself, without delay."},
            )
        feed = await self.resources.activity.feed(request)
        reply: ToolReply | bytes
        try:
            reply = await tool.use(request, tool.face.read(request.params.get("arguments")))
        except RelayedError as problem:
            error = wire.parse_strictly(problem.raw)
            reply = refused(f"The server answered with an error: {error.get('message')} (code {problem.code})")
        except TaskgateError as problem:
            self.denials.request_refused(request, problem)
            executed = executed_stated(problem, request.message)
            reply = ToolReply(
                refused(problem.message).blocks,
                True,
                {"_meta": wire.raw({"taskgate/error": error_data(problem, secrets.token_hex(8), executed)})},
            )
        if request.delivery.answered or isinstance(reply, bytes):
            return reply if isinstance(reply, bytes) else b"{}"
        if not tool.bare:
            reply = await with_events(self.resources.activity.inbox, request, feed, reply)
        return reply.encoded(request.generation)

    async def read_resource(self, request: Request) -> bytes | None:
        """The content of an own resource, or None if the URI is not that of one."""
        uri = request.params.get("uri")
        content = await own_content(self.resources, request, uri) if type(uri) is str else None
        if content is None:
            return None
        body = wire.encode({"contents": [content]})
        return cached_privately(body) if request.generation is Generation.STATELESS else body
