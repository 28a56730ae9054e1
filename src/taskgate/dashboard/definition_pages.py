"""The page of tool definitions that differ from their pins."""

from __future__ import annotations

import msgspec

from taskgate.core.identity.access import Access
from taskgate.dashboard.definitions_api import DefinitionsApi
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import Answer, redirect


class DefinitionPages(msgspec.Struct, eq=False):
    _definitions: DefinitionsApi
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/definitions",
                Access.SEE,
                self._show,
                page=Page("definitions", "Definitions", "/api/v1/pins", (Topic.DEFINITIONS,)),
            ),
            form_route("/definitions/accept", Access.ACT, self._accept),
        )

    async def _show(self, visit: Visit, note: str | None = None) -> Answer:
        rows = self._definitions.changed()
        return await self._frame.page(visit, "definitions", "definitions.html", rows=rows, note=note, note_kind="bad")

    async def _accept(self, visit: Visit) -> Answer:
        form = visit.request.form()
        server, tool, digest = (form.get(name, "") for name in ("server", "tool", "digest"))
        if not await self._definitions.accept(visit, server, tool, digest):
            note = "The definition has changed again since you opened this page. Review the current one."
            return await self._show(visit, note)
        return redirect("/definitions")
