"""The page of the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from taskgate.core.identity.access import Access
from taskgate.dashboard.audit_api import FILTER_NAMES, Audit
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.web import Answer

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


class AuditPages:
    def __init__(self, audit: Audit, frame: Frame) -> None:
        self._audit = audit
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/audit", Access.SEE, self._show, page=Page("audit", "Audit", "/api/v1/audit", menu=9)),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            found = await self._audit.found(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.who, 400, "Invalid filter", str(error))
        filters = {name: value for name in (*FILTER_NAMES, "since") if (value := visit.parameter(name)) is not None}
        options = " ".join(f"--{name} {_quoted(value)}" for name, value in filters.items())
        return await self._frame.page(
            visit,
            "audit",
            "audit.html",
            api=f"/api/v1/audit?{urlencode(filters)}" if filters else "/api/v1/audit",
            command=f"taskgate audit search {options}".rstrip(),
            rows=[_short(row) for row in found["rows"]],
            chain=await self._audit.chain(),
            filters={name: filters.get(name, "") for name in (*FILTER_NAMES, "since")},
            more=f"/audit?{urlencode({**filters, 'before': str(found['next'])})}"
            if found["next"] is not None
            else None,
        )


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row that the page shows, shortened; the JSON has the whole row."""
    words = ("principal", "scope", "server", "name", "decision", "rule", "reason", "outcome")
    shown = {word: str(row.get(word, ""))[:300] for word in words}
    return {**shown, "number": row["number"], "event": row["event"], "at_ms": row["at_ms"]}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
