"""Own tools that add, remove and reconnect servers at run time, where the operator allows it.

Adding and removing are governed calls: rules match them as the tools `add_server` and `remove_server` of the server `taskgate`,
they may need approval, and they are audited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.facts.table import NO_SCRIPT
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.pipeline import decide
from taskgate.core.patterns import PatternKind
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.dynamic_servers import DynamicServers, NewServer
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governance.held_readings import HeldReadings
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, text_reply
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest
from taskgate.ports.upstream import Upstream

_NAME: Final = Parameter("name", ArgumentKind.TEXT, "The name of the server.", required=True)
NEEDS_PERMISSION: Final = frozenset({"add_server", "remove_server"})


class ManagingParts(msgspec.Struct, frozen=True, kw_only=True):
    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    dynamic_servers: DynamicServers
    servers_changed: Callable[[str], None]
    """Called with the name of an added or removed server; applies the change."""
    held: HeldReadings
    record: Callable[[AuditEntry], None]
    activity: Activity


async def add_server(parts: ManagingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    new = NewServer(
        name=given["name"],
        url=given.get("url"),
        command=given.get("command"),
        args=tuple(given.get("args", ())),
        env=_texts(given, "env"),
        headers=_texts(given, "headers"),
    )
    parts.dynamic_servers.check(parts.lookup.plan.value, new)
    await _agreed(parts, request, "add_server")
    # The name, or the last free slot, may have been taken while the approval was pending.
    parts.dynamic_servers.check(parts.lookup.plan.value, new)
    await parts.dynamic_servers.add(parts.lookup.plan.value, request.caller.scope, new)
    parts.servers_changed(new.name)
    _record(parts, request, "add_server", new.name)
    _publish(parts, request, EventKind.SERVER_ADDED, new.name)
    return text_reply({"success": True, "message": f"{new.name} is connected. list_tools shows its tools."})


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
    _publish(parts, request, EventKind.SERVER_REMOVED, given["name"])
    return text_reply({"success": True, "message": f"{given['name']} is gone."})


async def reconnect_server(parts: ManagingParts, request: Request, given: dict[str, Any]) -> ToolReply:
    """Reconnect now instead of at the next attempt. A working connection is kept."""
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
        return text_reply({"success": False, "message": problem.message}, is_error=True)
    parts.lookup.catalogs.changed(name)
    return text_reply({"success": True, "message": f"{name} is connected."})


async def _agreed(parts: ManagingParts, request: Request, tool: str) -> None:
    """Pass the call through rules, policy and approval like any tool. Return when it may continue."""
    decision = decide(parts.lookup.plan.value.gates.of_caller(NO_SCRIPT), PatternKind.TOOL, OWN_SERVER, tool)
    if type(decision) is Forward and decision.note is None:
        return
    caller = request.caller
    call = GatedCall(
        principal=caller.principal,
        roles=caller.roles,
        scope=caller.scope,
        server=OWN_SERVER,
        name=tool,
        arguments=_arguments(request),
        facts=caller.facts,
    )
    await parts.held.permit(request, call, decision, tool)


def _arguments(request: Request) -> bytes:
    return bytes(request.members().get("arguments", b"{}"))


def _record(parts: ManagingParts, request: Request, tool: str, server: str) -> None:
    caller, digest = request.caller, arguments_digest(_arguments(request))
    parts.record(
        AuditEntry(
            at_ms=0,
            event="call",
            principal=caller.principal,
            scope=caller.scope,
            server=OWN_SERVER,
            name=tool,
            arguments_digest=digest,
            decision="forward",
            policy_revision=parts.lookup.plan.value.gates.revision,
            reason=f"server {server}",
            outcome="ok",
            executed=Executed.YES.value,
        )
    )


def _publish(parts: ManagingParts, request: Request, kind: EventKind, server: str) -> None:
    scope = request.caller.scope
    parts.activity.publish_to_scopes(kind, server, {}, lambda of: of == scope)


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
