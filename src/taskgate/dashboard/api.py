"""The table of the JSON API: its routes, its versions, and how errors become replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from taskgate.core.errors import CallerError
from taskgate.core.identity.access import Access
from taskgate.dashboard.approvals_api import ApprovalsApi
from taskgate.dashboard.console_calls import ConsoleCalls
from taskgate.dashboard.definitions_api import DefinitionsApi
from taskgate.dashboard.find_api import FindApi, Menu
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.now_api import NowApi
from taskgate.dashboard.openapi import openapi_document
from taskgate.dashboard.overview_api import OverviewApi
from taskgate.dashboard.passphrase import Passphrase
from taskgate.dashboard.personal_data_api import DataApi
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.rerun_api import RerunApi
from taskgate.dashboard.routes import Found, Route, RouteTable, Visit, get
from taskgate.dashboard.scripts_api import ScriptsApi
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.tokens_api import PeopleApi
from taskgate.dashboard.web import Answer, EventAnswer, RequestProblem, WebRequest, json_answer, problem
from taskgate.gateway.services.console import ConsoleServices
from taskgate.mcp.json_errors import UNDECODABLE

VERSION: Final = "v1"
"""The version whose format is stable. Addresses without a version are aliases from before it."""


class Api:
    def __init__(
        self, services: ConsoleServices, inbox: Inbox, passphrase: Passphrase, *, menu: Menu, more: Iterable[Route] = ()
    ) -> None:
        records = inbox.records
        self.tasks = TasksApi(services.calls.tasks, services.plan, records, services.address)
        self.scripts = ScriptsApi(services.calls.tasks, records)
        self.now = NowApi(services.servers.upstreams, records)
        self.calls = ConsoleCalls(services.calls.requests)
        self.reruns = RerunApi(records, services.calls.history, self.calls, services.plan)
        self.questions = QuestionsApi(services.decisions.activity.inbox)
        self.approvals = ApprovalsApi(inbox, self.questions, passphrase)
        self.definitions = DefinitionsApi(services.decisions.pins, services.servers.catalogs)
        self.overview = OverviewApi(
            services.calls.history,
            services.decisions.pins,
            services.servers.upstreams,
            records,
            self.questions,
            nearly_spent=services.decisions.models.nearly_spent,
        )
        self.finder = FindApi(
            history=services.calls.history,
            catalogs=services.servers.catalogs,
            upstreams=services.servers.upstreams,
            records=records,
            menu=menu,
        )
        self.table = RouteTable(
            [
                *more,
                get("/openapi.json", Access.LOGIN, self._openapi, "The OpenAPI document of this API."),
                *self.approvals.routes(),
                *self.scripts.routes(),
                *self.definitions.routes(),
                *self.tasks.routes(),
                *self.now.routes(),
                *self.overview.routes(),
                *self.finder.routes(),
                *self.calls.routes(),
                *self.reruns.routes(),
                *self.questions.routes(),
                *PeopleApi(services.plan, services.people).routes(),
                *DataApi(
                    services.calls.tasks.store,
                    tasks=services.calls.tasks.methods,
                    accounts=services.servers.accounts,
                    people=services.people,
                    journal=services.calls.journal,
                    events=services.events,
                ).routes(),
            ]
        )

    async def answer(self, found: Found, visit: Visit) -> Answer | EventAnswer:
        """Run the handler of an authorized request."""
        try:
            _refuse_unknown_parameters(found.route, visit.request)
            return await found.route.handler(visit)
        except RequestProblem as refused:
            return problem(refused.status, refused.text)
        except (ValueError, TypeError, *UNDECODABLE) as error:
            return problem(400, f"Invalid request: {error}")
        except CallerError as error:
            return problem(400, error.message)

    def find(self, request: WebRequest) -> Found | None:
        """The route of a request; `/api/...` is an alias of `/api/v1/...`."""
        found = self.table.find(request.method, request.path)
        if found is None and not request.path.startswith(f"/api/{VERSION}/"):
            found = self.table.find(request.method, f"/api/{VERSION}" + request.path.removeprefix("/api"))
        return found

    async def _openapi(self, _visit: Visit) -> Answer:
        from taskgate import __version__

        return json_answer(openapi_document(self.table.routes, __version__))


def _refuse_unknown_parameters(route: Route, request: WebRequest) -> None:
    """Raises ValueError for a query parameter that the route does not declare: a misspelled filter would return every row."""
    unknown = sorted(request.query.keys() - route.query.keys())
    if unknown:
        known = ", ".join(route.query) if route.query else "none"
        raise ValueError(f"unknown query parameter {', '.join(unknown)}; this route has: {known}")
