"""The numbers of one caller, tool or server for its page: tiles, charts, last calls, and with whom or what it was used."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from taskgate.core.history.counts import Dimension
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import BAD_OUTCOMES, HistoryRow
from taskgate.dashboard import units
from taskgate.dashboard.call_charts import latency_chart, latency_histogram, outcome_chart
from taskgate.dashboard.history_api import reach_of
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.ranges import chosen_range, range_links
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Visit
from taskgate.dashboard.web import with_query
from taskgate.ports.history_reader import HistoryReader
from taskgate.replies.history import history_entry

FAILURES_SHOWN: Final = 8
LAST_SHOWN: Final = 12
CALLS_COUNTED: Final = 200
"""The number of last calls from which the users of a tool are counted."""
USERS_SHOWN: Final = 10


class SubjectNumbers(msgspec.Struct, eq=False):
    _history: HistoryReader
    _records: Records
    _questions: QuestionsApi

    async def values(
        self, visit: Visit, dimension: Dimension, name: str, address: str, filters: dict[str, str | None]
    ) -> dict[str, Any]:
        """Values for `subject_numbers.html`. `filters` are those that find the calls of the subject."""
        reach, now = reach_of(visit), self._records.now_ms()
        period = chosen_range(visit.parameter("range"))
        since = now - period.length_ms
        series = await self._history.series(reach, dimension, name, since, now, now_ms=now, buckets=period.buckets)
        matching = HistoryFilter(
            caller=filters.get("caller"), server=filters.get("server"), tool=filters.get("tool"), since_ms=since
        )
        last = (await self._history.page(reach, matching, limit=CALLS_COUNTED)).rows
        bad = [row for row in last if row.outcome in BAD_OUTCOMES]
        total = series.total
        return {
            "ranges": range_links(address, period),
            "tiles": [
                ("Calls", units.count(total.calls), False),
                ("Rate", units.rate(total.calls / (period.length_ms / 1000)), False),
                ("Ended badly", units.percent(total.bad_share), bool(total.bad)),
                ("p50", units.duration(total.p50_ms), False),
                ("p99", units.duration(total.p99_ms), False),
            ],
            "charts": [
                outcome_chart(series, "Calls by outcome", filters),
                latency_chart(series, "Latency"),
                latency_histogram(series, "Latency, distribution"),
            ],
            "used_title": "Tools" if dimension is Dimension.CALLER else "Used by",
            "used": _used(last, dimension),
            "questions": self._open_questions(visit, dimension, name),
            "failures": [history_entry(row) for row in bad[:FAILURES_SHOWN]],
            "last": [history_entry(row) for row in last[:LAST_SHOWN]],
            "all_calls": with_query("/tasks", filters),
            "numbers_api": with_query("/api/v1/history/series", {"by": dimension.value, "name": name}),
        }

    def _open_questions(self, visit: Visit, dimension: Dimension, name: str) -> list[str]:
        if dimension is Dimension.TOOL:
            return []
        rows = self._questions.rows(visit.user)
        of_subject = (row for row in rows if (row.caller if dimension is Dimension.CALLER else row.server) == name)
        return [f"{row.server}: {row.message}"[:200] for row in of_subject]


def _used(rows: tuple[HistoryRow, ...], dimension: Dimension) -> list[tuple[str, str, int]]:
    """The callers of a tool or server, or the tools of a caller, with their number among the last calls."""
    if dimension is Dimension.CALLER:
        tools = Counter((row.server, row.tool) for row in rows if row.server and row.tool)
        return [
            (f"{tool} on {server}", tool_address(server, tool), calls)
            for (server, tool), calls in tools.most_common(USERS_SHOWN)
        ]
    callers = Counter(row.caller for row in rows if row.caller)
    return [(name, caller_address(name), calls) for name, calls in callers.most_common(USERS_SHOWN)]


def tool_address(server: str, tool: str) -> str:
    """The page of a tool. Names are parameters, because they may contain slashes."""
    return with_query("/tool", {"server": server, "tool": tool})


def caller_address(name: str) -> str:
    return with_query("/caller", {"name": name})
