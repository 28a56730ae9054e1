"""History as JSON, CSV and JSON lines: search, single rows, export, charts, totals and suggestions.

The permission `see` shows calls of all callers of the person's tenant; without it, a person sees their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskgate import clock
from taskgate.core.errors import CallerError
from taskgate.core.history.counts import MAX_BUCKETS, Dimension, Summary
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import BAD_OUTCOMES, CallOutcome, HistoryRow, RowKind, as_key
from taskgate.core.identity.access import Access
from taskgate.core.timestamps import iso
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.task_filters import point_in_time
from taskgate.dashboard.web import Answer, RequestProblem, json_answer, limit_of
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.history_reader import HistoryReader, Reach
from taskgate.replies.fields import extended
from taskgate.replies.history import (
    CallSummary,
    EndedCalls,
    HistoryDetail,
    HistoryEntry,
    HistorySeries,
    LatencyStep,
    NamedSummary,
    SeriesBucket,
    history_entry,
)

EXPORTED: Final = 5_000
"""Maximum number of rows of one export; the header `x-next-after` leads to the next one."""
_SLICE: Final = 500
SUGGESTED: Final = 100
COMPARED: Final = 200
"""The newest calls of a tool among which equal ones are searched."""
SAME_SHOWN: Final = 10
DEFAULT_RANGE_MS: Final = 86_400_000
LONGEST_RANGE_MS: Final = 3660 * 86_400_000
DEFAULT_BUCKETS: Final = 60
FILTERS: Final = {
    "outcome": "one or more outcomes, separated by commas; `bad` is all but ok",
    "kind": "task, call, denial or gap",
    "server": "name of the server",
    "tool": "name of the tool at its server",
    "caller": "principal that made the call",
    "tenant": "tenant of the caller",
    "scope": "scope of the call",
    "client": "name of the client",
    "error": "error type",
    "since": "ended since: 30m, 24h, 7d, or a date or time",
    "until": "ended before",
    "text": "beginnings of words in names, error type and rule, or an id",
}
_PAGE: Final = {"after": "start of the next page, from `next`", "limit": "maximum number of rows, up to 1000"}
_RANGE: Final = {
    "since": "start of the range: 30m, 24h, 7d, or a date or time; default 24h",
    "until": "end of the range; default now",
}
_BY: Final = "server, tool or caller"


class HistoryApi(msgspec.Struct, eq=False):
    _reading: HistoryReader
    _now_ms: Callable[[], int]
    _plan: Live[Plan]

    def routes(self) -> tuple[Route, ...]:
        login = Access.LOGIN
        return (
            get(
                "/history",
                login,
                self._list,
                "Calls that have ended, newest first: those of all callers, or yours.",
                query=FILTERS | _PAGE,
                command="taskgate history",
                answer=EndedCalls,
            ),
            get(
                "/history/export",
                login,
                self._export,
                "The same as CSV or JSON lines, up to 5000 rows; the header x-next-after continues.",
                query={"format": "csv or jsonl (default)", **FILTERS, "after": "value of the header x-next-after"},
                command="taskgate history --csv",
                answer=HistoryEntry,
            ),
            get(
                "/history/series",
                login,
                self._series,
                "Calls by outcome and latency over time, for charts.",
                query={
                    "by": f"{_BY}; default: all calls",
                    "name": "the server, the caller, or SERVER/TOOL",
                    **_RANGE,
                    "buckets": "maximum number of buckets, up to 400; default 60",
                },
                answer=HistorySeries,
            ),
            get(
                "/history/totals",
                login,
                self._totals,
                "Calls by outcome and latency of each server, tool or caller, most calls first.",
                query={"by": _BY, **_RANGE},
                answer=list[NamedSummary],
            ),
            get(
                "/history/names",
                login,
                self._names,
                "Names for suggestions.",
                query={"by": _BY, "begins": "how the name begins"},
                answer=Annotated[list[str], Meta(description="names in order, 20 at most")],
            ),
            get(
                "/history/{id}",
                login,
                self._show,
                "One call that has ended, by the id of its task or row.",
                command="taskgate tasks show {id}",
                answer=HistoryDetail,
            ),
        )

    async def page(self, visit: Visit, filters: HistoryFilter, limit: int) -> EndedCalls:
        """Rows that match a filter, of those that this person may see, from the cursor in the address. Raises ValueError."""
        return await self._page(visit, filters, visit.parameter("after"), limit)

    async def _page(self, visit: Visit, filters: HistoryFilter, after: str | None, limit: int) -> EndedCalls:
        try:
            found = await self._reading.page(reach_of(visit), filters, cursor=after, limit=limit)
        except CallerError as problem:
            raise ValueError(problem.message) from None
        return EndedCalls(rows=[history_entry(row) for row in found.rows], next=found.cursor)

    async def suggestions(self, visit: Visit) -> dict[str, list[str]]:
        """Names of servers, tools and callers for filters."""
        found = {
            dimension: await self._reading.names(reach_of(visit), dimension, "", SUGGESTED)
            for dimension in (Dimension.SERVER, Dimension.TOOL, Dimension.CALLER)
        }
        return {
            "server": list(found[Dimension.SERVER]),
            "tool": sorted({name.partition("/")[2] for name in found[Dimension.TOOL]}),
            "caller": list(found[Dimension.CALLER]),
        }

    def filters(self, visit: Visit) -> HistoryFilter:
        """The filter of the query parameters. Raises ValueError."""
        now = self._now_ms()
        caller = visit.parameter("caller")
        return HistoryFilter(
            tenant=visit.parameter("tenant"),
            caller=as_key(caller) if caller is not None else None,
            scope=visit.parameter("scope"),
            server=visit.parameter("server"),
            tool=visit.parameter("tool"),
            client=visit.parameter("client"),
            error_type=visit.parameter("error"),
            kind=_kind(visit.parameter("kind")),
            outcomes=_outcomes(visit.parameter("outcome")),
            text=visit.parameter("text"),
            since_ms=point_in_time("since", visit.parameter("since"), now),
            until_ms=point_in_time("until", visit.parameter("until"), now),
        )

    async def row(self, visit: Visit) -> HistoryRow:
        """The row that the path names. One of another caller looks like one that does not exist. Raises RequestProblem."""
        row = await self._reading.row(reach_of(visit), visit.values["id"])
        if row is None:
            raise RequestProblem(404, "There is no such row in the history.")
        return row

    async def detail(self, visit: Visit) -> HistoryDetail:
        row = await self.row(visit)
        content = await self._reading.content(reach_of(visit), row.id)
        return extended(
            HistoryDetail,
            history_entry(row),
            content=msgspec.json.decode(content) if content is not None else None,
            audit=_audit_address(row),
            trace_url=self._plan.value.trace_link(row.trace),
        )

    async def has_row(self, visit: Visit, row_id: str) -> bool:
        """Whether history has this row, and the person may see it."""
        return await self._reading.row(reach_of(visit), row_id) is not None

    async def same_calls(self, visit: Visit, server: str, tool: str, digest: str, row_id: str) -> list[HistoryEntry]:
        """Other calls of this tool with the same arguments, or that repeat this one, among the newest of the tool."""
        filters = HistoryFilter(server=server, tool=tool)
        rows = (await self._reading.page(reach_of(visit), filters, limit=COMPARED)).rows
        same = [row for row in rows if row.id != row_id and ((digest and row.digest == digest) or row.parent == row_id)]
        return [history_entry(row) for row in same[:SAME_SHOWN]]

    async def series(self, visit: Visit) -> HistorySeries:
        """Raises ValueError."""
        since, until, now = self._range(visit)
        by = visit.parameter("by") or Dimension.ALL.value
        dimension = Dimension.ALL if by == Dimension.ALL else _named(by)
        made = await self._reading.series(
            reach_of(visit),
            dimension,
            visit.parameter("name") or "",
            since,
            until,
            now_ms=now,
            buckets=_buckets(visit.parameter("buckets")),
        )
        return HistorySeries(
            since=iso(made.since_ms),
            until=iso(made.until_ms),
            bucket_ms=made.bucket_ms,
            buckets=[
                extended(SeriesBucket, summary_of(each.summary), start=iso(each.start_ms)) for each in made.buckets
            ],
            total=summary_of(made.total),
            latencies=[LatencyStep(up_to_ms=round(bound, 1), calls=calls) for bound, calls in made.latencies],
        )

    async def totals(self, visit: Visit) -> list[NamedSummary]:
        """Raises ValueError."""
        since, until, now = self._range(visit)
        reach, dimension = reach_of(visit), _named(visit.parameter("by"))
        counts = await self._reading.totals(reach, dimension, since, until, now_ms=now)
        made = await self._reading.with_latencies(reach, dimension, counts, since, until, now_ms=now)
        return [extended(NamedSummary, summary_of(total.summary), name=total.name) for total in made]

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(await self.page(visit, self.filters(visit), limit_of(visit.request)))

    async def _show(self, visit: Visit) -> Answer:
        return json_answer(await self.detail(visit))

    async def _series(self, visit: Visit) -> Answer:
        return json_answer(await self.series(visit))

    async def _totals(self, visit: Visit) -> Answer:
        return json_answer(await self.totals(visit))

    async def _names(self, visit: Visit) -> Answer:
        found = await self._reading.names(
            reach_of(visit), _named(visit.parameter("by")), visit.parameter("begins") or ""
        )
        return json_answer(list(found))

    async def _export(self, visit: Visit) -> Answer:
        from taskgate.replies.history_csv import csv_header, csv_lines

        form = visit.parameter("format") or "jsonl"
        if form not in ("csv", "jsonl"):
            raise ValueError("format must be csv or jsonl")
        filters, after = self.filters(visit), visit.parameter("after")
        parts = [csv_header().encode()] if form == "csv" else []
        for _ in range(EXPORTED // _SLICE):
            page = await self._page(visit, filters, after, _SLICE)
            parts.append(
                csv_lines(page.rows).encode() if form == "csv" else msgspec.json.Encoder().encode_lines(page.rows)
            )
            after = page.next
            if after is None:
                break
            await clock.sleep(0)  # let other requests run
        name = f'attachment; filename="taskgate-history.{form}"'.encode()
        more = ((b"x-next-after", after.encode()),) if after is not None else ()
        kind = "text/csv; charset=utf-8" if form == "csv" else "application/x-ndjson"
        return Answer(200, b"".join(parts), kind, ((b"content-disposition", name), *more))

    def _range(self, visit: Visit) -> tuple[int, int, int]:
        now = self._now_ms()
        until = point_in_time("until", visit.parameter("until"), now)
        until = now if until is None else until
        since = point_in_time("since", visit.parameter("since"), now)
        since = until - DEFAULT_RANGE_MS if since is None else since
        if since >= until:
            raise ValueError("since must be before until")
        return max(0, since, until - LONGEST_RANGE_MS), until, now


def reach_of(visit: Visit) -> Reach:
    """Whose history the person may read."""
    only = visit.only
    tenant = visit.user.tenant_of_search(only)
    return Reach(visit.user.id, tenant, as_key(only) if only is not None else None)


def summary_of(summary: Summary) -> CallSummary:
    return CallSummary(
        calls=summary.calls,
        bad=summary.bad,
        outcomes=dict(sorted(summary.counts.items())),
        p50_ms=summary.p50_ms,
        p99_ms=summary.p99_ms,
    )


def _audit_address(row: HistoryRow) -> Mapping[str, str]:
    """Query parameters of `/api/v1/audit` that find the audit rows of a call."""
    if row.task_id:
        return {"text": row.task_id}
    given = {"caller": row.caller, "server": row.server, "tool": row.tool}
    return {name: value for name, value in given.items() if value}


def _named(given: str | None) -> Dimension:
    named = {each.value: each for each in (Dimension.SERVER, Dimension.TOOL, Dimension.CALLER)}
    if given not in named:
        raise ValueError(f"by must be {_BY}")
    return named[given]


def _kind(given: str | None) -> RowKind | None:
    try:
        return None if given is None else RowKind(given)
    except ValueError:
        raise ValueError(f"kind must be one of {', '.join(kind.value for kind in RowKind)}") from None


def _outcomes(given: str | None) -> frozenset[CallOutcome] | None:
    if given is None:
        return None
    if given == "bad":
        return BAD_OUTCOMES
    try:
        return frozenset(CallOutcome(part.strip()) for part in given.split(","))
    except ValueError:
        known = ", ".join(outcome.value for outcome in CallOutcome)
        raise ValueError(f"outcome must be bad, or one or more of {known}") from None


def _buckets(given: str | None) -> int:
    if given is None:
        return DEFAULT_BUCKETS
    if not (given.isascii() and given.isdigit()) or len(given) > 4 or not 0 < int(given) <= MAX_BUCKETS:
        raise ValueError(f"buckets must be a whole number from 1 to {MAX_BUCKETS}")
    return int(given)
