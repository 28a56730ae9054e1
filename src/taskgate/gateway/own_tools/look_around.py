"""What there is: servers with their state, and their tools, prompts, resources and templates, each with its server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.own_tools import LISTED, SERVER, Kind, Parameter, ToolFace
from taskgate.core.catalog.search import RegexFilter
from taskgate.gateway.catalog.views import View
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, saying
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import ServerState

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

_HEALTH: Final = {
    ServerState.IDLE: "unknown",
    ServerState.CONNECTING: "unknown",
    ServerState.CONNECTED: "healthy",
    ServerState.DEGRADED: "degraded",
    ServerState.RECONNECTING: "unreachable",
    ServerState.STOPPED: "stopped",
}


async def list_servers(context: Context, request: Request, _given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    return saying({"servers": [server_row(context, view, server) for server in view.subset.servers]})


def server_row(context: Context, view: View, server: str) -> dict[str, Any]:
    upstream = context.upstreams.get(server)
    if upstream is None:
        return {"name": server, "state": "stopped", "transport": "", "tools": 0, "health": "stopped"}
    status = upstream.status()
    row: dict[str, Any] = {
        "name": server,
        "state": status.state.value,
        "transport": upstream.transport,
        "tools": sum(1 for tool in view.tools.values() if tool.server == server and view.shown(tool, False)),
        "health": _HEALTH[status.state],
    }
    if status.reconnect_attempt:
        row["reconnect_attempt"] = status.reconnect_attempt
    if status.next_retry_ms is not None:
        row["next_retry_ms"] = status.next_retry_ms
    return row


async def list_tools(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    shown = (tool.entry for tool in view.tools.values() if tool.entry is not None and view.shown(tool, False))
    return _listed(context, view, "tools", shown, given)


async def list_prompts(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    return _listed(
        context, view, "prompts", (prompt.entry for prompt in view.prompts.values() if prompt.entry is not None), given
    )


async def list_resources(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    return _listed(context, view, "resources", view.resources.values(), given, ours=LISTED)


async def list_resource_templates(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await context.views.view(context.plan, request.caller, request.narrowing, listing=True)
    return _listed(context, view, "resource_templates", (entry for _, entry in view.templates), given)


def _listed(
    context: Context,
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
    problems = {server: context.catalogs.failure(server) for server in view.subset.servers if servers.matches(server)}
    errors = [{"server": server, "error": problem.message} for server, problem in problems.items() if problem]
    if errors:
        reply["errors"] = errors
    return saying(reply)


_FILTERS: Final = (
    Parameter("server", Kind.TEXT, "Only servers whose name matches this regular expression."),
    Parameter("tool", Kind.TEXT, "Only entries whose name or URI matches this regular expression."),
)
TOOLS: Final = (
    OwnTool(
        ToolFace("list_servers", "List the servers behind this gateway: their state, health and number of tools."),
        list_servers,
    ),
    OwnTool(
        ToolFace(
            "list_tools", "List the tools of all servers, each with its server. Run one with execute_tool.", _FILTERS
        ),
        list_tools,
    ),
    OwnTool(
        ToolFace("list_prompts", "List the prompts of all servers. Fetch one with get_prompt.", _FILTERS), list_prompts
    ),
    OwnTool(
        ToolFace("list_resources", "List the resources of all servers. Read one with read_resource.", _FILTERS),
        list_resources,
    ),
    OwnTool(
        ToolFace("list_resource_templates", "List the resource templates of all servers.", _FILTERS),
        list_resource_templates,
    ),
)
