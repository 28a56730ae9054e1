"""The pages of scopes: the list, and the tools of one scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from taskgate.core.identity.access import Access
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import Answer, RequestProblem, redirect, with_query

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

from taskgate.dashboard.scopes_api import ScopesApi

TOOLS_SHOWN: Final = 200


class ScopePages(msgspec.Struct, eq=False):
    _scopes: ScopesApi
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/scopes",
                Access.ACT,
                self._list,
                page=Page("scopes", "Scopes", "/api/v1/scopes", (Topic.SCOPES,), menu=7),
            ),
            page_route("/scopes/{name}", Access.ACT, self._show),
        )

    async def _list(self, visit: Visit) -> Answer:
        rows = await self._scopes.listed(visit.user)
        return await self._frame.page(visit, "scopes", "scopes.html", rows=rows)

    async def _show(self, visit: Visit) -> Answer:
        name = visit.values["name"]
        try:
            row = await self._scopes.tools(visit.user, name)
        except RequestProblem:
            # Ended calls link here, also those in scopes that were removed or have ended.
            return redirect(with_query("/tasks", {"scope": name}))
        return await self._frame.page(
            visit,
            "scopes",
            "scope.html",
            title=name,
            api=f"/api/v1/scopes/{quote(name, safe='')}/tools",
            command=self._frame.command_for("GET", "/api/v1/scopes/{name}/tools", name=name),
            row=row,
            tools=row.tools[:TOOLS_SHOWN],
            left_out=row.left_out[:TOOLS_SHOWN],
        )
