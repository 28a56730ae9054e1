"""The inbox: calls that are held for approval and open questions, in one list.

Approvals of identical calls (same caller, tool, arguments and definition) are one card and can be decided together, unless the
tool may be destructive.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import CallOutcome, RowKind
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import SAMPLE
from taskgate.dashboard.approvals_api import ApprovalsApi
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.inbox import Inbox, same_call
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.questions_api import SAMPLING, QuestionsApi
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.schema_forms import BadForm, filled_in, form_of, form_values
from taskgate.dashboard.text_filters import clear, span
from taskgate.dashboard.tool_facts import RISK_LABELS
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import PAGE, Answer, redirect
from taskgate.replies.approvals import ApprovalDetail, ApprovalRow
from taskgate.replies.questions import QuestionRow

EXCERPT: Final = 1_200
"""Characters of arguments on a card; a call with more is decided on its own page, which shows all of them."""
CARDS: Final = 12
"""Cards on the page; the rest is in the list of approvals."""
MAX_TOGETHER: Final = 100
LONGEST_DESCRIPTION: Final = 300
MAX_CHANGES: Final = 20
"""Differences on a card; the page of the approval shows all of them."""
DECISIONS_FROM: Final = 50
"""The number of last calls of a tool from which earlier decisions are counted."""
SOON_S: Final = 60
"""A request that expires within this time is marked."""
_DONE: Final = {
    "approved": "Approved.",
    "denied": "Denied. The callers receive the reason.",
    "answered": "Answer sent.",
    "declined": "Declined.",
    "recalled": "Your approval was taken back. The call waits for a decision again.",
}


class InboxPages(msgspec.Struct, eq=False, kw_only=True):
    approvals: ApprovalsApi
    inbox: Inbox
    questions: QuestionsApi
    history: HistoryApi
    frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/inbox",
                Access.LOGIN,
                self._list,
                page=Page("inbox", "Inbox", "/api/v1/inbox", (Topic.INBOX, Topic.TASKS), menu=3),
            ),
            form_route("/inbox/together", Access.DECIDE, self._together),
            form_route("/inbox/questions/{id}", Access.LOGIN, self._answer),
        )

    async def _list(self, visit: Visit, note: str | None = None, status: int = 200) -> Answer:
        found, after = await self.approvals.waiting(visit, PAGE)
        groups: dict[tuple[str, ...], list[str]] = {}
        for row in found.approvals:
            key = same_call(row) if row.batchable else (row.id,)
            groups.setdefault(key, []).append(row.id)
        # `said` is the former name.
        done = visit.parameter("done") or visit.parameter("said")
        if note is None and done in _DONE:
            note = _DONE[done]
        decided: dict[tuple[str, str], str] = {}
        return await self.frame.page(
            visit,
            "inbox",
            "inbox.html",
            status=status,
            note=note,
            note_kind="bad" if status >= 400 else "",
            approvals=[await self._card(visit, ids, decided) for ids in list(groups.values())[:CARDS]],
            undo=await self._undoable(visit),
            more=len(groups) > CARDS or after is not None,
            questions=[
                (row, form_of(row.params.get("requestedSchema")), _sampling_request(row))
                for row in found.questions[:CARDS]
            ],
        )

    async def _undoable(self, visit: Visit) -> str | None:
        """The approval that the address names, as long as it can be taken back."""
        approval_id = visit.parameter("undo")
        if approval_id is None or not visit.user.may(Permission.DECIDE):
            return None
        return approval_id if await self.inbox.can_be_recalled(visit.user, approval_id) else None

    async def _card(self, visit: Visit, ids: list[str], decided: dict[tuple[str, str], str]) -> dict[str, Any]:
        """`decided` has the earlier decisions about each tool of the page: several cards may be about one tool."""
        row = await self.approvals.detail(visit, ids[0])
        tool = (row.server, row.name)
        if tool not in decided:
            decided[tool] = await self._decided_before(visit, *tool)
        arguments = excerpt(row.arguments, EXCERPT)
        changes = row.changes.list if row.changes is not None else []
        return {
            "row": row,
            "arguments": arguments.text,
            "left_out": arguments.left_out,
            "script": excerpt(row.script, EXCERPT).text,
            "description": clear(row.description)[:LONGEST_DESCRIPTION],
            "risks": [(risk, RISK_LABELS[risk]) for risk in row.risks],
            "diff": changes[:MAX_CHANGES],
            "same_as_before": row.changes is not None and not changes,
            "soon": self._expires_soon(row),
            "decided_before": decided[tool],
            "may_decide": row.may_decide and visit.user.may(Permission.DECIDE),
            "next": _next_step(row),
            "ids": ids,
        }

    async def _decided_before(self, visit: Visit, server: str, tool: str) -> str:
        """Earlier decisions about the same tool, among its last calls; empty if there were none."""
        filters = HistoryFilter(server=server, tool=tool, kind=RowKind.TASK)
        held = [found for found in (await self.history.page(visit, filters, DECISIONS_FROM)).rows if found.approval_id]
        approved = [found for found in held if found.approved_by]
        denied = sum(1 for found in held if found.outcome is CallOutcome.REJECTED)
        if not approved and not denied:
            return ""
        last = f", last by {approved[0].approved_by}" if approved else ""
        return f"Decided before: {len(approved)} approved{last}; {denied} denied."

    def _expires_soon(self, row: ApprovalRow) -> bool:
        left_s = datetime.fromisoformat(row.expires_at).timestamp() - self.inbox.records.now_ms() / 1000
        return left_s < SOON_S

    async def _answer(self, visit: Visit) -> Answer:
        question = self.questions.find(visit.user, visit.values["id"])
        if question is None:
            text = "This question was already answered, has expired, or belongs to another user."
            return await self._list(visit, text, 409)
        sent = form_values(visit)
        action = sent.get("action", ["accept"])[0]
        answer: dict[str, Any] = {"action": action if action in ("accept", "decline", "cancel") else "cancel"}
        try:
            if answer["action"] == "accept" and question.method == SAMPLE:
                answer["content"] = {"type": "text", "text": sent.get("text", [""])[0]}
            elif answer["action"] == "accept" and question.page is None:
                answer["content"] = filled_in(question.form.get("requestedSchema"), sent)
            await self.questions.settle(question, answer)
        except BadForm as problem:
            return await self._list(visit, clear(problem), 400)
        except CallerError as problem:
            return await self._list(visit, clear(problem.message), 400)
        return redirect(f"/inbox?done={'answered' if answer['action'] == 'accept' else 'declined'}")

    async def _together(self, visit: Visit) -> Answer:
        form = visit.request.form()
        ids = form.get("ids", "").split(",")[:MAX_TOGETHER]
        verdict = Verdict.APPROVE if form.get("verdict") == "approve" else Verdict.DENY
        reason, digest = form.get("reason", "").strip(), form.get("digest", "")
        refused = await self.inbox.decide_together(visit.user, ids, verdict, reason=reason, digest=digest)
        if refused is None:
            return await self._list(visit, "These calls cannot be decided together. Review each one.", 409)
        if refused:
            text = f"{len(ids) - refused} decided; {refused} were already decided or have changed."
            return await self._list(visit, text, 409)
        return redirect(f"/inbox?done={'approved' if verdict is Verdict.APPROVE else 'denied'}")


def _next_step(row: ApprovalDetail) -> str:
    """What approving leads to."""
    if row.task_id is None:
        return "Runs immediately after approval; the caller is waiting."
    if row.starts_on_approval:
        return "Runs immediately after approval."
    polled = row.polled_ago_s
    since = f"last polled {span(polled)} ago" if polled is not None else "not polled yet"
    return f"Runs when the caller polls the task ({since})."


def _sampling_request(row: QuestionRow) -> str | None:
    return excerpt(show_json(dict(row.params)), EXCERPT).text if row.kind == SAMPLING else None
