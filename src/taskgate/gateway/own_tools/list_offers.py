"""Own tools that list servers, and their tools, prompts and resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.own_resources import LISTED, SERVER
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.catalog.regex_filter import RegexFilter
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import View
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, text_reply
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.request import Request
from taskgate.ports.call_failure import about_server
from taskgate.ports.upstream import ServerState, Upstream

_HEALTH: Final = {
    ServerState.IDLE: "unknown",
    ServerState.CONNECTING: "unknown",
    ServerState.CONNECTED: "healthy",
    ServerState.DEGRADED: "degraded",
    ServerState.RECONNECTING: "unreachable",
    ServerState.STOPPED: "stopped",
}


class ListingParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]


async def list_servers(parts: ListingParts, request: Request, _given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return text_reply({"servers": [server_row(parts.upstreams.value, view, server) for server in view.subset.servers]})


def server_row(upstreams: Mapping[str, Upstream], view: View, server: str) -> dict[str, Any]:
    upstream = upstreams.get(server)
    if upstream is None:
        return {"name": server, "state": "stopped", "transport": "", "tools": 0, "health": "stopped"}
    status = upstream.status()
    row: dict[str, Any] = {
        "name": server,
        "state": status.state.value,
        "transport": upstream.transport,
        "tools": sum(
            1 for tool in view.tools.values() if tool.server == server and tool.is_for_model and view.shown(tool, False)
        ),
        "health": _HEALTH[status.state],
    }
    if status.reconnect_attempt:
        row["reconnect_attempt"] = status.reconnect_attempt
    if status.next_retry_ms is not None:
        row["next_retry_ms"] = status.next_retry_ms
    return row


async def list_tools(parts: ListingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    shown = (
        tool.entry
        for tool in view.tools.values()
        if tool.entry is not None and tool.is_for_model and view.shown(tool, False)
    )
    return _listed(parts.lookup.catalogs, view, "tools", shown, given)


async def list_prompts(parts: ListingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return _listed(
        parts.lookup.catalogs,
        view,
        "prompts",
        (prompt.entry for prompt in view.prompts.values() if prompt.entry is not None),
        given,
    )


async def list_resources(parts: ListingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return _listed(parts.lookup.catalogs, view, "resources", view.resources.values(), given, ours=LISTED)


async def list_resource_templates(parts: ListingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return _listed(parts.lookup.catalogs, view, "resource_templates", (entry for _, entry in view.templates), given)


def _listed(
    catalogs: Catalogs,
    view: View,
    key: str,
    entries: Iterable[CatalogEntry],
    given: dict[str, Any],
    *,
    ours: Iterable[Mapping[str, str]] = (),
) -> ToolReply:
    servers = RegexFilter("server", given.get("server"))
    names = RegexFilter("tool", given.get("tool"))
    rows: list[dict[str, Any]] = [
        {"server": entry.server, **wire.members_of(entry.raw)}
        for entry in entries
        if servers.matches(entry.server) and names.matches(entry.name)
    ]
    if servers.matches(SERVER):
        rows += [{"server": SERVER, **entry} for entry in ours if names.matches(entry["name"])]
    reply: dict[str, Any] = {key: rows}
    problems = {server: catalogs.failure(server) for server in view.subset.servers if servers.matches(server)}
    errors = [{"server": server, "error": about_server(problem)} for server, problem in problems.items() if problem]
    if errors:
        reply["errors"] = errors
    return text_reply(reply)


_FILTERS: Final = (
    Parameter("server", ArgumentKind.TEXT, "Only servers whose name matches this regular expression."),
    Parameter("tool", ArgumentKind.TEXT, "Only entries whose name or URI matches this regular expression."),
)
LISTING_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.LIST_SERVERS, "List the servers behind this gateway: their state, health and number of tools."
        ),
        list_servers,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.LIST_TOOLS,
            "List the tools of all servers, each with its server. Run one with execute_tool.",
            _FILTERS,
        ),
        list_tools,
    ),
    OwnTool(
        ToolFace(OwnToolName.LIST_PROMPTS, "List the prompts of all servers. Fetch one with get_prompt.", _FILTERS),
        list_prompts,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.LIST_RESOURCES, "List the resources of all servers. Read one with read_resource.", _FILTERS
        ),
        list_resources,
    ),
    OwnTool(
        ToolFace(OwnToolName.LIST_RESOURCE_TEMPLATES, "List the resource templates of all servers.", _FILTERS),
        list_resource_templates,
    ),
)
