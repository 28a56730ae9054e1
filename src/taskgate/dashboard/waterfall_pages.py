"""The page Waterfall: recent requests as a diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from taskgate import clock
from taskgate.core.identity.access import Access
from taskgate.core.waterfall import diagram
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.web import Answer, with_query

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame

from taskgate.dashboard.waterfall_api import FILTERS, ZOOM, RecentRequests, chosen_window


class WaterfallPages(msgspec.Struct, eq=False):
    _requests: RecentRequests
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/waterfall", Access.SEE, self._show, page=Page("waterfall", "Waterfall", "/api/v1/waterfall", menu=10)
            ),
        )

    async def _show(self, visit: Visit) -> Answer:
        try:
            spans = self._requests.spans(visit, only_calls=visit.parameter("show") != "all")
        except ValueError as error:
            return self._frame.message(visit.request, visit.user, 400, "Invalid filter", str(error))
        filters = {name: visit.parameter(name) or "" for name in (*FILTERS, "minutes")}
        show = "all" if visit.parameter("show") == "all" else "calls"
        given = {**filters, "show": show, **{name: visit.parameter(name) or "" for name in ZOOM}}
        drawing = diagram(spans, clock.wall(), chosen_window(visit))
        return await self._frame.page(
            visit,
            "waterfall",
            "waterfall.html",
            drawing=drawing,
            filters=filters,
            zoomed=any(given[name] for name in ZOOM),
            out=with_query("/waterfall", filters, show="all" if show == "all" else None),
            show=show,
            other=with_query("/waterfall", filters, show=None if show == "all" else "all"),
            api=with_query("/api/v1/waterfall", given),
        )
