"""The page of the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec
from markupsafe import escape

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.card import show_json
from taskgate.core.identity.access import Access
from taskgate.core.ids import is_task_id
from taskgate.dashboard.audit_api import FILTER_NAMES, Audit
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.web import Answer, with_query
from taskgate.replies.audit import AuditRow

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


MAX_CHARACTERS: Final = 44_000
"""Of the rows on a page. Further rows are on the next page, however long the rows are."""
LONGEST_VALUE: Final = 1_000
LONGEST_CELL: Final = 300
_MARKUP: Final = 500
"""Characters of a row's elements and links without its values."""
_EXPORTS: Final = (("JSON lines", "jsonl"), ("CEF (deprecated)", "cef"))


class AuditPages(msgspec.Struct, eq=False):
    _audit: Audit
    _history: HistoryApi
    _records: Records
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/audit", Access.SEE, self._show, page=Page("audit", "Audit", "/api/v1/audit", menu=11)),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            found = await self._audit.found(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.user, 400, "Invalid filter", str(error))
        rows = _fitting([(row, _whole(row)) for row in found.rows])
        is_whole = len(rows) == len(found.rows)
        before = found.next if is_whole else self._audit.cursor_after(rows[-1][0])
        filters = {name: value for name in FILTER_NAMES if (value := visit.parameter(name)) is not None}
        options = " ".join(f"--{name} {_quoted(value)}" for name, value in filters.items())
        return await self._frame.page(
            visit,
            "audit",
            "audit.html",
            api=f"/api/v1/audit?{urlencode(filters)}" if filters else "/api/v1/audit",
            command=f"taskgate audit search {options}".rstrip(),
            rows=rows,
            most=LONGEST_CELL,
            chain=await self._audit.chain(),
            has_chains=self._audit.has_chains,
            task=await self._task(visit),
            suggestions=await self._suggestions(visit, found.rows),
            export=[
                (label, with_query("/api/v1/audit/export", {**filters, "format": form})) for label, form in _EXPORTS
            ],
            filters={name: filters.get(name, "") for name in FILTER_NAMES},
            more=f"/audit?{urlencode({**filters, 'before': str(before)})}" if before is not None else None,
        )

    async def _task(self, visit: Visit) -> str | None:
        """The task or ended call that the filter names, if it still has a page: rows outlive it."""
        named = visit.parameter("text") or ""
        if not is_task_id(named):
            return None
        known = await self._records.task(visit.user, named) is not None or await self._history.has_row(visit, named)
        return named if known else None

    async def _suggestions(self, visit: Visit, rows: Sequence[AuditRow]) -> dict[str, list[str]]:
        """Names for the filters: of history, and of the rows that are shown."""
        return {
            **await self._history.suggestions(visit),
            "event": sorted({row.event for row in rows}),
            "decision": sorted({row.decision for row in rows if row.decision}),
        }


def _whole(row: AuditRow) -> str:
    """Every field of a row, its position first. Long values are shortened; the JSON has all of them."""
    shown = msgspec.to_builtins(row)
    names = ("number", "hash", "chain", *AuditEntry.__struct_fields__)
    return "\n".join(f"{name}: {_value(shown[name])}" for name in names if name in shown)


def _value(value: Any) -> str:
    if type(value) is int:
        # Two in each row. Encoding them as JSON would take as long as the rest of the row.
        return str(value)
    shown = clear(value) if isinstance(value, str) else show_json(value)
    left_out = len(shown) - LONGEST_VALUE
    return shown if left_out <= 0 else f"{shown[:LONGEST_VALUE]}… ({left_out} more characters in the JSON)"


def _fitting(rows: list[tuple[AuditRow, str]]) -> list[tuple[AuditRow, str]]:
    """The first rows that fit on a page, at least one."""
    left, shown = MAX_CHARACTERS, 0
    for row, whole in rows:
        left -= _MARKUP + len(escape("".join((whole, *_cells(row)))))
        if left < 0 and shown:
            break
        shown += 1
    return rows[:shown]


def _cells(row: AuditRow) -> tuple[str, ...]:
    """What the table has of a row, as often as the page repeats it."""
    links = (row.task_id, row.approval_id, row.kind, row.event, row.principal, row.name)
    words = (row.principal, row.scope, row.server, row.name, row.decision, row.rule, row.reason, row.outcome)
    return (*links, *(word[:LONGEST_CELL] for word in words))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
