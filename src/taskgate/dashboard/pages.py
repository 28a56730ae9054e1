"""All pages of the console in one table of routes."""

from __future__ import annotations

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.api import Api
from taskgate.dashboard.approval_pages import ApprovalPages
from taskgate.dashboard.elicitation_pages import Elicitations
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.inbox_pages import InboxPages
from taskgate.dashboard.login import Login
from taskgate.dashboard.routes import Route, RouteTable, Visit, form_route, page_route
from taskgate.dashboard.steering import Steering
from taskgate.dashboard.task_pages import TaskPages
from taskgate.dashboard.try_pages import TryPages
from taskgate.dashboard.web import Answer, WebRequest
from taskgate.gateway.services.console import ConsoleServices


class Pages:
    def __init__(self, gateway: ConsoleServices, inbox: Inbox, login: Login, api: Api, steering: Steering) -> None:
        self._gateway = gateway
        self._inbox = inbox
        self._api = api
        self.frame = Frame(login, self._waiting, lambda path: self.table.find("GET", path) is not None, api.table)
        self._elicitations = Elicitations(gateway, self.frame.plain)
        approvals = ApprovalPages(gateway, inbox, self.frame)
        tasks = TaskPages(gateway, self.frame, tasks=api.tasks, now=api.now, questions=api.questions, inbox=inbox)
        asked = InboxPages(gateway, self.frame, inbox, api.questions)
        tried = TryPages(inbox.records, self.frame, api.calls)
        self.table = RouteTable(
            [
                *self._elicitation_routes(),
                *approvals.routes(),
                *tasks.routes(),
                *asked.routes(),
                *tried.routes(),
                *steering.pages(self.frame),
            ]
        )

    async def _waiting(self, who: Approver) -> int:
        """How much waits in this person's inbox."""
        questions = len(self._api.questions.asked_of(who))
        return questions + (await self._inbox.records.pending_count(who) if who.may(Permission.SEE) else 0)

    def _elicitation_routes(self) -> tuple[Route, ...]:
        return (
            page_route("/elicitations/{id}", Access.LOGIN, self._elicitation),
            page_route("/elicitations/{id}/{word}", Access.LOGIN, self._elicitation),
            form_route("/elicitations/{id}/{word}", Access.LOGIN, self._elicitation),
        )

    async def _elicitation(self, visit: Visit) -> Answer:
        return await self._elicitations.answer(visit.request, visit.who, visit.values["id"], visit.values.get("word"))

    def login(
        self,
        request: WebRequest,
        code: str,
        note: str | None,
        status: int,
        back: str,
        *,
        passphrase: bool,
        provider: bool,
        fresh: bool,
    ) -> Answer:
        return self.frame.plain(
            "login.html",
            request,
            None,
            status=status,
            note=note,
            note_kind="bad",
            title="Log in",
            code=code,
            back=back,
            passphrase=passphrase,
            provider=provider,
            fresh=fresh,
        )
