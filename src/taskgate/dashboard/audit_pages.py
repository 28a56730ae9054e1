"""The audit log and the usage of the gateway: pages, JSON and CSV from the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from taskgate import __version__, clock
from taskgate.core.audit.cef import cef_line
from taskgate.core.audit.chain import Row, Whole, export_line, verify
from taskgate.core.audit.search import AuditFilter
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.usage import AMOUNTS, GROUPS, OTHERS, UsageRow, as_csv, day_of, days_before, summed
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import ROWS, Route, Visit, get, page_route
from taskgate.dashboard.rules_pages import since_ms
from taskgate.dashboard.web import Answer, json_answer, limit_of
from taskgate.gateway.services.console import ConsoleServices

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

SCANNED: Final = 1_000
"""Rows that one search reads at most."""
EXPORTED: Final = 5_000
VERIFIED: Final = 100
_SLICE: Final = 200
_WORDS: Final = ("event", "caller", "server", "tool", "decision", "text")
_QUERY: Final = {
    "event": "name of the event",
    "caller": "name of the principal",
    "server": "name of the server",
    "tool": "name of the tool, resource or prompt",
    "decision": "the decision",
    "text": "text in any field, ignoring case",
    "since": "such as 7d",
    "before": "rows before this number, from `next`",
    "limit": "maximum number of rows, up to 1000",
}
_EXPORT: Final = {"format": "jsonl (default) or cef", "after": "rows after this number", "limit": "up to 5000"}


class Audit:
    def __init__(self, gateway: ConsoleServices, records: Records) -> None:
        self._records = records
        self._store = gateway.tasks.store

    async def found(self, visit: Visit) -> tuple[list[Row], int | None]:
        """Matching rows, newest first, and before which row to go on."""
        since = visit.asked("since")
        first = since_ms(since, self._store.now_ms()) if since is not None else 0
        event, caller, server, tool, decision, text = (visit.asked(name) or "" for name in _WORDS)
        wanted = AuditFilter(event, caller, server, tool, decision, text, first)
        end = _number(visit.asked("before"), self._store.audit_head()[0] + 1)
        return await self._scan(visit.who, wanted, end, limit_of(visit.request))

    async def _scan(self, who: Approver, wanted: AuditFilter, end: int, limit: int) -> tuple[list[Row], int | None]:
        rows: list[Row] = []
        stop = max(1, end - SCANNED)
        while end > stop:
            begin = max(stop, end - _SLICE)
            page, _ = await self._records.audit_rows(who, begin - 1, end - begin)
            for row in reversed([row for row in page if row.number < end]):
                if wanted.matches(row.entry):
                    rows.append(row)
                    if len(rows) >= limit:
                        return rows, row.number if row.number > 1 else None
            end = begin
            # Whoever calls meanwhile has its turn.
            await clock.sleep(0)
        return rows, end if end > 1 else None

    async def chain(self) -> dict[str, Any]:
        """The end of the chain, and whether its last rows follow from each other."""
        number, digest = self._store.audit_head()
        rows = await self._store.audit_rows(max(0, number - VERIFIED - 1), VERIFIED + 1)
        walked = verify(rows[1:], after=rows[0]) if rows and rows[0].number > 1 else verify(rows)
        whole = isinstance(walked, Whole)
        wrong = "" if isinstance(walked, Whole) else f"row {walked.number}: {walked.problem}"
        return {"rows": number, "head": digest, "whole": whole, "verified": min(number, VERIFIED), "problem": wrong}

    def routes(self) -> tuple[Route, ...]:
        see = Access.SEE
        return (
            get(
                "/audit",
                see,
                self._search,
                "Rows of the audit log, newest first.",
                query=_QUERY,
                command="taskgate audit search",
            ),
            get("/audit/chain", see, self._chain, "Head of the hash chain, and whether its last rows verify."),
            get(
                "/audit/export",
                see,
                self._export,
                "Rows in order, as JSON lines or CEF.",
                query=_EXPORT,
                command="taskgate audit export -o audit.jsonl",
            ),
        )

    async def _search(self, visit: Visit) -> Answer:
        rows, before = await self.found(visit)
        return json_answer({"rows": [audit_row(row) for row in rows], "next": before})

    async def _chain(self, _visit: Visit) -> Answer:
        return json_answer(await self.chain())

    async def _export(self, visit: Visit) -> Answer:
        form = visit.asked("format") or "jsonl"
        if form not in ("jsonl", "cef"):
            raise ValueError("format must be jsonl or cef")
        limit = _number(visit.asked("limit"), EXPORTED)
        after = _number(visit.asked("after"), 0)
        rows, last = await self._records.audit_rows(visit.who, after, min(max(1, limit), EXPORTED))
        body = b"".join(cef_line(row, __version__) if form == "cef" else export_line(row) for row in rows)
        name = f'attachment; filename="taskgate-audit.{form}"'.encode()
        more = ((b"x-next-after", b"%d" % last),) if last > after else ()
        kind = "text/plain; charset=utf-8" if form == "cef" else "application/x-ndjson"
        return Answer(200, body, kind, ((b"content-disposition", name), *more))


class AuditPages:
    def __init__(self, audit: Audit, frame: Frame) -> None:
        self._audit = audit
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/audit", Access.SEE, self._show),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            rows, before = await self._audit.found(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.who, 400, "Invalid filter", str(error))
        asked = {name: value for name in (*_WORDS, "since") if (value := visit.asked(name)) is not None}
        options = " ".join(f"--{name} {_quoted(value)}" for name, value in asked.items())
        return await self._frame.page(
            visit,
            "audit",
            "audit.html",
            api=f"/api/v1/audit?{urlencode(asked)}" if asked else "/api/v1/audit",
            command=f"taskgate audit search {options}".rstrip(),
            rows=[_short(audit_row(row)) for row in rows],
            chain=await self._audit.chain(),
            asked={name: asked.get(name, "") for name in (*_WORDS, "since")},
            more=f"/audit?{urlencode({**asked, 'before': str(before)})}" if before is not None else None,
        )


def audit_row(row: Row) -> dict[str, Any]:
    entry = {key: value for key, value in msgspec.structs.asdict(row.entry).items() if value not in ("", None, ())}
    return {"number": row.number, "hash": row.hash, **entry}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """For a line of the page; the whole row is in the JSON."""
    words = ("principal", "scope", "server", "name", "decision", "rule", "reason", "outcome")
    shown = {word: str(row.get(word, ""))[:300] for word in words}
    return {**shown, "number": row["number"], "event": row["event"], "at_ms": row["at_ms"]}


def _number(asked: str | None, otherwise: int) -> int:
    if asked is None:
        return otherwise
    if not (asked.isascii() and asked.isdigit()) or len(asked) > 15:
        raise ValueError("before, after and limit must be whole numbers")
    return int(asked)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# Usage by caller, tenant, server, tool and day: a page, JSON and CSV from the same rows.

MOST_DAYS: Final = 400
SHOWN: Final = 200
_USAGE_QUERY: Final = {
    "days": "number of days, up to 400; default 7",
    "by": "group by: day, principal, tenant, server, tool, separated by commas; default principal,server,tool",
    "format": "csv; or prometheus for metrics of today, grouped by principal,tenant,server,tool unless `by` is given",
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
        return (
            get(
                "/usage",
                Access.LOGIN,
                self._json,
                "Usage by caller, server, tool and day.",
                answer=ROWS,
                query=_USAGE_QUERY,
                command="taskgate usage",
            ),
        )

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
        return (page_route("/usage", Access.LOGIN, self._show),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            rows, days, by = await self._usage.rows(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.who, 400, "Invalid filter", str(error))
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
        raise ValueError(f"days must be a whole number from 1 to {MOST_DAYS}")
    return int(asked)


_FAMILIES: Final = (
    ("taskgate_used_calls", "Calls that reached a server.", "calls", ""),
    ("taskgate_used_errors", "Calls that failed.", "errors", ""),
    ("taskgate_used_seconds", "Total duration of the calls in seconds.", "seconds", ""),
    ("taskgate_used_bytes", "Bytes of arguments (in) and results (out).", "bytes_in", "in"),
    ("taskgate_used_bytes", "", "bytes_out", "out"),
    ("taskgate_used_sampling_cost", "Cost of model calls that answered sampling requests.", "cost", ""),
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
