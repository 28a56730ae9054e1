"""Find a page of the console by part of a name: tasks by id, servers, callers, tools and the pages of the menu.

Only what the person may open is found: names of servers, callers and tools need the permission `see`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final
from urllib.parse import quote

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.governance.approver import Approver
from taskgate.core.history.counts import Dimension
from taskgate.core.identity.access import Access
from taskgate.core.identity.identity import principal_name
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.history_api import reach_of
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.subject_numbers import caller_address, tool_address
from taskgate.dashboard.web import Answer, json_answer
from taskgate.gateway.plan import Live
from taskgate.ports.history_reader import HistoryReader
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.upstream import Upstream
from taskgate.replies.overview import FoundName

OF_EACH_KIND: Final = 6
LONGEST_TEXT: Final = 200
Menu = Callable[[Approver], list[tuple[Route, Page]]]


class FindApi(msgspec.Struct, eq=False, kw_only=True):
    history: HistoryReader
    catalogs: ListedTools
    upstreams: Live[Mapping[str, Upstream]]
    records: Records
    menu: Menu

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/find",
                Access.LOGIN,
                self._json,
                "Tasks, servers, callers, tools and pages whose name contains a text, with their addresses.",
                answer=list[FoundName],
                query={"text": "part of a name, or a task id"},
            ),
        )

    async def found(self, visit: Visit) -> list[FoundName]:
        """What matches, the kinds in a fixed order, names that begin with the text first. Without a text: the pages."""
        text = (visit.parameter("text") or "")[:LONGEST_TEXT]
        user = visit.user
        pages = ((page.title, "", route.path) for route, page in self.menu(user))
        if not text:
            return _rows("page", "", pages)
        rows = await self._task(visit, text)
        may_see_names = user.may(Permission.SEE)
        if may_see_names:
            rows += _rows("server", text, self._servers())
            rows += _rows("caller", text, await self._callers(visit, text))
            rows += _rows("tool", text, self._tools())
        return rows + _rows("page", text, pages)

    async def _task(self, visit: Visit, text: str) -> list[FoundName]:
        task = await self.records.task(visit.user, text)
        if task is None:
            row = await self.history.row(reach_of(visit), text)
            return [_row("task", row.id, f"{row.tool}, {row.outcome.value}", f"/tasks/{row.id}")] if row else []
        return [_row("task", task.id, f"{task.wire_name}, {task.state.value}", f"/tasks/{task.id}")]

    def _servers(self) -> Iterator[tuple[str, str, str]]:
        for name, upstream in self.upstreams.value.items():
            yield name, upstream.status().state.value, f"/servers/{quote(name, safe='')}"

    async def _callers(self, visit: Visit, text: str) -> list[tuple[str, str, str]]:
        """Callers of recent requests whose name contains the text, and of history whose name begins with it, after the
        person's tenant or with it."""
        reach, names = reach_of(visit), {span.caller for span in self.records.spans(visit.user) if span.caller}
        for begins in {text, principal_name(reach.tenant or "", text)}:
            names.update(await self.history.names(reach, Dimension.CALLER, begins, OF_EACH_KIND))
        return [(name, "", caller_address(name)) for name in sorted(names)]

    def _tools(self) -> Iterator[tuple[str, str, str]]:
        for server, offer in self.catalogs.offers().items():
            for entry in offer.entries.get(EntryKind.TOOL, ()):
                yield entry.name, f"on {server}", tool_address(server, entry.name)

    async def _json(self, visit: Visit) -> Answer:
        return json_answer(await self.found(visit))


def _rows(kind: str, text: str, named: Iterable[tuple[str, str, str]]) -> list[FoundName]:
    """Rows of the names that contain the text: at most a few of each kind, those that begin with it first."""
    query = text.casefold()
    matching = [(name, detail, where) for name, detail, where in named if query in name.casefold()]
    matching.sort(key=lambda found: bool(query) and not found[0].casefold().startswith(query))
    maximum = OF_EACH_KIND if query else None
    return [_row(kind, *found) for found in islice(matching, maximum)]


def _row(kind: str, name: str, detail: str, address: str) -> FoundName:
    return FoundName(kind=kind, name=name, detail=detail, address=address)
