"""Resources of the gateway itself: diagrams of how it works, and the state of its servers as this caller may see it.

They are listed wherever the gateway is not meant to be transparent (plain names, no facade), and can be read everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.activity.diagrams import diagrams
from taskgate.core.activity.waiting import pending_on_servers
from taskgate.core.catalog.names import NameStyle
from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import cached_privately
from taskgate.core.scoping.scope import ScopeMode, ScopePolicy
from taskgate.gateway.own_tools.look_around import server_row
from taskgate.gateway.own_tools.table import FACADE_MODES
from taskgate.gateway.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.context import Context

DIAGRAMS: Final = "taskgate://diagrams"
DIAGRAMS_ALIAS: Final = "emceepee://diagrams"
STATUS: Final = "taskgate://status"
_LISTED: Final = (
    {
        "uri": DIAGRAMS,
        "name": "diagrams",
        "title": "How this gateway works",
        "description": "Mermaid diagrams of tasks, questions and calls.",
        "mimeType": "application/json",
    },
    {
        "uri": DIAGRAMS_ALIAS,
        "name": "diagrams-alias",
        "description": f"The same as {DIAGRAMS}, under an older name.",
        "mimeType": "application/json",
    },
    {
        "uri": STATUS,
        "name": "status",
        "title": "State of the servers",
        "description": "Servers in your scope, what they work on for you, and what waits for you.",
        "mimeType": "application/json",
    },
)
_RENDERED: Final = [wire.encode(resource) for resource in _LISTED]
_FACADE_TEXT: Final = (
    "This gateway offers its servers through a few tools: list_servers and list_tools show what there is, execute_tool "
    "runs a tool, await_activity waits for news, get_elicitations shows what servers ask you."
)


def shown(scope: ScopePolicy | None) -> bool:
    return scope is not None and (scope.names is not NameStyle.PLAIN or scope.mode in FACADE_MODES)


def listing(scope: ScopePolicy, servers_own: list[bytes]) -> list[bytes]:
    return [*servers_own, *_RENDERED] if shown(scope) else servers_own


def instructions(scope: ScopePolicy | None) -> str:
    return _FACADE_TEXT if scope is not None and scope.mode is ScopeMode.FACADE else ""


async def read_own_resource(context: Context, request: Request) -> bytes | None:
    """The resource if it is one of ours, else None."""
    uri = request.params.get("uri")
    if uri in (DIAGRAMS, DIAGRAMS_ALIAS):
        content: dict[str, Any] = {"diagrams": diagrams()}
    elif uri == STATUS:
        content = await _status(context, request)
    else:
        return None
    text = wire.encode(content).decode("utf-8")
    body = wire.encode({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})
    return cached_privately(body) if request.generation is Generation.STATELESS else body


async def _status(context: Context, request: Request) -> dict[str, Any]:
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    feed = await context.activity.feed(request)
    return {
        "version": __version__,
        "servers": [server_row(context, view, server) for server in view.subset.servers],
        "pending_server": pending_on_servers(feed.open_tasks.values(), context.tasks.store.now_ms()),
        "pending_client": {
            "elicitations": context.activity.inbox.elicitations(request),
            "sampling_requests": context.activity.inbox.sampling_requests(request),
        },
    }
