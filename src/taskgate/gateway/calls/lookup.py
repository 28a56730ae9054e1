"""Find the server of a tool, prompt or resource within the caller's view.

Hidden, denied and unknown names get the same error. A name that is not in the lists may be newer than they are: before it is
refused, the servers it may belong to are listed again.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import ToolRef, View, Views
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a caller may know of: the views that the plan in force makes of what servers list."""

    plan: Live[Plan]
    catalogs: Catalogs
    views: Views

    async def view(self, request: Request, *, listing: bool = False) -> View:
        return await self.views.view(self.plan.value, request.caller, request.narrowing, listing=listing)

    def view_of(self, request: Request) -> View:
        """The view a request was found in; only to be asked for after the view was built."""
        view = self.views.current(self.plan.value, request.caller, request.narrowing)
        assert view is not None
        return view

    async def tool(self, request: Request, name: str) -> ToolRef:
        """The tool behind a name, if this caller may know of it."""
        view = await self.view(request)
        tool = view.tool(name)
        if tool is None or tool.entry is None:
            tool = await self._listed_late(request, view, name)
        if tool is None:
            raise unknown_tool(name, tuple(found.wire for found in view.app_tools.get(name, ())))
        return tool

    async def _listed_late(self, request: Request, view: View, name: str) -> ToolRef | None:
        """The name may be newer than the lists, or its server was away: that is a reason to ask again those that it may belong
        to."""
        server, found = view.server_named_in(name), view.tool(name)
        for _ in range(2):
            # Twice, because lists that were being fetched when the name came may be older than the name.
            fresh = await self.look_for_name(request, view, name)
            if fresh is None:
                break
            found = fresh.tool(name)
            if found is not None and found.entry is not None:
                break
        if found is None and server is not None and self.catalogs.offer(server) is None:
            raise self.catalogs.failure(server) or _not_listed(server)
        return found

    async def look_for_name(self, request: Request, view: View, name: str) -> View | None:
        """A view that may know the name now, or None where there is no reason to hope for one."""
        return await self._asked_again(request, view.may_have(name))

    async def look_for_uri(self, request: Request, view: View) -> View | None:
        """The same for a URI, which names no server: those may have it that have resources, or have not said what they have."""
        able = [
            server
            for server in view.subset.servers
            if self.catalogs.offer(server) is None or "resources" in view.capabilities.get(server, {})
        ]
        return await self._asked_again(request, able)

    async def _asked_again(self, request: Request, servers: tuple[str, ...] | list[str]) -> View | None:
        return await self.view(request) if await self.catalogs.look_again(servers) else None

    async def serving(self, request: Request, server: str) -> View:
        """The view of this caller, if the server is in it; a server outside its scope looks like none."""
        view = await self.view(request)
        if server not in view.subset.servers:
            near = difflib.get_close_matches(server, view.subset.servers, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " list_servers shows those that there are."
            raise CallerError(
                "unknown_server", f"There is no server {server[:80]!r} here.{hint}", data={"server": server[:80]}
            )
        if self.catalogs.offer(server) is None:
            await self.catalogs.ready([server])
            problem = self.catalogs.failure(server)
            if self.catalogs.offer(server) is None and problem is not None:
                raise problem
            view = await self.view(request)
        return view


def _not_listed(server: str) -> UpstreamError:
    return UpstreamError(
        "upstream_unreachable",
        f"The server {server} has not said yet what it offers. The call was not executed; try again later.",
        executed=Executed.NO,
    )


def unknown_tool(name: str, several: tuple[str, ...] = ()) -> CallerError:
    """`several`: what the tools are called that the name may mean, where it means more than one."""
    if several:
        text = f"Several servers have a tool {name[:120]!r}. Call one of {', '.join(several[:10])}."
        return CallerError("unknown_tool", text, data={"tool": name[:120], "candidates": list(several[:10])})
    return CallerError(
        "unknown_tool",
        f"There is no tool {name[:120]!r} here. tools/list shows what can be called.",
        data={"tool": name[:120]},
    )
