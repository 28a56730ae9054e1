"""The audit log as JSON: search, hash chain and export."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Final

import msgspec

from taskgate import __version__
from taskgate.core.audit.cef import cef_line
from taskgate.core.audit.chain import ChainIntact, Row, export_line, verify
from taskgate.core.audit.search import AuditFilter
from taskgate.core.identity.access import Access
from taskgate.dashboard.audit_scan import SCANNED, Position, newest_first, read_position
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, get
from taskgate.dashboard.task_filters import point_in_time
from taskgate.dashboard.web import Answer, json_answer, limit_of
from taskgate.ports.store import Store
from taskgate.replies.audit import AuditChain, AuditPage, AuditRow
from taskgate.replies.fields import about, extended
from taskgate.store.operations.audit import AuditRows
from taskgate.telemetry.logs import log

EXPORTED: Final = 5_000
VERIFIED: Final = 100
MATCHED: Final = ("event", "caller", "server", "tool", "decision", "text")
RANGE: Final = ("since", "until")
FILTER_NAMES: Final = (*MATCHED, *RANGE)
_QUERY: Final = {
    "event": "name of the event",
    "caller": "name of the principal",
    "server": "name of the server",
    "tool": "name of the tool, resource or prompt",
    "decision": "the decision",
    "text": "text in any field, ignoring case",
    "since": "written since: 30m, 24h, 7d, or a date or time",
    "until": "written before",
    "before": "rows before this position, from `next`",
    "limit": "maximum number of rows, up to 1000",
}
_EXPORT: Final = {
    "format": "jsonl (default); cef is deprecated",
    **{name: text for name, text in _QUERY.items() if name not in ("before", "limit")},
    "after": "rows after this number",
    "limit": "up to 5000 rows are read; with a filter, those of them that match are returned",
}


class Audit(msgspec.Struct, eq=False):
    _store: Store
    _records: Records

    async def found(self, visit: Visit) -> AuditPage:
        """Matching rows, newest first; `next` is the position before which the next page starts. Raises ValueError."""
        filters, limit = _filters(visit, self._store.now_ms()), limit_of(visit.request)
        given = visit.parameter("before")
        after = read_position(given) if given is not None else None
        if after is not None and bool(after.chain) != self.has_chains:
            raise ValueError("before must be the value of `next` of an earlier reply")
        found: list[AuditRow] = []
        read, last = 0, after
        async with aclosing(newest_first(self._store, after, filters.since_ms, filters.until_ms)) as rows:
            async for position, row in rows:
                if len(found) >= limit:
                    break
                read, last = read + 1, position
                if filters.matches(row.entry) and visit.user.reaches(row.entry.principal):
                    found.append(audit_row(row, position.chain))
            else:
                last = last if read >= SCANNED else None
        return AuditPage(rows=found, next=self._cursor(last) if last is not None else None)

    @property
    def has_chains(self) -> bool:
        return self._store.audit_chain != ""

    def _cursor(self, position: Position) -> str | int:
        return position.text if self.has_chains else position.number

    def cursor_after(self, row: AuditRow) -> str | int:
        """The position before which a search continues after this row of a reply."""
        return self._cursor(Position(row.at_ms, row.chain, row.number))

    async def chain(self) -> AuditChain:
        """The head of the hash chain, and whether its last rows verify."""
        number, digest = self._store.audit_head()
        rows = await self._store.ask(AuditRows(max(0, number - VERIFIED - 1), VERIFIED + 1))
        walked = verify(rows[1:], after=rows[0]) if rows and rows[0].number > 1 else verify(rows)
        whole = isinstance(walked, ChainIntact)
        wrong = "" if isinstance(walked, ChainIntact) else f"row {walked.number}: {walked.problem}"
        return AuditChain(rows=number, head=digest, whole=whole, verified=min(number, VERIFIED), problem=wrong)

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
                answer=AuditPage,
            ),
            get(
                "/audit/chain",
                see,
                self._chain,
                "Head of the hash chain, and whether its last rows verify.",
                answer=AuditChain,
            ),
            get(
                "/audit/export",
                see,
                self._export,
                "Rows in order, as JSON lines.",
                query=_EXPORT,
                command="taskgate audit export -o audit.jsonl",
                answer=Annotated[str, about("one row per line, as JSON")],
            ),
        )

    async def _search(self, visit: Visit) -> Answer:
        return json_answer(await self.found(visit))

    async def _chain(self, _visit: Visit) -> Answer:
        return json_answer(await self.chain())

    async def _export(self, visit: Visit) -> Answer:
        form = visit.parameter("format") or "jsonl"
        if form not in ("jsonl", "cef"):
            raise ValueError("format must be jsonl or cef")
        if form == "cef":
            log.warning("audit exports as CEF are deprecated and end with the next release", use="format=jsonl")
        limit = _number(visit.parameter("limit"), EXPORTED)
        after = _number(visit.parameter("after"), 0)
        filters = _filters(visit, self._store.now_ms())
        read, last = await self._records.audit_rows(visit.user, after, min(max(1, limit), EXPORTED))
        rows = [row for row in read if filters.matches(row.entry)]
        body = b"".join(cef_line(row, __version__) if form == "cef" else export_line(row) for row in rows)
        name = f'attachment; filename="taskgate-audit.{form}"'.encode()
        # Rows are in the order of time, so none after this one was written before `until`.
        is_over = bool(filters.until_ms and read and read[-1].entry.at_ms >= filters.until_ms)
        more = ((b"x-next-after", b"%d" % last),) if last > after and not is_over else ()
        kind = "text/plain; charset=utf-8" if form == "cef" else "application/x-ndjson"
        return Answer(200, body, kind, ((b"content-disposition", name), *more))


def _filters(visit: Visit, now_ms: int) -> AuditFilter:
    """Raises ValueError."""
    event, caller, server, tool, decision, text = (visit.parameter(name) or "" for name in MATCHED)
    since, until = (point_in_time(name, visit.parameter(name), now_ms) or 0 for name in RANGE)
    if until and since >= until:
        raise ValueError("since must be before until")
    return AuditFilter(
        event=event,
        caller=caller,
        server=server,
        tool=tool,
        decision=decision,
        text=text,
        since_ms=since,
        until_ms=until,
    )


def audit_row(row: Row, chain: str = "") -> AuditRow:
    return extended(AuditRow, row.entry, number=row.number, hash=row.hash, chain=chain)


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise ValueError("after and limit must be whole numbers")
    return int(text)
