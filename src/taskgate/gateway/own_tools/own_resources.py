"""The gateway's own resources: diagrams, and the state of the servers that the caller may see."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from taskgate import __version__
from taskgate.core import wire
from taskgate.core.activity import pending_on_servers
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.own_resources import DIAGRAMS, DIAGRAMS_ALIAS, LISTED, STATUS
from taskgate.core.catalog.pages import EntryList
from taskgate.core.catalog.task_card import CARD_URI
from taskgate.core.diagrams import diagrams
from taskgate.core.scoping.scope import FACADE_MODES, ScopePolicy
from taskgate.core.tasks.projections_tools import shown_status
from taskgate.gateway.calls.readings import Readings
from taskgate.gateway.own_tools.follow_tasks import tasks_of
from taskgate.gateway.own_tools.list_offers import server_row
from taskgate.gateway.own_tools.task_card import card_content
from taskgate.gateway.own_tools.tool import TaskParts
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request

_RENDERED: Final = [wire.encode(resource) for resource in LISTED]


def resource_listing(scope: ScopePolicy, resources_of_servers: EntryList) -> EntryList:
    """The resources of servers, followed by the own ones unless the scope is transparent (plain names, no facade). Own ones can be
    read in every scope."""
    transparent = scope.names is NameStyle.PLAIN and scope.mode not in FACADE_MODES
    return resources_of_servers if transparent else resources_of_servers.plus(_RENDERED)


class ResourceParts(msgspec.Struct, frozen=True):
    readings: Readings
    following: TaskParts

    @property
    def activity(self) -> Activity:
        return self.following.activity


async def own_content(parts: ResourceParts, request: Request, uri: str) -> dict[str, Any] | None:
    """Return an own resource as an entry of `contents`, or None if the URI is not an own one."""
    if uri == CARD_URI:
        return card_content()
    if uri in (DIAGRAMS, DIAGRAMS_ALIAS):
        body: dict[str, Any] = {"diagrams": diagrams()}
    elif uri == STATUS:
        body = await _status(parts, request)
    else:
        return None
    return {"uri": uri, "mimeType": "application/json", "text": wire.encode(body).decode("utf-8")}


async def _status(parts: ResourceParts, request: Request) -> dict[str, Any]:
    view = await parts.readings.lookup.view(request)
    feed = await parts.activity.feed(request)
    now = parts.following.tasks.store.now_ms()
    return {
        "version": __version__,
        "servers": [server_row(parts.readings.sending.upstreams.value, view, server) for server in view.subset.servers],
        "tasks": Counter(shown_status(task, now) for task in await tasks_of(parts.following, request, None, None)),
        "pending_server": pending_on_servers(feed.open_tasks.values(), now),
        "pending_client": {
            "elicitations": parts.activity.inbox.elicitations(request),
            "sampling_requests": parts.activity.inbox.sampling_requests(request),
        },
    }
