"""A caller asks for a tool to be run.

Find the tool in what this caller sees, let the gates decide, and carry the call to its server. A name that is hidden, denied or
unknown gets one and the same answer.
"""

from __future__ import annotations

from typing import Any

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import Denied, Forward
from taskgate.gateway.context import Context
from taskgate.gateway.relay import Errand
from taskgate.gateway.request import Request
from taskgate.gateway.views import ToolRef, View
from taskgate.ports.upstream import Upstream


async def call_tool(context: Context, request: Request) -> bytes:
    name = request.params.get("name")
    if type(name) is not str:
        raise CallerError("invalid_params", 'tools/call needs "name", a string, and "arguments", an object.')
    arguments = request.params.get("arguments")
    if arguments is not None and type(arguments) is not dict:
        raise CallerError("invalid_params", '"arguments" must be an object.')
    tool = await find_tool(context, request, name)
    refuse_denied(tool.decision, name)
    return await context.relay.carry(request, _errand(context, request, tool, arguments))


async def find_tool(context: Context, request: Request, name: str) -> ToolRef:
    """The tool behind a name, if this caller may know of it."""
    plan = context.plan
    view = context.views.current(plan, request.caller, request.narrowing)
    tool = view.tools.get(name) if view is not None else None
    if tool is None:
        view = await context.views.view(plan, request.caller, request.narrowing)
        tool = view.tool(name) or await _listed_late(context, request, view, name)
    if tool is None:
        raise unknown_tool(name)
    return tool


async def _listed_late(context: Context, request: Request, view: View, name: str) -> ToolRef | None:
    """The server was away when the lists were fetched: a call to it by name is a reason to try again."""
    server = view.server_named_in(name)
    problem = context.catalogs.failure(server) if server is not None else None
    if server is None or problem is None:
        return None
    await context.catalogs.ready([server])
    fresh = await context.views.view(context.plan, request.caller, request.narrowing)
    found = fresh.tool(name)
    if found is None and context.catalogs.offer(server) is None:
        raise problem
    return found


def unknown_tool(name: str) -> CallerError:
    return CallerError(
        "unknown_tool",
        f"There is no tool {name[:120]!r} here. tools/list shows what can be called.",
        data={"tool": name[:120]},
    )


def refuse_denied(decision: Any, name: str) -> None:
    if isinstance(decision, Denied):
        if decision.error_type == "unknown_tool":
            raise unknown_tool(name)
        raise CallerError(
            decision.error_type,
            f"The call to {name[:120]!r} is not permitted here. It was not executed.",
            gate=decision.gate.value,
            data={"tool": name[:120]},
        )
    if not isinstance(decision, Forward):
        raise CallerError("policy_denied", f"The call to {name[:120]!r} needs an approval. It was not executed.")


def _errand(context: Context, request: Request, tool: ToolRef, arguments: Any) -> Errand:
    params = request.members()
    if tool.name != tool.wire or bytes(params["name"]) != b'"' + tool.name.encode() + b'"':
        params["name"] = wire.raw(tool.name)
    upstream: Upstream = context.upstreams[tool.server]
    return Errand(upstream, "tools/call", params, tool.name, context.plan.timeout_of(tool.server))
