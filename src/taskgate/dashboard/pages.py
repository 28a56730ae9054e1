"""All pages of the console in one table of routes."""

from __future__ import annotations

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.api import Api
from taskgate.dashboard.approval_pages import ApprovalPages
from taskgate.dashboard.definition_pages import DefinitionPages
from taskgate.dashboard.elicitation_pages import ElicitationPages
from taskgate.dashboard.find_pages import FindPages
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.inbox_pages import InboxPages
from taskgate.dashboard.login import Login
from taskgate.dashboard.overview_pages import OverviewPages
from taskgate.dashboard.routes import RouteTable
from taskgate.dashboard.steering import Steering
from taskgate.dashboard.subject_numbers import SubjectNumbers
from taskgate.dashboard.subject_pages import SubjectPages
from taskgate.dashboard.task_list_pages import TaskListPages
from taskgate.dashboard.task_pages import TaskPages
from taskgate.dashboard.try_pages import TryPages
from taskgate.gateway.services.console import ConsoleServices


class Pages:
    def __init__(self, services: ConsoleServices, inbox: Inbox, login: Login, api: Api, steering: Steering) -> None:
        self._records = inbox.records
        self._questions = api.questions
        self.frame = Frame(login, self._waiting, lambda: self.table, api.table)
        frame = self.frame
        numbers = SubjectNumbers(services.calls.history, inbox.records, api.questions)
        self.table = RouteTable(
            [
                *OverviewPages(api.overview, steering.history, frame).routes(),
                *TaskListPages(
                    tasks=api.tasks, scripts=api.scripts, history=steering.history, records=inbox.records, frame=frame
                ).routes(),
                *TaskPages(
                    tasks=api.tasks, history=steering.history, reruns=api.reruns, questions=api.questions, frame=frame
                ).routes(),
                *SubjectPages(
                    history=services.calls.history,
                    catalogs=services.servers.catalogs,
                    pins=services.decisions.pins,
                    records=inbox.records,
                    numbers=numbers,
                    rules=steering.rules,
                    frame=frame,
                ).routes(),
                *InboxPages(
                    approvals=api.approvals, inbox=inbox, questions=api.questions, history=steering.history, frame=frame
                ).routes(),
                *ApprovalPages(api.approvals, inbox, frame).routes(),
                *DefinitionPages(api.definitions, frame).routes(),
                *ElicitationPages(
                    services.decisions.pages,
                    services.decisions.activity.inbox,
                    services.plan,
                    services.calls.tasks.store.now_ms,
                    frame,
                ).routes(),
                *FindPages(api.finder, frame).routes(),
                *TryPages(inbox.records, frame, api.calls).routes(),
                *steering.pages(frame, numbers),
            ]
        )

    async def _waiting(self, user: Approver) -> int:
        """The number of open approvals and questions in a person's inbox."""
        questions = self._questions.count(user)
        return questions + (await self._records.pending_count(user) if user.may(Permission.SEE) else 0)
