"""The pages of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from taskgate.core.history.counts import Dimension
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.paging import paged
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.servers_api import ACTIONS, Servers
from taskgate.dashboard.sorting import TableColumn, head_cells, sorted_rows
from taskgate.dashboard.subject_numbers import SubjectNumbers
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import Answer, redirect, with_query
from taskgate.replies.servers import ServerRow

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


TOOLS_SHOWN: Final = 100
_RANKS: Final = {"degraded": 0, "reconnecting": 0, "stopped": 1, "connecting": 2}
_COLUMNS: Final[tuple[TableColumn[ServerRow], ...]] = (
    TableColumn("name", "Server", lambda row: row.name),
    TableColumn("state", "State", lambda row: (_rank(row), row.name)),
    TableColumn("calls", "Recent calls", lambda row: row.calls, numeric=True, optional=True),
    TableColumn("errors", "Errors", lambda row: row.errors, numeric=True, optional=True),
    TableColumn("p50", "p50", lambda row: row.p50_ms, numeric=True, optional=True),
    TableColumn("p99", "p99", lambda row: row.p99_ms, numeric=True, optional=True),
    TableColumn("tools", "Tools", lambda row: row.tool_count, numeric=True, optional=True),
    TableColumn("error", "Last error", None, optional=True),
)


def _rank(row: ServerRow) -> int:
    """Lower for what needs attention first."""
    return 3 if row.drained else _RANKS.get(row.state, 4)


def _shown_state(row: ServerRow) -> tuple[str, str]:
    """The word for the state, and the class of its colour."""
    if row.drained:
        return "drained", "drained"
    style = {"degraded": "broken", "reconnecting": "broken", "stopped": "broken"}.get(row.state, row.state)
    return row.state, style


class ServersPages(msgspec.Struct, eq=False):
    _servers: Servers
    _numbers: SubjectNumbers
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/servers",
                Access.SEE,
                self._list,
                page=Page("servers", "Servers", "/api/v1/servers", (Topic.SERVERS,), menu=4),
            ),
            page_route("/servers/{name}", Access.SEE, self._show),
            form_route("/servers/{name}/{action}", Access.ACT, self._act),
        )

    async def _list(self, visit: Visit) -> Answer:
        """Broken servers first, unless the address names another order."""
        every = sorted(self._servers.rows(visit.user), key=lambda row: (_rank(row), row.name))
        text, sort = visit.parameter("text"), visit.parameter("sort")
        query = {"text": text, "sort": sort}
        matching = [row for row in every if text is None or text.casefold() in row.name.casefold()]
        page = paged(sorted_rows(matching, _COLUMNS, sort), visit.parameter("page"), "/servers", query)
        return await self._frame.page(
            visit,
            "servers",
            "servers.html",
            head=head_cells(_COLUMNS, sort, "/servers", {"text": text}),
            page=page,
            rows=[(row, *_shown_state(row)) for row in page.rows],
            text=text or "",
            sort=sort or "",
            total=len(every),
            broken=sum(1 for row in every if _rank(row) == 0),
        )

    async def _show(self, visit: Visit) -> Answer:
        return await self._page(visit, visit.parameter("done"), None)

    async def _page(self, visit: Visit, done: str | None, wrong: str | None) -> Answer:
        name = visit.values["name"]
        row = await self._servers.one(visit.user, name)
        if row is None:
            # Ended calls link here, also those of the gateway's own tools and of servers that were removed.
            return redirect(with_query("/tasks", {"server": name}))
        address = f"/servers/{quote(name, safe='')}"
        values = await self._numbers.values(visit, Dimension.SERVER, name, address, {"server": name})
        note = wrong or (f"{name} is {ACTIONS[done]}." if done in ACTIONS else None)
        return await self._frame.page(
            visit,
            "servers",
            "server.html",
            title=name,
            api=f"/api/v1/servers/{quote(name, safe='')}",
            command=self._frame.command_for("GET", "/api/v1/servers/{name}", name=name),
            note=note,
            note_kind="bad" if wrong else "",
            row=row,
            tools=row.tools[:TOOLS_SHOWN],
            left_out=max(0, len(row.tools) - TOOLS_SHOWN),
            may_act=visit.user.may(Permission.ACT),
            may_connect=self._servers.may_connect(visit.user),
            address=address,
            **values,
        )

    async def _act(self, visit: Visit) -> Answer:
        name, action = visit.values["name"], visit.values["action"]
        if action not in ACTIONS:
            return self._frame.message(
                visit.request, visit.user, 404, "Page not found", "Check the address, or go to the start page."
            )
        try:
            wrong = await self._servers.do(name, action, visit.user.id)
        except KeyError:
            wrong = None
        if wrong is not None:
            return await self._page(visit, None, wrong)
        return redirect(f"/servers/{quote(name, safe='')}?done={action}")
