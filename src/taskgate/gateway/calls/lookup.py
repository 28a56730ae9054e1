"""Find the server of a tool, prompt or resource within the caller's view.

Hidden, denied and unknown names get the same error. A name that is not in the lists may be newer than they are: before it is
refused, the servers it may belong to are listed again.
"""

from __future__ import annotations

import msgspec

from taskgate.core.catalog.names import SEPARATOR
from taskgate.core.errors import CallerError
from taskgate.core.text.similar_names import similar_names
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import ToolRef, View, Views
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.ports.call_failure import NotListed


class Lookup(msgspec.Struct, frozen=True):
    """The views that the current plan makes of the servers' lists."""

    plan: Live[Plan]
    catalogs: Catalogs
    views: Views

    async def view(self, request: Request, *, listing: bool = False) -> View:
        return await self.views.view(
            self.plan.value, request.caller, request.narrowing, listing=listing, from_script=bool(request.script)
        )

    async def view_of_scripts(self, request: Request) -> View:
        """The view of the scripts of this caller."""
        return await self.views.view(self.plan.value, request.caller, request.narrowing, listing=True, from_script=True)

    def view_of(self, request: Request) -> View:
        """The view of a request. May be called only after the view was built."""
        view = self.views.current(self.plan.value, request.caller, request.narrowing, from_script=bool(request.script))
        assert view is not None
        return view

    async def tool(self, request: Request, name: str) -> ToolRef:
        """The tool with this name, if the caller may know it. Raises CallerError."""
        view = await self.view(request)
        tool = view.tool(name)
        if tool is None or tool.entry is None:
            tool = await self._find_after_listing(request, view, name)
        if tool is None:
            raise unknown_tool(name, tuple(found.wire for found in view.app_tools.get(name, ())))
        return tool

    async def _find_after_listing(self, request: Request, view: View, name: str) -> ToolRef | None:
        """List the servers again that the name may belong to: it may be new, or its server was unavailable."""
        server, found = view.server_named_in(name), view.tool(name)
        for _ in range(2):
            # Twice, because a list that was being fetched at that moment may be older than the name.
            fresh = await self.find_name(request, view, name)
            if fresh is None:
                break
            found = fresh.tool(name)
            if found is not None and found.entry is not None:
                break
        if found is None and server is not None and self.catalogs.offer(server) is None:
            raise NotListed(server, name.partition(SEPARATOR)[2], self.catalogs.failure(server))
        return found

    async def find_name(self, request: Request, view: View, name: str) -> View | None:
        """The view after the servers that may have the name were listed again; None if there is no reason to."""
        return await self._list_again(request, view.may_have(name))

    async def find_uri(self, request: Request, view: View) -> View | None:
        """The same for a URI, which names no server: all servers with resources, and those that were not listed yet."""
        able = [
            server
            for server in view.subset.servers
            if self.catalogs.offer(server) is None or "resources" in view.capabilities.get(server, {})
        ]
        return await self._list_again(request, able)

    async def _list_again(self, request: Request, servers: tuple[str, ...] | list[str]) -> View | None:
        return await self.view(request) if await self.catalogs.refetch(servers) else None

    async def serving(self, request: Request, server: str) -> View:
        """The view, if the server is in it. Raises CallerError for a server outside the scope, as for an unknown one."""
        view = await self.view(request)
        if server not in view.subset.servers:
            near = similar_names(server, view.subset.servers)
            hint = f" Did you mean {near[0]!r}?" if near else " list_servers returns the available servers."
            raise CallerError(
                "unknown_server", f"There is no server {server[:80]!r} here.{hint}", data={"server": server[:80]}
            )
        if self.catalogs.offer(server) is None:
            await self.catalogs.ready([server])
            problem = self.catalogs.failure(server)
            if self.catalogs.offer(server) is None and problem is not None:
                raise NotListed(server, "", problem)
            view = await self.view(request)
        return view


def unknown_tool(name: str, candidates: tuple[str, ...] = ()) -> CallerError:
    """The error for an unknown tool. `candidates`: the full names, if several servers have a tool with this name."""
    if candidates:
        text = f"Several servers have a tool {name[:120]!r}. Call one of {', '.join(candidates[:10])}."
        return CallerError("unknown_tool", text, data={"tool": name[:120], "candidates": list(candidates[:10])})
    return CallerError(
        "unknown_tool",
        f"There is no tool {name[:120]!r} here. tools/list returns the available tools.",
        data={"tool": name[:120]},
    )
