"""The page of rules: rules in force, suggestions, and a form to test a change against recorded calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.periods import DAYS
from taskgate.dashboard.routes import (
    Route,
    Visit,
    form_route,
    page_route,
)
from taskgate.dashboard.rules_api import RulesApi
from taskgate.dashboard.web import Answer
from taskgate.replies.rules import RehearsalResult

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


_EXAMPLES_SHOWN: Final = 50


class RulesPages(msgspec.Struct, eq=False):
    _rules: RulesApi
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/rules", Access.SEE, self._show, page=Page("rules", "Rules", "/api/v1/rules", menu=8)),
            form_route("/rules", Access.ACT, self._rehearse),
        )

    async def _show(self, visit: Visit) -> Answer:
        return await self._page(visit, self._rules.configuration.governance(), f"{DAYS}d", None, None)

    async def _rehearse(self, visit: Visit) -> Answer:
        form = visit.request.form()
        text, since = form.get("governance", ""), form.get("since", "").strip() or f"{DAYS}d"
        try:
            found = await self._rules.rehearsed(visit, text, since)
        except ValueError as error:
            return await self._page(visit, text, since, None, str(error))
        return await self._page(visit, text, since, found, None)

    async def _page(
        self, visit: Visit, text: str, since: str, found: RehearsalResult | None, error: str | None
    ) -> Answer:
        in_force = await self._rules.in_force(visit)
        return await self._frame.page(
            visit,
            "rules",
            "rules.html",
            rules=in_force.rules,
            unmatched=in_force.unmatched,
            recording=in_force.recording,
            suggestions=await self._rules.suggestions(visit),
            may_rehearse=visit.user.may(Permission.ACT),
            governance=text,
            since=since,
            found=found,
            examples=found.examples[:_EXAMPLES_SHOWN] if found is not None else (),
            error=error,
        )
