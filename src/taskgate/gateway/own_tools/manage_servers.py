"""Adding, removing and reconnecting servers while the gateway runs, where the operator allows it.

Adding and removing are governed calls: rules see them as the tools `add_server` and `remove_server` of the server `taskgate`,
people may have to agree, and the audit log has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core.audit import AuditEntry
from taskgate.core.catalog.own_tools import Kind, Parameter, ToolFace
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.pipeline import decide
from taskgate.core.patterns import PatternKind
from taskgate.gateway.governance.evaluate import Asked
from taskgate.gateway.governance.recheck import OWN_SERVER
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, saying
from taskgate.gateway.plan.dynamic_servers import NewServer
from taskgate.gateway.requests.caller_keys import arguments_digest
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

_NAME: Final = Parameter("name", Kind.TEXT, "The name of the server.", required=True)
NEEDS_PERMISSION: Final = frozenset({"add_server", "remove_server"})


async def add_server(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    new = NewServer(
        given["name"],
        given.get("url"),
        given.get("command"),
        tuple(given.get("args", ())),
        _texts(given, "env"),
        _texts(given, "headers"),
    )
    context.dynamic_servers.check(context.plan, new)
    await _agreed(context, request, "add_server")
    # Somebody may have taken the name, or the last place, while people were asked.
    context.dynamic_servers.check(context.plan, new)
    await context.dynamic_servers.add(context.plan, request.caller.scope, new)
    context.dynamic_servers_changed(new.name)
    _record(context, request, "add_server", new.name)
    _tell(context, request, EventKind.SERVER_ADDED, new.name)
    return saying({"success": True, "message": f"{new.name} is connected. list_tools shows its tools."})


def _texts(given: dict[str, Any], key: str) -> dict[str, str]:
    found = given.get(key, {})
    if not all(type(value) is str for value in found.values()):
        raise CallerError("invalid_params", f'"{key}" must be an object of strings.')
    return dict(found)


async def remove_server(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    context.dynamic_servers.check_removal(context.plan, given["name"])
    await _agreed(context, request, "remove_server")
    await context.dynamic_servers.remove(context.plan, given["name"])
    context.dynamic_servers_changed(given["name"])
    _record(context, request, "remove_server", given["name"])
    _tell(context, request, EventKind.SERVER_REMOVED, given["name"])
    return saying({"success": True, "message": f"{given['name']} is gone."})


async def reconnect_server(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    """Try now instead of waiting for the next attempt. A connection that works is left alone."""
    name = given["name"]
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    if name not in view.subset.servers or name not in context.upstreams:
        raise CallerError(
            "unknown_server", f"There is no server {name[:80]!r} here. list_servers shows those there are."
        )
    try:
        await context.upstreams[name].reconnect()
    except TaskgateError as problem:
        return saying({"success": False, "message": problem.message}, is_error=True)
    context.catalogs.changed(name)
    return saying({"success": True, "message": f"{name} is connected."})


async def _agreed(context: Context, request: Request, tool: str) -> None:
    """Rules, policy and people have their say, as about any tool; returns when the call may go on."""
    decision = decide(context.plan.gates, PatternKind.TOOL, OWN_SERVER, tool)
    if type(decision) is Forward and decision.note is None:
        return
    caller = request.caller
    asked = Asked(
        caller.principal, caller.roles, caller.scope, OWN_SERVER, tool, _arguments(request), facts=caller.facts
    )
    await context.held_readings.permit(request, asked, decision, tool)


def _arguments(request: Request) -> bytes:
    return bytes(request.members().get("arguments", b"{}"))


def _record(context: Context, request: Request, tool: str, server: str) -> None:
    caller, digest = request.caller, arguments_digest(_arguments(request))
    context.tasks.store.record(
        AuditEntry(
            0,
            "call",
            caller.principal,
            caller.scope,
            OWN_SERVER,
            tool,
            arguments_digest=digest,
            decision="forward",
            policy_revision=context.plan.gates.revision,
            reason=f"server {server}",
            outcome="ok",
            executed=Executed.YES.value,
        )
    )


def _tell(context: Context, request: Request, kind: EventKind, server: str) -> None:
    scope = request.caller.scope
    context.activity.tell_all(kind, server, {}, lambda of: of == scope)


TOOLS: Final = (
    OwnTool(
        ToolFace(
            "add_server",
            "Connect to another MCP server, by its address or by a program to start, for as long as the gateway runs.",
            (
                _NAME,
                Parameter("url", Kind.TEXT, "Its address."),
                Parameter("command", Kind.TEXT, "Or the program to start."),
                Parameter("args", Kind.TEXTS, "Arguments of the program."),
                Parameter("env", Kind.OBJECT, "Variables for the program."),
                Parameter("headers", Kind.OBJECT, "Headers to send to the address."),
            ),
            reads_only=False,
        ),
        add_server,
    ),
    OwnTool(ToolFace("remove_server", "Remove a server that was added.", (_NAME,), reads_only=False), remove_server),
    OwnTool(
        ToolFace(
            "reconnect_server",
            "Try to reach a server now instead of waiting for the next attempt.",
            (_NAME,),
            reads_only=False,
        ),
        reconnect_server,
    ),
)
