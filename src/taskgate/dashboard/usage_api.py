"""Usage by caller, tenant, server, tool and day as JSON, CSV and metrics."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.identity.access import Access
from taskgate.core.usage import UsageRow, as_csv, day_of, days_before, summed
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.usage_metrics import as_metrics
from taskgate.dashboard.web import Answer, json_answer

MAX_DAYS: Final = 400
_USAGE_QUERY: Final = {
    "days": "number of days, up to 400; default 7",
    "by": "group by: day, principal, tenant, server, tool, separated by commas; default principal,server,tool",
    "format": "csv; or prometheus for metrics of today, grouped by principal,tenant,server,tool unless `by` is given",
}
_LABELS: Final = "principal,tenant,server,tool"
GROUPINGS: Final = ("principal,server,tool", "principal", "tenant", "server", "tool", "day")


class Usage(msgspec.Struct, eq=False):
    _records: Records

    async def rows(self, visit: Visit) -> tuple[list[UsageRow], int, str]:
        """Usage by the query parameters: of all callers with the permission `see`, otherwise of this person."""
        days = _days(visit.parameter("days"))
        by = visit.parameter("by") or GROUPINGS[0]
        now = self._records.now_ms()
        rows = await self._records.usage(visit.user, days_before(now, days), day_of(now))
        return summed(rows, tuple(part.strip() for part in by.split(","))), days, by

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/usage",
                Access.LOGIN,
                self._json,
                "Usage by caller, server, tool and day.",
                query=_USAGE_QUERY,
                command="taskgate usage",
                answer=list[UsageRow],
            ),
        )

    async def _json(self, visit: Visit) -> Answer:
        if visit.parameter("format") == "prometheus":
            return await self._metrics(visit)
        rows, _, _ = await self.rows(visit)
        if visit.parameter("format") == "csv":
            name = b'attachment; filename="taskgate-usage.csv"'
            return Answer(200, as_csv(rows).encode(), "text/csv; charset=utf-8", ((b"content-disposition", name),))
        return json_answer(rows)

    async def _metrics(self, visit: Visit) -> Answer:
        """Metrics of today: they restart at midnight UTC, which collectors treat as a counter reset."""
        today = day_of(self._records.now_ms())
        rows = await self._records.usage(visit.user, today, today)
        by = tuple(part.strip() for part in (visit.parameter("by") or _LABELS).split(","))
        return Answer(200, as_metrics(rows, by).encode(), "text/plain; version=0.0.4; charset=utf-8")


def _days(given: str | None) -> int:
    if given is None:
        return 7
    if not (given.isascii() and given.isdigit()) or len(given) > 4 or not 0 < int(given) <= MAX_DAYS:
        raise ValueError(f"days must be a whole number from 1 to {MAX_DAYS}")
    return int(given)
