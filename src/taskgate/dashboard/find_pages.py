"""The page Find: what the field in the header leads to without a script."""

from __future__ import annotations

import msgspec

from taskgate.core.identity.access import Access
from taskgate.dashboard.find_api import FindApi
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.web import Answer, with_query


class FindPages(msgspec.Struct, eq=False):
    _find: FindApi
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/find", Access.LOGIN, self._show, page=Page("find", "Find", "/api/v1/find")),)

    async def _show(self, visit: Visit) -> Answer:
        text = visit.parameter("text")
        return await self._frame.page(
            visit,
            "find",
            "find.html",
            rows=await self._find.found(visit),
            find_text=text or "",
            api=with_query("/api/v1/find", {"text": text}),
        )
