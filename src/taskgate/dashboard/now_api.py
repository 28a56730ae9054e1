"""Current activity as JSON: open tasks, recent failures and traffic by server.

Traffic is counted from the spans of the waterfall when it is requested, so calls have no extra cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import OPEN
from taskgate.core.waterfall import Span
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.rows import operator_task
from taskgate.dashboard.web import Answer, json_answer
from taskgate.gateway.plan import Live
from taskgate.ports.store_answers import TaskFilter
from taskgate.ports.upstream import Upstream
from taskgate.replies.overview import Now, ServerTraffic

RECENT_MS: Final = 60 * 60 * 1000
WINDOW_S: Final = 600.0
SLICES: Final = 30


class NowApi(msgspec.Struct, eq=False):
    _upstreams: Live[Mapping[str, Upstream]]
    _records: Records

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/now",
                Access.LOGIN,
                self._now,
                "Open and recently failed tasks; with the permission `see`, traffic by server.",
                command="taskgate tasks list",
                answer=Now,
            ),
        )

    async def now(self, visit: Visit) -> Now:
        running = await self._records.tasks(visit.user, TaskFilter(states=OPEN), only=visit.only)
        since = self._records.now_ms() - RECENT_MS
        failed = await self._records.ended_badly(visit.user, since, only=visit.only, limit=10)
        known = running.tasks or (await self._records.tasks(visit.user, TaskFilter(), only=visit.only, limit=1)).tasks
        return Now(
            open=[operator_task(task) for task in running.tasks],
            failed=[operator_task(task) for task in failed],
            servers=self._traffic(visit.user),
            has_tasks=bool(known),
        )

    def _traffic(self, user: Approver) -> list[ServerTraffic]:
        if not user.may(Permission.SEE):
            return []
        return traffic(self._records.spans(user), sorted(self._upstreams.value), clock.wall())

    async def _now(self, visit: Visit) -> Answer:
        return json_answer(await self.now(visit))


def traffic(spans: Sequence[Span], servers: Sequence[str], now: float) -> list[ServerTraffic]:
    """Calls, errors and latencies of each server over the last ten minutes, as far as the recorded spans reach."""
    rows = []
    for server in servers:
        calls = [span for span in spans if span.server == server and span.start > now - WINDOW_S]
        took = sorted((span.end - span.start) * 1000 for span in calls if span.end)
        counts = [0] * SLICES
        for span in calls:
            counts[min(SLICES - 1, max(0, int((span.start - now + WINDOW_S) / WINDOW_S * SLICES)))] += 1
        rows.append(
            ServerTraffic(
                server=server,
                calls=len(calls),
                per_second=round(sum(counts[-3:]) / (3 * WINDOW_S / SLICES), 2),
                errors=sum(1 for span in calls if span.state not in ("ok", "running", "promoted")),
                p50_ms=_quantile(took, 0.5),
                p99_ms=_quantile(took, 0.99),
                counts=counts,
            )
        )
    return rows


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 1) if ordered else None
