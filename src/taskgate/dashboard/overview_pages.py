"""The page Overview, where people arrive."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import BAD_OUTCOMES
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard import units
from taskgate.dashboard.call_charts import call_sparkline, latency_chart, outcome_chart
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.overview_api import OverviewApi, OverviewCounts, OverviewData
from taskgate.dashboard.ranges import range_links
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import Answer, redirect, with_query

FAILURES_SHOWN: Final = 8
MAX_DRAWN: Final = 16


class Drawn(NamedTuple):
    charts: list[Markup]
    servers: list[dict[str, Any]]


class OverviewPages(msgspec.Struct, eq=False):
    _overview: OverviewApi
    _history: HistoryApi
    _frame: Frame
    _latest: list[tuple[OverviewCounts, Drawn]] = []

    def routes(self) -> tuple[Route, ...]:
        topics = (Topic.TASKS, Topic.INBOX, Topic.SERVERS)
        return (
            page_route(
                "/overview",
                Access.LOGIN,
                self._show,
                page=Page("overview", "Overview", "/api/v1/overview", topics, menu=1),
            ),
            page_route("/now", Access.LOGIN, self._moved, "The earlier address of the overview."),
        )

    async def _show(self, visit: Visit) -> Answer:
        data = await self._overview.data(visit)
        reply, drawn = data.reply, self._drawn(data.counts)
        bad = HistoryFilter(outcomes=BAD_OUTCOMES, since_ms=data.counts.series.since_ms)
        failures = (await self._history.page(visit, bad, FAILURES_SHOWN)).rows
        return await self._frame.page(
            visit,
            "overview",
            "overview.html",
            ranges=range_links("/overview", data.period),
            headline=_headline(data, all_servers=visit.user.may(Permission.SEE)),
            attention=reply.attention,
            charts=drawn.charts,
            servers=drawn.servers,
            more_servers=max(0, len(reply.servers) - len(drawn.servers)),
            running=reply.open,
            more_running=reply.open_count > len(reply.open),
            failures=failures,
            period=data.period,
            first_visit=not reply.has_calls and visit.user.may(Permission.ACT),
            api=with_query("/api/v1/overview", {"range": data.period.name}),
        )

    def _drawn(self, counts: OverviewCounts) -> Drawn:
        """The charts of these numbers, drawn once for all people who share them."""
        known = next((drawn for each, drawn in self._latest if each is counts), None)
        if known is None:
            known = _draw(counts)
            self._latest = [*self._latest[1 - MAX_DRAWN :], (counts, known)]
        return known

    async def _moved(self, _visit: Visit) -> Answer:
        return redirect("/overview")


def _draw(counts: OverviewCounts) -> Drawn:
    waits = ((counts.waited, "Wait for approval"), (counts.answered, "Wait for answers"))
    return Drawn(
        [
            outcome_chart(counts.series, "Calls by outcome", {}),
            latency_chart(counts.series, "Latency"),
            *(latency_chart(series, title) for series, title in waits if series.total.calls),
        ],
        [
            {
                "name": total.name,
                "calls": total.summary.calls,
                "bad": total.summary.bad,
                "p99_ms": total.summary.p99_ms,
                "drawn": call_sparkline(total.summary, course),
            }
            for total, course in counts.servers
        ],
    )


def _headline(data: OverviewData, *, all_servers: bool) -> list[dict[str, Any]]:
    """The numbers on top: label, value, how it compares with the time before, and where it leads."""
    now, before, seconds = data.counts.series.total, data.counts.before, data.reply.seconds
    down, waiting = len(data.reply.servers_down), data.reply.waiting
    running = f"{data.reply.open_count}{'+' if data.reply.more_open else ''}"
    servers = [_number("Servers down", str(down), "", "/servers", bad=down > 0)] if all_servers else []
    return [
        _number("Calls", units.rate(now.calls / seconds), _change(now.calls, before.calls), "/tasks"),
        _number(
            "Ended badly",
            units.percent(now.bad_share),
            _points(now.bad_share, before.bad_share),
            "/tasks?state=bad",
            bad=bool(now.bad),
        ),
        _number("p50", units.duration(now.p50_ms), _change(now.p50_ms, before.p50_ms), None),
        _number("p99", units.duration(now.p99_ms), _change(now.p99_ms, before.p99_ms), None),
        _number("Waiting for people", str(waiting), "", "/inbox", bad=waiting > 0),
        _number("Open tasks", running, "", "/tasks?state=open"),
        *servers,
    ]


def _number(label: str, value: str, trend: str, href: str | None, *, bad: bool = False) -> dict[str, Any]:
    return {"label": label, "value": value, "trend": trend, "href": href, "bad": bad}


def _change(now: float | None, before: float | None) -> str:
    """How much it has grown or shrunk since the time before, in percent or as a factor; empty where one has no value."""
    if not now or not before:
        return ""
    change = (now - before) / before
    if change >= 2:
        return f"× {now / before:.1f}"
    return "unchanged" if abs(change) < 0.005 else f"{'+' if change > 0 else '−'}{units.percent(abs(change))}"


def _points(now: float | None, before: float | None) -> str:
    if now is None or before is None:
        return ""
    change = round((now - before) * 100, 1)
    return "unchanged" if not change else f"{'+' if change > 0 else '−'}{abs(change):g} points"
