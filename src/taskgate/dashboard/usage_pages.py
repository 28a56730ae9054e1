"""Usage by caller, tenant, server, tool and day: a page, JSON and CSV from the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from taskgate.core.budgets import AMOUNTS, GROUPS, OTHERS, UsageRow, as_csv, day_of, days_before, summed
from taskgate.core.identity import Permission
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import ROWS, Route, Visit, get, page_route
from taskgate.dashboard.web import Answer, json_answer

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

MOST_DAYS: Final = 400
SHOWN: Final = 200
_QUERY: Final = {
    "days": "how many days back, up to 400; default 7",
    "by": "what to add up by: day, principal, tenant, server, tool, with commas; default principal,server,tool",
    "format": "csv for a table; prometheus for metrics of today, by principal,tenant,server,tool unless said otherwise",
}
MOST_SERIES: Final = 1_000
_LABELS: Final = "principal,tenant,server,tool"
_CHOICES: Final = ("principal,server,tool", "principal", "tenant", "server", "tool", "day")


class Usage:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def rows(self, visit: Visit) -> tuple[list[UsageRow], int, str]:
        """What was asked for; who may not see everybody's usage sees their own."""
        days = _days(visit.asked("days"))
        by = visit.asked("by") or _CHOICES[0]
        now = self._records.now_ms()
        rows = await self._records.usage(visit.who, days_before(now, days), day_of(now))
        return summed(rows, tuple(part.strip() for part in by.split(","))), days, by

    def routes(self) -> tuple[Route, ...]:
        return (get("/usage", None, self._json, "Who used what, added up.", answer=ROWS, query=_QUERY),)

    async def _json(self, visit: Visit) -> Answer:
        if visit.asked("format") == "prometheus":
            return await self._metrics(visit)
        rows, _, _ = await self.rows(visit)
        if visit.asked("format") == "csv":
            name = b'attachment; filename="taskgate-usage.csv"'
            return Answer(200, as_csv(rows).encode(), "text/csv; charset=utf-8", ((b"content-disposition", name),))
        return json_answer([_row(row) for row in rows])

    async def _metrics(self, visit: Visit) -> Answer:
        """Of today, so they begin anew at midnight in UTC, which collectors take for a restart."""
        today = day_of(self._records.now_ms())
        rows = await self._records.usage(visit.who, today, today)
        by = tuple(part.strip() for part in (visit.asked("by") or _LABELS).split(","))
        return Answer(200, as_metrics(rows, by).encode(), "text/plain; version=0.0.4; charset=utf-8")


class UsagePages:
    def __init__(self, usage: Usage, frame: Frame) -> None:
        self._usage = usage
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/usage", None, self._show),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            rows, days, by = await self._usage.rows(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.who, 400, "Cannot be read", str(error))
        asked = {"days": str(days), "by": by}
        parts = [part for part in GROUPS if part in by.split(",")]
        return await self._frame.page(
            visit,
            "usage",
            "usage.html",
            api=_address("/api/v1/usage", asked),
            command=f"taskgate usage --days {days} --by {by}",
            rows=[_row(row) for row in rows[:SHOWN]],
            left_out=max(0, len(rows) - SHOWN),
            groups=parts,
            days=days,
            by=by,
            choices=[(choice, _address("/usage", {**asked, "by": choice})) for choice in _CHOICES],
            spans=[(count, _address("/usage", {**asked, "days": str(count)})) for count in (1, 7, 30, 365)],
            csv=_address("/api/v1/usage", {**asked, "format": "csv"}),
            everybody=visit.who.may(Permission.SEE),
        )


def _address(path: str, asked: dict[str, str]) -> str:
    return f"{path}?{urlencode(asked)}"


def _row(row: UsageRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*GROUPS, *AMOUNTS)}


def _days(asked: str | None) -> int:
    if asked is None:
        return 7
    if not (asked.isascii() and asked.isdigit()) or len(asked) > 4 or not 0 < int(asked) <= MOST_DAYS:
        raise ValueError(f"days is a whole number from 1 to {MOST_DAYS}")
    return int(asked)


_FAMILIES: Final = (
    ("taskgate_used_calls", "Calls that reached a server.", "calls", ""),
    ("taskgate_used_errors", "Those of them that failed.", "errors", ""),
    ("taskgate_used_seconds", "How long they took, added up.", "seconds", ""),
    ("taskgate_used_bytes", "Bytes of their arguments (in) and results (out).", "bytes_in", "in"),
    ("taskgate_used_bytes", "", "bytes_out", "out"),
    ("taskgate_used_sampling_cost", "What models cost that answered servers.", "cost", ""),
)


def as_metrics(rows: Iterable[UsageRow], by: tuple[str, ...], most: int = MOST_SERIES) -> str:
    """In the text form of Prometheus, with what was added up by as labels. The rows with the most calls have labels of their own,
    so many of them; the rest is one row under `(others)`, so that a crowd of callers cannot flood who collects them.
    """
    ordered = summed(rows, by)
    ordered.sort(key=lambda row: -row.calls)
    kept, rest = ordered[:most], ordered[most:]
    if rest:
        others = msgspec.structs.replace(rest[0], **dict.fromkeys(by, OTHERS))
        for row in rest[1:]:
            others = others.plus(row)
        kept.append(others)
    lines: list[str] = []
    for name, text, amount, direction in _FAMILIES:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"] if text else []
        more = [("direction", direction)] if direction else []
        for row in kept:
            labels = [*((part, str(getattr(row, part))) for part in by), *more]
            shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
            lines.append(f"{name}_total{{{shown}}} {getattr(row, amount)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
