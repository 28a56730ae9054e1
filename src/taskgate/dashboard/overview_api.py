"""The overview as JSON: headline numbers with their trend, what needs attention, and calls over time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.core.history.counts import Dimension, Series, Summary, Total
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.timestamps import iso
from taskgate.dashboard import units
from taskgate.dashboard.call_charts import is_bad
from taskgate.dashboard.history_api import reach_of, summary_of
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.ranges import TimeRange, chosen_range
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.rows import operator_task
from taskgate.dashboard.web import Answer, json_answer
from taskgate.gateway.plan import Live
from taskgate.ports.history_reader import HistoryReader, Reach
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.ports.store_answers import TaskFilter
from taskgate.ports.upstream import ServerState, Upstream
from taskgate.replies.fields import extended
from taskgate.replies.overview import AttentionItem, Overview, ServerSummary

OPEN_SHOWN: Final = 12
OPEN_COUNTED: Final = 100
SERVERS_DRAWN: Final = 12
SPARK_BUCKETS: Final = 24
MAX_ATTENTION: Final = 8
MIN_CALLS: Final = 5
"""A server with fewer calls in the range is not reported for its errors."""
SHARED_S: Final = 1.0
"""How long numbers of history are used again. They are written every ten seconds."""
_DOWN: Final = frozenset({ServerState.DEGRADED, ServerState.RECONNECTING, ServerState.STOPPED})
NearlySpent = Callable[[], list[tuple[str, str, float]]]
"""`server` or `tenant`, its name and the part of its hourly limit for models that is spent, where little is left."""


class OverviewCounts(NamedTuple):
    """The numbers of history for one range, of those that a person may see."""

    series: Series
    before: Summary
    """The same length of time before the range."""
    waited: Series
    """Tasks that waited for approval, by how long they waited."""
    answered: Series
    """Questions of tasks, by how long they waited for an answer."""
    totals: tuple[Total, ...]
    servers: tuple[tuple[Total, tuple[int, ...]], ...]
    """The servers that are drawn, with the number of their calls over time."""


class OverviewData(NamedTuple):
    """What the page draws and the JSON contains."""

    period: TimeRange
    counts: OverviewCounts
    """Shared by people who may see the same history."""
    reply: Overview


class OverviewApi:
    def __init__(
        self,
        history: HistoryReader,
        pins: PinnedDefinitions,
        upstreams: Live[Mapping[str, Upstream]],
        records: Records,
        questions: QuestionsApi,
        *,
        nearly_spent: NearlySpent,
    ) -> None:
        self._pins = pins
        self._upstreams = upstreams
        self._nearly_spent = nearly_spent
        self._records = records
        self._questions = questions
        self._history = history
        self._shared: dict[tuple[str | None, str | None, str], tuple[float, asyncio.Future[OverviewCounts]]] = {}

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/overview",
                Access.LOGIN,
                self._json,
                "Headline numbers with their trend, what needs attention, and calls over time.",
                query={"range": "hour (default), day or week"},
                answer=Overview,
                command="taskgate history",
            ),
        )

    async def data(self, visit: Visit) -> OverviewData:
        user, reach = visit.user, reach_of(visit)
        period, now = chosen_range(visit.parameter("range")), self._records.now_ms()
        counts = await self._counts(reach, period, now)
        series = counts.series
        running = await self._records.tasks(user, TaskFilter(states=OPEN), only=visit.only, limit=OPEN_COUNTED)
        known = running.tasks or (await self._records.tasks(user, TaskFilter(), only=visit.only, limit=1)).tasks
        waiting = await self._waiting(user)
        down = self._down() if user.may(Permission.SEE) else []
        reply = Overview(
            range=period.name,
            seconds=period.length_ms // 1000,
            total=summary_of(series.total),
            before=summary_of(counts.before),
            waiting=waiting,
            waited=summary_of(counts.waited.total),
            answered=summary_of(counts.answered.total),
            open=[operator_task(task) for task in running.tasks[:OPEN_SHOWN]],
            open_count=len(running.tasks),
            more_open=running.after is not None,
            running=sum(1 for task in running.tasks if task.state is TaskState.RUNNING),
            servers_down=down,
            attention=await self._attention(visit, down, counts.totals),
            servers=_servers(counts.totals),
            has_calls=bool(known or series.total.calls),
        )
        return OverviewData(period, counts, reply)

    async def _counts(self, reach: Reach, period: TimeRange, now: int) -> OverviewCounts:
        """The numbers of history. Many open pages fetch themselves after a change: those that come together share one read."""
        key = (reach.tenant, reach.only, period.name)
        at, shared = self._shared.get(key, (0.0, None))
        if shared is None or clock.monotonic() - at >= SHARED_S:
            at = clock.monotonic()
            self._shared = {name: each for name, each in self._shared.items() if at - each[0] < SHARED_S}
            shared = asyncio.ensure_future(self._read_counts(reach, period, now))
            self._shared[key] = (at, shared)
        return await asyncio.shield(shared)

    async def _read_counts(self, reach: Reach, period: TimeRange, now: int) -> OverviewCounts:
        since, history = now - period.length_ms, self._history
        series = await history.series(reach, Dimension.ALL, "", since, now, now_ms=now, buckets=period.buckets)
        earlier = await history.series(reach, Dimension.ALL, "", since - period.length_ms, since, now_ms=now, buckets=1)
        waited = await history.series(reach, Dimension.WAITING, "", since, now, now_ms=now, buckets=period.buckets)
        answered = await history.series(reach, Dimension.ANSWERING, "", since, now, now_ms=now, buckets=period.buckets)
        totals = await history.totals(reach, Dimension.SERVER, since, now, now_ms=now)
        # The totals of a long range have no latencies. They are read for the servers that are drawn.
        drawn = await history.with_latencies(reach, Dimension.SERVER, totals[:SERVERS_DRAWN], since, now, now_ms=now)
        names = [total.name for total in drawn]
        courses = await history.courses(reach, Dimension.SERVER, names, since, now, now_ms=now, buckets=SPARK_BUCKETS)
        servers = tuple((total, courses.get(total.name, ())) for total in drawn)
        return OverviewCounts(
            series=series,
            before=earlier.total,
            waited=waited,
            answered=answered,
            totals=(*drawn, *totals[SERVERS_DRAWN:]),
            servers=servers,
        )

    async def _waiting(self, user: Approver) -> int:
        approvals = await self._records.pending_count(user) if user.may(Permission.SEE) else 0
        return approvals + self._questions.count(user)

    def _down(self) -> list[str]:
        return sorted(name for name, upstream in self._upstreams.value.items() if upstream.status().state in _DOWN)

    async def _attention(self, visit: Visit, down: list[str], totals: tuple[Total, ...]) -> list[AttentionItem]:
        """What a person should look at, the most urgent first."""
        user, found = visit.user, []
        if user.may(Permission.SEE):
            oldest = (await self._records.held_page(user, limit=1)).held
            found += [
                _item(
                    "approval",
                    f"{held.approval.binding.tool} of {held.approval.binding.principal} waits for approval",
                    f"/approvals/{held.approval.id}",
                    held.approval.asked_at_ms,
                )
                for held in oldest
            ]
        questions = self._questions.rows(user)
        found += [
            _item("question", f"{row.server} waits for an answer", "/inbox", None, at=row.timestamp)
            for row in questions[:1]
        ]
        found += [_item("server", f"{name} is not connected", f"/servers/{quote(name, safe='')}") for name in down]
        if user.may(Permission.SEE):
            found += [
                _item("definition", f"{row.tool} on {row.server} has changed its definition", "/definitions")
                for row in self._pins.changed_rows()
            ]
            found += self._budgets(reach_of(visit).tenant)
        found += [
            _item(
                "errors",
                f"{total.name}: {total.summary.bad} of {total.summary.calls} calls ended badly",
                f"/servers/{quote(total.name, safe='')}",
            )
            for total in totals
            if total.summary.calls >= MIN_CALLS and is_bad(total.summary) and total.name not in down
        ]
        return found[:MAX_ATTENTION]

    def _budgets(self, tenant: str | None) -> list[AttentionItem]:
        """Model budgets that are nearly spent: all of them, or for people of a tenant only that of the tenant."""
        return [
            _item("budget", f"{name} has spent {units.percent(share)} of its model budget for this hour", address)
            for kind, name, share in self._nearly_spent()
            if tenant is None or (kind == "tenant" and name == tenant)
            for address in ["/usage" if kind == "tenant" else f"/servers/{quote(name, safe='')}"]
        ]

    async def _json(self, visit: Visit) -> Answer:
        found = await self.data(visit)
        drawn, others = found.counts.totals[:SERVERS_DRAWN], found.counts.totals[SERVERS_DRAWN:]
        now = self._records.now_ms()
        since = now - found.period.length_ms
        # The page draws some of the servers only, and open pages fetch themselves often.
        others = await self._history.with_latencies(reach_of(visit), Dimension.SERVER, others, since, now, now_ms=now)
        return json_answer(msgspec.structs.replace(found.reply, servers=_servers((*drawn, *others))))


def _servers(totals: Iterable[Total]) -> list[ServerSummary]:
    return [extended(ServerSummary, summary_of(total.summary), name=total.name) for total in totals]


def _item(kind: str, text: str, address: str, since_ms: int | None = None, *, at: str | None = None) -> AttentionItem:
    return AttentionItem(kind=kind, text=text, address=address, since=iso(since_ms) if since_ms is not None else at)
