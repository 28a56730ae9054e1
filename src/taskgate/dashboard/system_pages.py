"""The page System."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.web import Answer, redirect

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

from taskgate.dashboard.system_api import System

TEXT_SHOWN: Final = 20_000


class SystemPages(msgspec.Struct, eq=False):
    _system: System
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/system", Access.SEE, self._show, page=Page("system", "System", "/api/v1/system", menu=12)),
            form_route("/system/reload", Access.CONFIGURE, self._reload),
        )

    async def _show(self, visit: Visit, note: str | None = None, note_kind: str = "") -> Answer:
        shown = self._system.configuration.shown()
        if note is None and visit.parameter("done") == "reload":
            note = "Configuration reloaded."
        return await self._frame.page(
            visit,
            "system",
            "system.html",
            note=note,
            note_kind=note_kind,
            row=self._system.row(),
            text=shown.text[:TEXT_SHOWN] if visit.user.may(Permission.ACT) and visit.user.tenant is None else None,
            left_out=max(0, len(shown.text) - TEXT_SHOWN),
            may_reload=visit.user.may(Permission.CONFIGURE),
        )

    async def _reload(self, visit: Visit) -> Answer:
        error = await self._system.reload(visit.user.id)
        return redirect("/system?done=reload") if error is None else await self._show(visit, error, "bad")
