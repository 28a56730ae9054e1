"""The page of usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.usage import GROUPS
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, page_route
from taskgate.dashboard.usage_api import GROUPINGS, Usage
from taskgate.dashboard.web import Answer

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


SHOWN: Final = 200
_LABELS: Final = {"principal": "Caller"}


class UsagePages(msgspec.Struct, eq=False):
    _usage: Usage
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/usage", Access.LOGIN, self._show, page=Page("usage", "Usage", "/api/v1/usage", menu=9)),)

    async def _show(self, visit: Visit) -> Answer:
        try:
            rows, days, by = await self._usage.rows(visit)
        except ValueError as error:
            return self._frame.message(visit.request, visit.user, 400, "Invalid filter", str(error))
        parameters = {"days": str(days), "by": by}
        parts = [part for part in GROUPS if part in by.split(",")]
        return await self._frame.page(
            visit,
            "usage",
            "usage.html",
            api=_address("/api/v1/usage", parameters),
            command=f"taskgate usage --days {days} --by {by}",
            rows=rows[:SHOWN],
            labels=_labels,
            left_out=max(0, len(rows) - SHOWN),
            groups=parts,
            days=days,
            by=by,
            choices=[(choice, _address("/usage", {**parameters, "by": choice})) for choice in GROUPINGS],
            spans=[(count, _address("/usage", {**parameters, "days": str(count)})) for count in (1, 7, 30, 365)],
            csv=_address("/api/v1/usage", {**parameters, "format": "csv"}),
            all_callers=visit.user.may(Permission.SEE),
        )


def _labels(by: str) -> str:
    """The heading for a grouping, such as `Caller, server, tool`."""
    return ", ".join(_LABELS.get(part, part) for part in by.split(",")).capitalize()


def _address(path: str, parameters: dict[str, str]) -> str:
    return f"{path}?{urlencode(parameters)}"
