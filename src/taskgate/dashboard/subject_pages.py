"""The pages of callers and tools: a table of all of them, and one page for each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.history.counts import Dimension, Total
from taskgate.core.identity.access import Access
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import reach_of
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.paging import paged
from taskgate.dashboard.ranges import chosen_range, range_links
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.rules import Rules
from taskgate.dashboard.sorting import TableColumn, head_cells, sorted_rows
from taskgate.dashboard.subject_numbers import SubjectNumbers, caller_address, tool_address
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.tool_facts import RISK_LABELS, description_of, risk_in_rules, risks_of, tool_entry
from taskgate.dashboard.web import Answer, RequestProblem, with_query
from taskgate.ports.history_reader import HistoryReader
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.replies.definitions import AcceptedDefinition
from taskgate.replies.differences import ValueChange, ValueChanges

LONGEST_DEFINITION: Final = 20_000
CHANGES_SHOWN: Final = 20
"""Differences between two accepted definitions on the page of a tool."""
_LATENCIES: Final = ("p50", "p99")
"""Columns of long ranges that are read only for the rows shown, unless the table is sorted by one of them."""
_COLUMNS: Final[tuple[TableColumn[Total], ...]] = (
    TableColumn("name", "Name", lambda row: row.name),
    TableColumn("calls", "Calls", lambda row: row.summary.calls, numeric=True),
    TableColumn("bad", "Ended badly", lambda row: row.summary.bad, numeric=True),
    TableColumn("share", "Share", lambda row: row.summary.bad_share, numeric=True, optional=True),
    TableColumn("p50", "p50", lambda row: row.summary.p50_ms, numeric=True, optional=True),
    TableColumn("p99", "p99", lambda row: row.summary.p99_ms, numeric=True),
)


class SubjectPages(msgspec.Struct, eq=False, kw_only=True):
    history: HistoryReader
    catalogs: ListedTools
    pins: PinnedDefinitions
    records: Records
    numbers: SubjectNumbers
    rules: Rules
    frame: Frame

    def routes(self) -> tuple[Route, ...]:
        see, totals = Access.SEE, "/api/v1/history/totals"
        return (
            page_route("/callers", see, self._callers, page=Page("callers", "Callers", totals, menu=6)),
            page_route("/caller", see, self._caller),
            page_route("/tools", see, self._tools, page=Page("tools", "Tools", totals, menu=5)),
            page_route("/tool", see, self._tool),
        )

    async def _callers(self, visit: Visit) -> Answer:
        return await self._table(visit, "callers", Dimension.CALLER)

    async def _tools(self, visit: Visit) -> Answer:
        return await self._table(visit, "tools", Dimension.TOOL)

    async def _table(self, visit: Visit, name: str, dimension: Dimension) -> Answer:
        period, sort, now = chosen_range(visit.parameter("range")), visit.parameter("sort"), self.records.now_ms()
        since, reach, history = now - period.length_ms, reach_of(visit), self.history
        found = await history.totals(reach, dimension, since, now, now_ms=now)
        if (sort or "").removeprefix("-") in _LATENCIES:
            found = await history.with_latencies(reach, dimension, found, since, now, now_ms=now)
        query = {"range": period.name, "sort": sort}
        rows = sorted_rows(found, _COLUMNS, sort or "-calls")
        path = f"/{name}"
        page = paged(rows, visit.parameter("page"), path, query)
        shown = await history.with_latencies(reach, dimension, page.rows, since, now, now_ms=now)
        return await self.frame.page(
            visit,
            name,
            "subjects.html",
            ranges=range_links(path, period, sort=sort),
            head=head_cells(_COLUMNS, sort or "-calls", path, {"range": period.name}),
            page=page,
            rows=[_subject(total, dimension) for total in shown],
            api=with_query(
                "/api/v1/history/totals", {"by": dimension.value, "since": f"{period.length_ms // 3_600_000}h"}
            ),
        )

    async def _caller(self, visit: Visit) -> Answer:
        name = _named(visit, "name")
        values = await self.numbers.values(visit, Dimension.CALLER, name, caller_address(name), {"caller": name})
        return await self.frame.page(
            visit,
            "callers",
            "subject.html",
            title=clear(name),
            kind="caller",
            server=None,
            tool=None,
            versions=[],
            parent="/callers",
            parent_title="All callers",
            api=values["numbers_api"],
            command=shlex.join(["taskgate", "history", "--caller", name]),
            **values,
        )

    async def _tool(self, visit: Visit) -> Answer:
        server, tool = _named(visit, "server"), _named(visit, "tool")
        filters: dict[str, str | None] = {"server": server, "tool": tool}
        values = await self.numbers.values(
            visit, Dimension.TOOL, f"{server}/{tool}", tool_address(server, tool), filters
        )
        entry = tool_entry(self.catalogs, server, tool)
        return await self.frame.page(
            visit,
            "tools",
            "subject.html",
            title=clear(tool),
            kind="tool",
            server=server,
            tool=self._definition(entry) if entry is not None else None,
            versions=_versions(await self.pins.accepted_definitions(server, tool)),
            parent="/tools",
            parent_title="All tools",
            api=values["numbers_api"],
            command=shlex.join(["taskgate", "history", "--server", server, "--tool", tool]),
            **values,
        )

    def _definition(self, entry: CatalogEntry) -> dict[str, Any]:
        return {
            "description": clear(description_of(entry)),
            "risks": [(risk, RISK_LABELS[risk]) for risk in risks_of(entry)],
            "digest": entry.digest,
            "text": excerpt(show_json(dict(entry.definition)), LONGEST_DEFINITION).text,
            "changed": self.pins.changes_of(entry.server, entry.name),
            "risk": risk_in_rules(self.rules.plan, entry),
            "decisions": self.rules.possible(entry.server, entry.name),
        }


def _versions(rows: Sequence[AcceptedDefinition]) -> list[tuple[AcceptedDefinition, Sequence[ValueChange], int]]:
    """Accepted definitions for the page: those that replaced another one, and the first of all. Each with the differences from the
    one before that are shown, and the number of the others."""
    if len(rows) < 2:
        return []
    listed = [(row, row.changes if row.changes is not None else ValueChanges(left_out=0, list=())) for row in rows]
    return [
        (row, found.list[:CHANGES_SHOWN], found.left_out + max(0, len(found.list) - CHANGES_SHOWN))
        for row, found in listed
    ]


def _named(visit: Visit, parameter: str) -> str:
    found = visit.parameter(parameter)
    if found is None:
        raise RequestProblem(404, f"The address names no {parameter}.")
    return found


class _Subject(NamedTuple):
    """A row of the table: the numbers of a caller or tool, with its name and address."""

    total: Total
    shown: str
    server: str
    address: str


def _subject(total: Total, dimension: Dimension) -> _Subject:
    if dimension is Dimension.TOOL:
        server, _, tool = total.name.partition("/")
        return _Subject(total, tool, server, tool_address(server, tool))
    return _Subject(total, total.name, "", caller_address(total.name))
