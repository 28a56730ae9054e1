"""What the gateway's own resources say: diagrams of how it works, and the state of its servers as this caller may see it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.catalog.own_tools import DIAGRAMS, DIAGRAMS_ALIAS, STATUS
from taskgate.core.diagrams import diagrams
from taskgate.core.events import pending_on_servers
from taskgate.core.tasks import projections
from taskgate.gateway.own_tools.follow_tasks import tasks_of
from taskgate.gateway.own_tools.look_around import server_row
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context


async def own_content(context: Context, request: Request, uri: str) -> dict[str, Any] | None:
    """One of our own resources as an entry of `contents`, or None if the URI is none of ours."""
    if uri in (DIAGRAMS, DIAGRAMS_ALIAS):
        said: dict[str, Any] = {"diagrams": diagrams()}
    elif uri == STATUS:
        said = await _status(context, request)
    else:
        return None
    return {"uri": uri, "mimeType": "application/json", "text": wire.encode(said).decode("utf-8")}


async def _status(context: Context, request: Request) -> dict[str, Any]:
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    feed = await context.activity.feed(request)
    now = context.tasks.store.now_ms()
    return {
        "version": __version__,
        "servers": [server_row(context, view, server) for server in view.subset.servers],
        "tasks": Counter(projections.shown_status(task, now) for task in await tasks_of(context, request, None, None)),
        "pending_server": pending_on_servers(feed.open_tasks.values(), now),
        "pending_client": {
            "elicitations": context.activity.inbox.elicitations(request),
            "sampling_requests": context.activity.inbox.sampling_requests(request),
        },
    }
