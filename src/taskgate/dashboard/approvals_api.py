"""Approvals, the inbox and standing grants as JSON. The paths are in docs/http-api.md."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from taskgate.core.governance.approval import PAGE_CHANNEL, Verdict
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.inbox import STATUS_OF, Inbox
from taskgate.dashboard.passphrase import Passphrase
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.rows import grant_row
from taskgate.dashboard.web import Answer, RequestProblem, json_answer, limit_of, problem
from taskgate.ports.approval_decisions import GrantRequest, Ruling
from taskgate.replies.approvals import ApprovalDetail, ApprovalRow, Decision, GrantRow, InboxContent

_DECISION: Final = closed_object(
    reason=TEXT,
    arguments_digest=TEXT,
    passphrase=TEXT,
    grant=closed_object(
        minutes={"type": "integer"},
        exact_arguments={"type": "boolean"},
        whole_scope={"type": "boolean"},
        same_script={"type": "boolean"},
    ),
)
PAGED: Final = {
    "after": "start of the next page, from the header x-next-after",
    "limit": "maximum number of rows, up to 1000",
}
_CLOSED_TOO: Final = {"all": "1 includes closed ones"}
NOT_FOUND: Final = "Approval not found. It may have been deleted after its retention period."


class ApprovalsApi:
    def __init__(self, inbox: Inbox, questions: QuestionsApi, passphrase: Passphrase) -> None:
        self._inbox = inbox
        self._records = inbox.records
        self._questions = questions
        self._passphrase = passphrase

    def routes(self) -> tuple[Route, ...]:
        see, decide = Access.SEE, Access.DECIDE
        return (
            get(
                "/approvals",
                see,
                self._list,
                "Calls that are held for approval.",
                query=_CLOSED_TOO | PAGED,
                command="taskgate approvals list",
                answer=list[ApprovalRow],
            ),
            get(
                "/inbox",
                Access.LOGIN,
                self._inbox_json,
                "Your open approvals and questions.",
                command="taskgate approvals list",
                answer=InboxContent,
            ),
            get(
                "/approvals/{id}",
                see,
                self._show,
                "One held call with its arguments; redacted fields are marked.",
                command="taskgate approvals show {id}",
                answer=ApprovalDetail,
            ),
            post(
                "/approvals/{id}/approve",
                decide,
                self._approve,
                "Approve a held call.",
                _DECISION,
                command="taskgate approvals approve {id}",
                answer=Decision,
            ),
            post(
                "/approvals/{id}/deny",
                decide,
                self._deny,
                "Deny a held call.",
                _DECISION,
                command="taskgate approvals deny {id}",
                answer=Decision,
            ),
            post(
                "/approvals/{id}/recall",
                decide,
                self._recall,
                "Take your approval back, as long as the call still waits for its caller.",
                closed_object(),
                answer=Decision,
            ),
            get(
                "/grants",
                see,
                self._grants,
                "Standing grants.",
                query=_CLOSED_TOO,
                command="taskgate grants list",
                answer=list[GrantRow],
            ),
            post(
                "/grants/{id}/revoke",
                decide,
                self._revoke,
                "Revoke a standing grant.",
                closed_object(),
                command="taskgate grants revoke {id}",
                answer=GrantRow,
            ),
        )

    async def waiting(self, visit: Visit, limit: int) -> tuple[InboxContent, str | None]:
        """The inbox of a person, and where its next page of approvals starts."""
        approvals: list[ApprovalRow] = []
        after: str | None = None
        if visit.user.may(Permission.SEE):
            approvals, after = await self._inbox.rows(visit.user, everything=False, after=None, limit=limit)
        return InboxContent(approvals=approvals, questions=self._questions.rows(visit.user)), after

    async def detail(self, visit: Visit, approval_id: str) -> ApprovalDetail:
        """One approval in full. Raises RequestProblem where this person may not see one with this id."""
        shown = await self._inbox.shown(approval_id, visit.user)
        if shown is None:
            raise RequestProblem(404, NOT_FOUND)
        return shown

    async def grants(self, visit: Visit, *, everything: bool) -> list[GrantRow]:
        return [grant_row(grant) for grant in await self._records.grants(visit.user, all_of_them=everything)]

    async def revoke(self, visit: Visit, grant_id: str) -> GrantRow:
        """Raises RequestProblem where this person may not see a grant with this id."""
        grant = await self._records.revoke_grant(visit.user, grant_id)
        if grant is None:
            raise RequestProblem(404, "Grant not found.")
        return grant_row(grant)

    async def _list(self, visit: Visit) -> Answer:
        rows, after = await self._inbox.rows(
            visit.user,
            everything=_includes_closed(visit),
            after=visit.request.query.get("after"),
            limit=limit_of(visit.request),
        )
        return json_answer(rows, headers=((b"x-next-after", after.encode("ascii")),) if after is not None else ())

    async def _inbox_json(self, visit: Visit) -> Answer:
        found, _ = await self.waiting(visit, limit_of(visit.request))
        return json_answer(found)

    async def _show(self, visit: Visit) -> Answer:
        return json_answer(await self.detail(visit, visit.values["id"]))

    async def _approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.APPROVE)

    async def _deny(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.DENY)

    async def _decide(self, visit: Visit, verdict: Verdict) -> Answer:
        request, user, approval_id = visit.request, visit.user, visit.values["id"]
        body = request.json()
        given = _text(body, "passphrase") or ""
        if request.locked and verdict is Verdict.APPROVE and not await self._passphrase.fits(given):
            text = "Approving requires the passphrase: set $TASKGATE_PASSPHRASE, or decide on a terminal or on the approval's page."
            return json_answer({"error": "passphrase_needed", "message": text}, 403)
        unknown = set(body) - {"reason", "arguments_digest", "grant", "passphrase"}
        if unknown:
            return problem(400, f"Unknown keys: {', '.join(sorted(unknown))}.")
        ruling = await self._inbox.decide(
            user,
            approval_id,
            verdict,
            reason=_text(body, "reason") or "",
            channel=PAGE_CHANNEL if user.logged_in else "api",
            digest=_text(body, "arguments_digest"),
            grant=_requested_grant(body.get("grant")),
        )
        return _ruled(approval_id, ruling)

    async def _recall(self, visit: Visit) -> Answer:
        if visit.request.json():
            raise ValueError("the body must be an empty object")
        approval_id = visit.values["id"]
        return _ruled(approval_id, await self._inbox.recall(visit.user, approval_id))

    async def _grants(self, visit: Visit) -> Answer:
        return json_answer(await self.grants(visit, everything=_includes_closed(visit)))

    async def _revoke(self, visit: Visit) -> Answer:
        return json_answer(await self.revoke(visit, visit.values["id"]))


def _ruled(approval_id: str, ruling: Ruling) -> Answer:
    decision = Decision(
        id=approval_id,
        message=ruling.text,
        state=ruling.held.approval.state if ruling.held is not None else UNSET,
        error=ruling.refusal or UNSET,
        starts=ruling.starts if ruling.starts is not None else UNSET,
        grant=grant_row(ruling.grant) if ruling.grant is not None else UNSET,
    )
    return json_answer(decision, STATUS_OF.get(ruling.refusal, 409))


def _includes_closed(visit: Visit) -> bool:
    return visit.request.query.get("all") in ("1", "true")


def _text(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and type(value) is not str:
        raise ValueError(f"{key} must be a string")
    return value


def _requested_grant(given: Any) -> GrantRequest | None:
    if given is None:
        return None
    if type(given) is not dict or set(given) - {"minutes", "exact_arguments", "whole_scope", "same_script"}:
        raise ValueError("grant must be an object with minutes, exact_arguments, whole_scope and same_script")
    minutes = given.get("minutes", 60)
    if type(minutes) is not int:
        raise ValueError("grant.minutes must be a whole number")
    limits = (given.get(name) is True for name in ("exact_arguments", "whole_scope", "same_script"))
    return GrantRequest(minutes * 60_000, *limits)
