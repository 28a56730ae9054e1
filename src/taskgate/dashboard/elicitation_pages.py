"""The page `/elicitations/{id}`: one question for its addressee or an operator.

It shows a link that a server asks the user to open, with its host and warnings, or a question from a caller or server. Opening the
page answers nothing; only the submitted form does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.questions.question import ELICIT
from taskgate.core.text.peer_url import UnsafeUrl, check_peer_url
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.ports import OpenElicitationPages, QuestionInbox
from taskgate.dashboard.questions_api import may_answer
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.web import Answer, WebRequest
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.elicitation_page import ElicitationPage
from taskgate.gateway.questions.waiting import Waiting

_GONE: Final = ("Question not open", "It was already answered, has expired, or belongs to another user.")


class ElicitationPages:
    def __init__(
        self,
        pages: OpenElicitationPages,
        inbox: QuestionInbox,
        plan: Live[Plan],
        now_ms: Callable[[], int],
        frame: Frame,
    ) -> None:
        self._pages = pages
        self._inbox = inbox
        self._plan = plan
        self._now_ms = now_ms
        self._render = frame.plain
        self._message = frame.message

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/elicitations/{id}", Access.LOGIN, self._serve),
            page_route("/elicitations/{id}/{action}", Access.LOGIN, self._serve),
            form_route("/elicitations/{id}/{action}", Access.LOGIN, self._serve),
        )

    async def _serve(self, visit: Visit) -> Answer:
        request, user, page_id, action = visit.request, visit.user, visit.values["id"], visit.values.get("action")
        page = self._pages.find(page_id, user.id, user.may(Permission.ACT))
        if page is not None and user.reaches(page.principal):
            return await self._own(request, user, page, action)
        waiting = self._waiting(page_id, user)
        if waiting is not None:
            return await self._address(request, user, waiting, action)
        return self._message(request, user, 404, *_GONE)

    def _waiting(self, question_id: str, user: Approver) -> Waiting | None:
        try:
            waiting = self._inbox.find_any(question_id)
        except CallerError:
            return None
        is_url = waiting.method == ELICIT and waiting.params.get("mode") == "url"
        return waiting if is_url and may_answer(user, waiting) else None

    async def _own(self, request: WebRequest, user: Approver, page: ElicitationPage, action: str | None) -> Answer:
        if request.method == "POST" and action in ("answer", "decline"):
            try:
                self._pages.answer(page, request.form().get("value", "") if action == "answer" else None)
                await page.receiver.delivered()
            except CallerError:
                return self._message(request, user, 409, *_GONE)
            return self._message(request, user, 200, "Answer sent", "You can close this page.")
        return self._render(
            "elicitation.html",
            request,
            user,
            here="",
            id=page.id,
            asks=clear(page.requester),
            title=clear(page.name),
            text=clear(page.description),
            seconds=page.seconds_left,
            url=None,
            host=None,
            warnings=(),
        )

    async def _address(self, request: WebRequest, user: Approver, waiting: Waiting, action: str | None) -> Answer:
        if request.method == "POST" and action in ("answer", "decline"):
            try:
                verdict = "accept" if action == "answer" else "decline"
                self._inbox.answer_elicitation(waiting, verdict, None)
                await waiting.kept()
            except CallerError:
                return self._message(request, user, 409, *_GONE)
            return self._message(request, user, 200, "Answer sent", "You can close this page.")
        try:
            loopback = self._plan.value.limits.url_elicitation_loopback
            shown = check_peer_url(str(waiting.params.get("url")), allow_loopback=loopback)
        except UnsafeUrl as problem:
            return self._message(request, user, 403, "Unsafe link", problem.message)
        return self._render(
            "elicitation.html",
            request,
            user,
            here="",
            id=waiting.id,
            asks=f"Server {clear(waiting.server)}",
            title="Open a link",
            text=clear(waiting.message),
            seconds=max(0, (waiting.expires_ms - self._now_ms()) // 1000),
            url=shown.url,
            host=clear(shown.host),
            warnings=shown.warnings,
        )
