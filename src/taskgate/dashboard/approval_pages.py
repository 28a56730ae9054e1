"""Pages of approvals and standing grants. Opening a link decides nothing; only a submitted form does."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Final
from urllib.parse import quote

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Refusal, Verdict
from taskgate.core.governance.card import TAB, excerpt
from taskgate.core.identity.access import Access
from taskgate.dashboard.approvals_api import ApprovalsApi
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import STATUS_OF, Inbox
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.script_view import shown_calls, shown_changes, shown_plan, shown_script_changes
from taskgate.dashboard.text_filters import clear, span
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import PAGE, Answer, RequestProblem, redirect
from taskgate.replies.approvals import ApprovalRow

EXCERPT: Final = 20_000
"""Characters of arguments on the page; a call with more can be approved only after all of them were shown."""
_DECIDED: Final = {
    "approve": "Approval recorded.",
    "deny": "Denied. The tool will not run; the caller receives the reason.",
}
MAX_DIGITS: Final = 15


class ApprovalPages(msgspec.Struct, eq=False):
    _approvals: ApprovalsApi
    _inbox: Inbox
    _frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/approvals",
                Access.SEE,
                self._list,
                page=Page("approvals", "Approvals", "/api/v1/approvals", (Topic.INBOX,)),
            ),
            page_route("/approvals/{id}", Access.SEE, self._show),
            form_route("/approvals/{id}/approve", Access.DECIDE, self._approve),
            form_route("/approvals/{id}/deny", Access.DECIDE, self._deny),
            form_route("/approvals/{id}/recall", Access.DECIDE, self._recall),
            page_route("/grants", Access.SEE, self._grants, page=Page("grants", "Grants", "/api/v1/grants")),
            form_route("/grants/{id}/revoke", Access.DECIDE, self._revoke),
        )

    async def _list(self, visit: Visit) -> Answer:
        everything = visit.parameter("all") == "1"
        rows, more = await self._inbox.rows(
            visit.user, everything=everything, after=_cursor(visit.parameter("after")), limit=PAGE
        )
        return await self._frame.page(
            visit,
            "approvals",
            "list.html",
            title="All approvals" if everything else "Open approvals",
            everything=everything,
            rows=[(row, self._asked_ago(row), self._left(row)) for row in rows],
            after=more,
            api="/api/v1/approvals?all=1" if everything else None,
            command="taskgate approvals list --all" if everything else None,
        )

    async def _show(
        self, visit: Visit, note: str | None = None, status: int = 200, *, note_kind: str = "bad"
    ) -> Answer:
        # `said` is the former name.
        approval_id, decided = visit.values["id"], visit.parameter("done") or visit.parameter("said")
        row = await self._approvals.detail(visit, approval_id)
        if note is None and decided in _DECIDED:
            note, note_kind = _DECIDED[decided], ""
        text = row.arguments
        cut = excerpt(text, len(text) if visit.parameter("full") == "1" else EXCERPT)
        return await self._frame.page(
            visit,
            "approvals",
            "show.html",
            title=clear(row.name),
            status=status,
            note=note,
            note_kind=note_kind,
            command=self._frame.command_for("GET", "/api/v1/approvals/{id}", id=approval_id),
            api=f"/api/v1/approvals/{approval_id}",
            row=row,
            left=self._left(row),
            arguments=cut.text,
            left_out=cut.left_out,
            total=len(text),
            script=excerpt(row.script, len(cut.text)).text,
            tab=TAB,
            plan=shown_plan(row.plan),
            calls=shown_calls(row.script_calls, row.asked_at),
            changes=shown_changes(row),
            script_changes=shown_script_changes(row.script_changes),
        )

    async def _approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.APPROVE)

    async def _deny(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.DENY)

    async def _decide(self, visit: Visit, verdict: Verdict) -> Answer:
        form, approval_id = visit.request.form(), visit.values["id"]
        try:
            ruling = await self._inbox.decide(
                visit.user,
                approval_id,
                verdict,
                reason=form.get("reason", "").strip(),
                channel=PAGE_CHANNEL,
                digest=form.get("digest", ""),
                grant=self._inbox.grant_for(form.get("grant", "")) if verdict is Verdict.APPROVE else None,
            )
        except CallerError as problem:
            return await self._show(visit, problem.message, 400)
        if ruling.refusal == Refusal.LOGIN_TOO_OLD.value:
            return redirect(f"/login?fresh=1&next=/approvals/{quote(approval_id, safe='')}")
        if ruling.refusal:
            return await self._show(visit, ruling.text, 409)
        if form.get("back") == "inbox":
            may_undo = verdict is Verdict.APPROVE and ruling.starts is False
            return redirect(f"/inbox?undo={quote(approval_id, safe='')}" if may_undo else "/inbox")
        return redirect(f"/approvals/{approval_id}?done={verdict.value}")

    async def _recall(self, visit: Visit) -> Answer:
        ruling = await self._inbox.recall(visit.user, visit.values["id"])
        if ruling.refusal:
            return await self._show(visit, ruling.text, STATUS_OF.get(ruling.refusal, 409))
        return redirect("/inbox?done=recalled")

    async def _grants(self, visit: Visit) -> Answer:
        rows = await self._approvals.grants(visit, everything=False)
        return await self._frame.page(visit, "grants", "grants.html", rows=rows)

    async def _revoke(self, visit: Visit) -> Answer:
        with suppress(RequestProblem):  # it has ended already: the list shows that
            await self._approvals.revoke(visit, visit.values["id"])
        return redirect("/grants")

    def _asked_ago(self, row: ApprovalRow) -> str:
        asked = datetime.fromisoformat(row.asked_at).timestamp()
        return f"{span(self._inbox.records.now_ms() / 1000 - asked)} ago"

    def _left(self, row: ApprovalRow) -> str:
        expires = datetime.fromisoformat(row.expires_at).timestamp()
        return f"{span(expires - self._inbox.records.now_ms() / 1000)} left"


def _cursor(after: str | None) -> str | None:
    """The start of the next page, as our own links name it; None, the first page, for anything else."""
    number = (after or "").partition(":")[0]
    return after if number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS else None
