"""Approvals, grants and changed definitions as pages. Nothing is decided by opening a link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Refusal, Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.redaction.difference import FieldChange
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import Inbox, Shown
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.rows import grant_row, vote_row
from taskgate.dashboard.text_filters import clear, span
from taskgate.dashboard.web import PAGE, Answer, WebRequest, redirect
from taskgate.gateway.governance.standing_grants import GrantWish
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.approval_channel import UNKNOWN_APPROVAL

FIRST_LOOK: Final = 20_000
"""So many characters of arguments are shown at once; more of them only when asked for, and approved only then."""
_THANKS: Final = {
    "approve": "Approval recorded.",
    "deny": "Denied. The tool will not run; the caller receives the reason.",
}
MOST_DIGITS: Final = 15


class ApprovalPages:
    def __init__(self, gateway: ConsoleServices, inbox: Inbox, frame: Frame) -> None:
        self._gateway = gateway
        self._inbox = inbox
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/approvals", Access.SEE, self._list),
            page_route("/approvals/{id}", Access.SEE, self._show),
            form_route("/approvals/{id}/approve", Access.DECIDE, self._approve),
            form_route("/approvals/{id}/deny", Access.DECIDE, self._deny),
            page_route("/grants", Access.SEE, self._grants),
            form_route("/grants/{id}/revoke", Access.DECIDE, self._revoke),
            page_route("/definitions", Access.SEE, self._definitions),
            form_route("/definitions/accept", Access.ACT, self._accept),
        )

    async def _list(self, visit: Visit) -> Answer:
        everything = visit.asked("all") == "1"
        rows, more = await self._inbox.rows(
            visit.who, everything=everything, after=_cursor(visit.asked("after")), limit=PAGE
        )
        return await self._frame.page(
            visit,
            "approvals",
            "list.html",
            title="All approvals" if everything else "Open approvals",
            everything=everything,
            rows=[self._timed(_visible(row)) for row in rows],
            after=more,
        )

    async def _show(
        self, visit: Visit, note: str | None = None, status: int = 200, *, note_kind: str = "bad"
    ) -> Answer:
        approval_id, said = visit.values["id"], visit.asked("said")
        shown = await self._inbox.shown(approval_id, visit.who)
        if shown is None:
            return self._frame.message(
                visit.request,
                visit.who,
                404,
                "Approval not found",
                "It may have been deleted after its retention period.",
            )
        if note is None and said in _THANKS:
            note, note_kind = _THANKS[said], ""
        return await self._frame.page(
            visit,
            "approvals",
            "show.html",
            title=clear(shown.row["name"]),
            status=status,
            note=note,
            note_kind=note_kind,
            command=self._frame.command_for("GET", "/api/v1/approvals/{id}", id=approval_id),
            api=f"/api/v1/approvals/{approval_id}",
            **self._parts(visit.request, shown),
        )

    def _parts(self, request: WebRequest, shown: Shown) -> dict[str, Any]:
        text = shown.card.arguments
        cut = excerpt(text, len(text) if request.query.get("full") == "1" else FIRST_LOOK)
        governing = self._gateway.plan.value.governing
        return {
            "row": self._timed(_visible(shown.row)),
            "card": shown.card,
            "arguments": cut.text,
            "left_out": cut.left_out,
            "total": len(text),
            "changes": [_change(change) for change in shown.card.changes.changes] if shown.card.changes else [],
            "votes": [_visible(vote_row(vote)) for vote in shown.card.votes],
            "unaccepted": [
                {**row, "tool": clear(row["tool"]), "where": [clear(c["path"]) for c in row["changes"]["list"][:20]]}
                for row in self._gateway.pins.changes_of(shown.row["server"], shown.row["name"])
            ],
            "may_decide": shown.may_decide,
            "grants": governing.grants and shown.row["kind"] == "tool",
            "grant_minutes": min(60, governing.longest_grant_ms // 60_000),
        }

    async def _approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.APPROVE)

    async def _deny(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.DENY)

    async def _decide(self, visit: Visit, verdict: Verdict) -> Answer:
        form, approval_id = visit.request.form(), visit.values["id"]
        try:
            ruling = await self._inbox.decide(
                visit.who,
                approval_id,
                verdict,
                reason=form.get("reason", "").strip(),
                channel=PAGE_CHANNEL,
                digest=form.get("digest", ""),
                grant=self._wish(form.get("grant", "")) if verdict is Verdict.APPROVE else None,
            )
        except CallerError as problem:
            return await self._show(visit, problem.message, 400)
        if ruling.refusal == Refusal.LOGIN_TOO_OLD.value:
            return redirect(f"/login?fresh=1&next=/approvals/{quote(approval_id, safe='')}")
        if ruling.refusal == UNKNOWN_APPROVAL:
            return await self._show(visit)
        if ruling.refusal:
            return await self._show(visit, ruling.text, 409)
        back = form.get("back")
        return redirect("/inbox" if back == "inbox" else f"/approvals/{approval_id}?said={verdict.value}")

    def _wish(self, word: str) -> GrantWish | None:
        if word not in ("exact", "tool", "scope"):
            return None
        longest = min(60 * 60_000, self._gateway.plan.value.governing.longest_grant_ms)
        return GrantWish(longest, exact_arguments=word == "exact", whole_scope=word == "scope")

    async def _grants(self, visit: Visit) -> Answer:
        rows = [_visible(grant_row(grant)) for grant in await self._inbox.records.grants(visit.who)]
        return await self._frame.page(visit, "grants", "grants.html", rows=rows)

    async def _revoke(self, visit: Visit) -> Answer:
        await self._inbox.records.revoke_grant(visit.who, visit.values["id"])
        return redirect("/grants")

    async def _definitions(self, visit: Visit, note: str | None = None) -> Answer:
        rows = self._gateway.pins.changed_rows()
        for row in rows:
            row["shown"] = [
                {**c, "path": clear(c["path"]), "before": show_json(c["before"]), "after": show_json(c["after"])}
                for c in row["changes"]["list"]
            ]
        return await self._frame.page(visit, "definitions", "definitions.html", rows=rows, note=note, note_kind="bad")

    async def _accept(self, visit: Visit) -> Answer:
        form, who = visit.request.form(), visit.who
        done = await self._gateway.pins.accept(
            form.get("server", ""), form.get("tool", ""), form.get("digest", ""), who.id
        )
        if not done:
            return await self._definitions(
                visit, "The definition has changed again since you opened this page. Review the current one."
            )
        return redirect("/definitions")

    def _timed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        from datetime import datetime

        now = self._inbox.records.now_ms() / 1000
        asked = datetime.fromisoformat(row["asked_at"]).timestamp()
        until = datetime.fromisoformat(row["expires_at"]).timestamp()
        return {**row, "asked_ago": f"{span(now - asked)} ago", "left": f"{span(until - now)} left"}


def _cursor(after: str | None) -> str | None:
    """Where the next page starts, as we wrote it into the link; the beginning for anything else."""
    number = (after or "").partition(":")[0]
    return after if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS else None


def _change(change: FieldChange) -> dict[str, Any]:
    return {
        "path": clear(change.path),
        "kind": change.kind.value,
        "before": show_json(change.before),
        "after": show_json(change.after),
    }


def _visible(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: clear(value) if isinstance(value, str) else value for key, value in row.items()}
