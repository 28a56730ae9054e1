"""The pages of callers and tools: a table of all of them, and one page for each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.globs import Glob
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.history.counts import Dimension, Total
from taskgate.core.identity.access import Access
from taskgate.dashboard.approval_pages import shown_change
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
from taskgate.dashboard.tool_facts import RISK_LABELS, description_of, risks_of, tool_entry
from taskgate.dashboard.web import Answer, RequestProblem, with_query
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.history_reader import HistoryReader
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.pinned_definitions import PinnedDefinitions

LONGEST_DEFINITION: Final = 20_000
CHANGES_SHOWN: Final = 20
"""Differences between two accepted definitions on the page of a tool."""
_LATENCIES: Final = ("p50", "p99")
"""Columns of long ranges that are read only for the rows shown, unless the table is sorted by one of them."""
_COLUMNS: Final = (
    TableColumn("name", "Name", lambda row: row["name"]),
    TableColumn("calls", "Calls", lambda row: row["calls"], numeric=True),
    TableColumn("bad", "Ended badly", lambda row: row["bad"], numeric=True),
    TableColumn("share", "Share", lambda row: row["share"], numeric=True, optional=True),
    TableColumn("p50", "p50", lambda row: row["p50_ms"], numeric=True, optional=True),
    TableColumn("p99", "p99", lambda row: row["p99_ms"], numeric=True),
)


@dataclass(slots=True, eq=False)
class SubjectPages:
    _history: HistoryReader
    _catalogs: ListedTools
    _pins: PinnedDefinitions
    _records: Records
    _numbers: SubjectNumbers
    _rules: Rules
    _frame: Frame

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
        period, sort, now = chosen_range(visit.parameter("range")), visit.parameter("sort"), self._records.now_ms()
        since, reach, history = now - period.length_ms, reach_of(visit), self._history
        found = await history.totals(reach, dimension, since, now, now_ms=now)
        if (sort or "").removeprefix("-") in _LATENCIES:
            found = await history.with_latencies(reach, dimension, found, since, now, now_ms=now)
        query = {"range": period.name, "sort": sort}
        rows = sorted_rows([_total_row(total, dimension) for total in found], _COLUMNS, sort or "-calls")
        path = f"/{name}"
        page = paged(rows, visit.parameter("page"), path, query)
        shown = await history.with_latencies(
            reach, dimension, [row["total"] for row in page.rows], since, now, now_ms=now
        )
        return await self._frame.page(
            visit,
            name,
            "subjects.html",
            ranges=range_links(path, period, sort=sort),
            head=head_cells(_COLUMNS, sort or "-calls", path, {"range": period.name}),
            page=replace(page, rows=[_total_row(total, dimension) for total in shown]),
            api=with_query(
                "/api/v1/history/totals", {"by": dimension.value, "since": f"{period.length_ms // 3_600_000}h"}
            ),
        )

    async def _caller(self, visit: Visit) -> Answer:
        name = _named(visit, "name")
        values = await self._numbers.values(visit, Dimension.CALLER, name, caller_address(name), {"caller": name})
        return await self._frame.page(
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
        values = await self._numbers.values(
            visit, Dimension.TOOL, f"{server}/{tool}", tool_address(server, tool), filters
        )
        entry = tool_entry(self._catalogs, server, tool)
        return await self._frame.page(
            visit,
            "tools",
            "subject.html",
            title=clear(tool),
            kind="tool",
            server=server,
            tool=self._definition(entry) if entry is not None else None,
            versions=_versions(await self._pins.accepted_definitions(server, tool)),
            parent="/tools",
            parent_title="All tools",
            api=values["numbers_api"],
            command=shlex.join(["taskgate", "history", "--server", server, "--tool", tool]),
            **values,
        )

    def _definition(self, entry: CatalogEntry) -> dict[str, Any]:
        changed = self._pins.changes_of(entry.server, entry.name)
        return {
            "description": clear(description_of(entry)),
            "risks": [(risk, RISK_LABELS[risk]) for risk in risks_of(entry)],
            "digest": entry.digest,
            "text": excerpt(show_json(dict(entry.definition)), LONGEST_DEFINITION).text,
            "changed": [
                {**row, "shown": [shown_change(change) for change in row["changes"]["list"]]} for row in changed
            ],
            "rules": [rule for rule in self._rules.described() if _touches(rule, entry)],
        }


def _versions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Accepted definitions for the page: those that replaced another one, and the first of all."""
    return [
        {
            **row,
            "shown": [shown_change(change) for change in row["changes"]["list"][:CHANGES_SHOWN]],
            "left_out": row["changes"]["left_out"] + max(0, len(row["changes"]["list"]) - CHANGES_SHOWN),
        }
        if row["changes"] is not None
        else {**row, "shown": [], "left_out": 0}
        for row in (rows if len(rows) > 1 else ())
    ]


def _named(visit: Visit, parameter: str) -> str:
    found = visit.parameter(parameter)
    if found is None:
        raise RequestProblem(404, f"The address names no {parameter}.")
    return found


def _total_row(total: Total, dimension: Dimension) -> dict[str, Any]:
    summary, server, shown = total.summary, "", total.name
    address = caller_address(total.name)
    if dimension is Dimension.TOOL:
        server, _, shown = total.name.partition("/")
        address = tool_address(server, shown)
    return {
        "total": total,
        "name": total.name,
        "shown": shown,
        "server": server,
        "address": address,
        "calls": summary.calls,
        "bad": summary.bad,
        "share": summary.bad / summary.calls if summary.calls else None,
        "p50_ms": summary.p50_ms,
        "p99_ms": summary.p99_ms,
    }


def _touches(rule: Mapping[str, Any], entry: CatalogEntry) -> bool:
    """Whether a rule can match calls of a tool; which one decides depends on the call."""
    server = rule.get("server")
    return Glob.compile(rule["match"]).matches(entry.name) and (
        not server or Glob.compile(server).matches(entry.server)
    )
