"""What a caller names may be newer than the lists: before it is refused, those servers are asked again that it may belong to."""

from __future__ import annotations

from taskgate.gateway.calls.context import Context
from taskgate.gateway.catalog.views import View
from taskgate.gateway.requests.request import Request


async def look_for_name(context: Context, request: Request, view: View, name: str) -> View | None:
    """A view that may know the name now, or None where there is no reason to hope for one."""
    return await _asked_again(context, request, view.may_have(name))


async def look_for_uri(context: Context, request: Request, view: View) -> View | None:
    """The same for a URI, which names no server: those may have it that have resources, or have not said what they have."""
    able = [
        server
        for server in view.subset.servers
        if context.catalogs.offer(server) is None or "resources" in view.capabilities.get(server, {})
    ]
    return await _asked_again(context, request, able)


async def _asked_again(context: Context, request: Request, servers: tuple[str, ...] | list[str]) -> View | None:
    if not await context.catalogs.look_again(servers):
        return None
    return await context.views.view(context.plan, request.caller, request.narrowing)
