"""The tool behind a name, if this caller may know of it. Hidden, denied and unknown names get one and the same answer."""

from __future__ import annotations

from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.gateway.calls.context import Context
from taskgate.gateway.calls.look_again import look_for_name
from taskgate.gateway.catalog.views import ToolRef, View
from taskgate.gateway.requests.request import Request


async def find_tool(context: Context, request: Request, name: str) -> ToolRef:
    """The tool behind a name, if this caller may know of it."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    tool = view.tool(name)
    if tool is None or tool.entry is None:
        tool = await _listed_late(context, request, view, name)
    if tool is None:
        raise unknown_tool(name)
    return tool


async def _listed_late(context: Context, request: Request, view: View, name: str) -> ToolRef | None:
    """The name may be newer than the lists, or its server was away: that is a reason to ask again those that it may belong to."""
    server = view.server_named_in(name)
    found = (await look_for_name(context, request, view, name) or view).tool(name)
    if found is None and server is not None and context.catalogs.offer(server) is None:
        raise context.catalogs.failure(server) or _not_listed(server)
    return found


def _not_listed(server: str) -> UpstreamError:
    return UpstreamError(
        "upstream_unreachable",
        f"The server {server} has not said yet what it offers. The call was not executed; try again later.",
        executed=Executed.NO,
    )


def unknown_tool(name: str) -> CallerError:
    return CallerError(
        "unknown_tool",
        f"There is no tool {name[:120]!r} here. tools/list shows what can be called.",
        data={"tool": name[:120]},
    )
