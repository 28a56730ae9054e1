"""The tool behind a name, if this caller may know of it. Hidden, denied and unknown names get one and the same answer."""

from __future__ import annotations

from taskgate.core.errors import CallerError
from taskgate.gateway.context import Context
from taskgate.gateway.request import Request
from taskgate.gateway.views import ToolRef, View


async def find_tool(context: Context, request: Request, name: str) -> ToolRef:
    """The tool behind a name, if this caller may know of it."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
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
