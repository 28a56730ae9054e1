"""Servers as tools: what there is, and adding, removing and reconnecting them where the operator allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.own_resources import LISTED, SERVER
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.catalog.regex_filter import RegexFilter
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.pipeline import decide
from taskgate.core.patterns import PatternKind
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import View
from taskgate.gateway.dynamic_servers import DynamicServers, NewServer
from taskgate.gateway.governance.evaluate import OWN_SERVER, Asked
from taskgate.gateway.governance.gate import HeldReadings
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, saying
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest
from taskgate.ports.upstream import ServerState, Upstream

_HEALTH: Final = {
    ServerState.IDLE: "unknown",
    ServerState.CONNECTING: "unknown",
    ServerState.CONNECTED: "healthy",
    ServerState.DEGRADED: "degraded",
    ServerState.RECONNECTING: "unreachable",
    ServerState.STOPPED: "stopped",
}


@dataclass(frozen=True, slots=True)
class LookingParts:
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]


async def list_servers(parts: LookingParts, request: Request, _given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return saying({"servers": [server_row(parts.upstreams.value, view, server) for server in view.subset.servers]})


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


async def list_tools(parts: LookingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    shown = (
        tool.entry
        for tool in view.tools.values()
        if tool.entry is not None and tool.is_for_model and view.shown(tool, False)
    )
    return _listed(parts.lookup.catalogs, view, "tools", shown, given)


async def list_prompts(parts: LookingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return _listed(
        parts.lookup.catalogs,
        view,
        "prompts",
        (prompt.entry for prompt in view.prompts.values() if prompt.entry is not None),
        given,
    )


async def list_resources(parts: LookingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    view = await parts.lookup.view(request, listing=True)
    return _listed(parts.lookup.catalogs, view, "resources", view.resources.values(), given, ours=LISTED)


async def list_resource_templates(parts: LookingParts, request: Request, given: dict[str, Any]) -> ToolReply:
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
    errors = [{"server": server, "error": problem.message} for server, problem in problems.items() if problem]
    if errors:
        reply["errors"] = errors
    return saying(reply)


_FILTERS: Final = (
    Parameter("server", ArgumentKind.TEXT, "Only servers whose name matches this regular expression."),
    Parameter("tool", ArgumentKind.TEXT, "Only entries whose name or URI matches this regular expression."),
)
LOOKING_TOOLS: Final = (
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


# Adding, removing and reconnecting servers while the gateway runs, where the operator allows it.
#
# Adding and removing are governed calls: rules see them as the tools `add_server` and `remove_server` of the server
# `taskgate`, people may have to agree, and the audit log has them.

_NAME: Final = Parameter("name", ArgumentKind.TEXT, "The name of the server.", required=True)
NEEDS_PERMISSION: Final = frozenset({"add_server", "remove_server"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagingParts:
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    dynamic_servers: DynamicServers
    servers_changed: Callable[[str], None]
    """One was added or removed: what follows from that is done."""
    held: HeldReadings
    record: Callable[[AuditEntry], None]
    activity: Activity


async def add_server(parts: ManagingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    new = NewServer(
        given["name"],
        given.get("url"),
        given.get("command"),
        tuple(given.get("args", ())),
        _texts(given, "env"),
        _texts(given, "headers"),
    )
    parts.dynamic_servers.check(parts.lookup.plan.value, new)
    await _agreed(parts, request, "add_server")
    # Somebody may have taken the name, or the last place, while people were asked.
    parts.dynamic_servers.check(parts.lookup.plan.value, new)
    await parts.dynamic_servers.add(parts.lookup.plan.value, request.caller.scope, new)
    parts.servers_changed(new.name)
    _record(parts, request, "add_server", new.name)
    _tell(parts, request, EventKind.SERVER_ADDED, new.name)
    return saying({"success": True, "message": f"{new.name} is connected. list_tools shows its tools."})


def _texts(given: dict[str, Any], key: str) -> dict[str, str]:
    found = given.get(key, {})
    if not all(type(value) is str for value in found.values()):
        raise CallerError("invalid_params", f'"{key}" must be an object of strings.')
    return dict(found)


async def remove_server(parts: ManagingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    parts.dynamic_servers.check_removal(parts.lookup.plan.value, given["name"])
    await _agreed(parts, request, "remove_server")
    await parts.dynamic_servers.remove(parts.lookup.plan.value, given["name"])
    parts.servers_changed(given["name"])
    _record(parts, request, "remove_server", given["name"])
    _tell(parts, request, EventKind.SERVER_REMOVED, given["name"])
    return saying({"success": True, "message": f"{given['name']} is gone."})


async def reconnect_server(parts: ManagingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Try now instead of waiting for the next attempt. A connection that works is left alone."""
    name = given["name"]
    view = await parts.lookup.view(request)
    if name not in view.subset.servers or name not in parts.upstreams.value:
        raise CallerError(
            "unknown_server",
            f"There is no server {name[:80]!r} here. list_servers shows those there are.",
            data={"server": name[:80]},
        )
    try:
        await parts.upstreams.value[name].reconnect()
    except TaskgateError as problem:
        return saying({"success": False, "message": problem.message}, is_error=True)
    parts.lookup.catalogs.changed(name)
    return saying({"success": True, "message": f"{name} is connected."})


async def _agreed(parts: ManagingParts, request: Request, tool: str) -> None:
    """Rules, policy and people have their say, as about any tool; returns when the call may go on."""
    decision = decide(parts.lookup.plan.value.gates, PatternKind.TOOL, OWN_SERVER, tool)
    if type(decision) is Forward and decision.note is None:
        return
    caller = request.caller
    asked = Asked(
        caller.principal, caller.roles, caller.scope, OWN_SERVER, tool, _arguments(request), facts=caller.facts
    )
    await parts.held.permit(request, asked, decision, tool)


def _arguments(request: Request) -> bytes:
    return bytes(request.members().get("arguments", b"{}"))


def _record(parts: ManagingParts, request: Request, tool: str, server: str) -> None:
    caller, digest = request.caller, arguments_digest(_arguments(request))
    parts.record(
        AuditEntry(
            0,
            "call",
            caller.principal,
            caller.scope,
            OWN_SERVER,
            tool,
            arguments_digest=digest,
            decision="forward",
            policy_revision=parts.lookup.plan.value.gates.revision,
            reason=f"server {server}",
            outcome="ok",
            executed=Executed.YES.value,
        )
    )


def _tell(parts: ManagingParts, request: Request, kind: EventKind, server: str) -> None:
    scope = request.caller.scope
    parts.activity.tell_all(kind, server, {}, lambda of: of == scope)


MANAGING_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.ADD_SERVER,
            "Connect to another MCP server, by its address or by a program to start, for as long as the gateway runs.",
            (
                _NAME,
                Parameter("url", ArgumentKind.TEXT, "Its address."),
                Parameter("command", ArgumentKind.TEXT, "Or the program to start."),
                Parameter("args", ArgumentKind.TEXTS, "Arguments of the program."),
                Parameter("env", ArgumentKind.OBJECT, "Variables for the program."),
                Parameter("headers", ArgumentKind.OBJECT, "Headers to send to the address."),
            ),
            reads_only=False,
        ),
        add_server,
    ),
    OwnTool(
        ToolFace(OwnToolName.REMOVE_SERVER, "Remove a server that was added.", (_NAME,), reads_only=False),
        remove_server,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.RECONNECT_SERVER,
            "Try to reach a server now instead of waiting for the next attempt.",
            (_NAME,),
            reads_only=False,
        ),
        reconnect_server,
    ),
)
