"""The JSON API of the inbox, for scripts and the command line. The paths and their answers are in docs/approval-channels.md."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from taskgate.access.authorize import Authorizer
from taskgate.access.routes import RouteKind
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.console_calls import ConsoleCalls
from taskgate.dashboard.inbox import STATUS_OF, Inbox
from taskgate.dashboard.login import Login
from taskgate.dashboard.now_api import NowApi
from taskgate.dashboard.openapi import openapi_document
from taskgate.dashboard.passphrase import Passphrase
from taskgate.dashboard.personal_data_api import DataApi
from taskgate.dashboard.questions_api import QuestionsApi, question_row
from taskgate.dashboard.routes import (
    ROWS,
    TEXT,
    Found,
    Route,
    RouteTable,
    Visit,
    closed_object,
    get,
    post,
)
from taskgate.dashboard.rows import approval_detail, grant_row, task_row
from taskgate.dashboard.scopes_api import ScopesApi
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.tokens_api import PeopleApi
from taskgate.dashboard.web import Answer, EventAnswer, WebRequest, json_answer, limit_of, problem
from taskgate.gateway.governance.standing_grants import GrantWish
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.approval_channel import CallbackChannel
from taskgate.ports.store_answers import TaskFilter

VERSION: Final = "v1"
"""The API whose shapes are a promise; what stands beside it without a version came before it."""
_DECISION: Final = closed_object(
    reason=TEXT,
    arguments_digest=TEXT,
    passphrase=TEXT,
    grant=closed_object(
        minutes={"type": "integer"}, exact_arguments={"type": "boolean"}, whole_scope={"type": "boolean"}
    ),
)
_DEFINITION: Final = closed_object(("server", "tool", "digest"), server=TEXT, tool=TEXT, digest=TEXT)
_PAGED: Final = {
    "after": "start of the next page, from the header x-next-after",
    "limit": "maximum number of rows, up to 1000",
}
_DIGITS: Final = frozenset("0123456789")
NOTHING_HERE: Final = "Page not found."


class Api:
    def __init__(
        self,
        gateway: ConsoleServices,
        inbox: Inbox,
        login: Login,
        passphrase: Passphrase,
        authorizer: Authorizer,
        *,
        more: Iterable[Route] = (),
    ) -> None:
        self._authorizer = authorizer
        self._passphrase = passphrase
        self._gateway = gateway
        self._inbox = inbox
        self._login = login
        self._records = inbox.records
        self.tasks = TasksApi(gateway, inbox.records)
        self.now = NowApi(gateway, inbox.records)
        self.calls = ConsoleCalls(gateway)
        scopes = ScopesApi(gateway, inbox.records)
        self.questions = QuestionsApi(gateway)
        self.table = RouteTable(
            [
                *self._routes(),
                *self.tasks.routes(),
                *self.now.routes(),
                *self.calls.routes(),
                *scopes.routes(),
                *self.questions.routes(),
                *PeopleApi(gateway).routes(),
                *DataApi(gateway).routes(),
                *more,
            ]
        )

    async def answer(self, found: Found, visit: Visit) -> Answer | EventAnswer:
        """One authorized request."""
        try:
            return await found.route.handler(visit)
        except (ValueError, TypeError, msgspec.DecodeError, msgspec.ValidationError) as error:
            return problem(400, f"Invalid request: {error}")
        except CallerError as error:
            return problem(400, error.message)

    def find(self, request: WebRequest) -> Found | None:
        """What stands at `/api/...` without a version is the same as at `/api/v1/...`."""
        found = self.table.find(request.method, request.path)
        if found is None and not request.path.startswith(f"/api/{VERSION}/"):
            found = self.table.find(request.method, f"/api/{VERSION}" + request.path.removeprefix("/api"))
        return found

    def _routes(self) -> tuple[Route, ...]:
        see, decide = Access.SEE, Access.DECIDE
        everything = {"all": "1 includes closed ones"}
        return (
            get("/openapi.json", Access.LOGIN, self._openapi, "The OpenAPI document of this API."),
            get(
                "/approvals",
                see,
                self._list,
                "Calls that are held for approval.",
                answer=ROWS,
                query=everything | _PAGED,
                command="taskgate approvals list",
            ),
            get(
                "/inbox",
                Access.LOGIN,
                self._inbox_rows,
                "Your open approvals and questions.",
                command="taskgate approvals list",
            ),
            get(
                "/approvals/{id}",
                see,
                self._show,
                "One held call with its arguments; redacted fields are marked.",
                command="taskgate approvals show {id}",
            ),
            post(
                "/approvals/{id}/approve",
                decide,
                self._approve,
                "Approve a held call.",
                _DECISION,
                command="taskgate approvals approve {id}",
            ),
            post(
                "/approvals/{id}/deny",
                decide,
                self._deny,
                "Deny a held call.",
                _DECISION,
                command="taskgate approvals deny {id}",
            ),
            get("/grants", see, self._grants, "Standing grants.", answer=ROWS, query=everything),
            post("/grants/{id}/revoke", decide, self._revoke, "Revoke a standing grant.", closed_object()),
            get(
                "/pins",
                see,
                self._pins,
                "Tool definitions that differ from their pins.",
                answer=ROWS,
                command="taskgate pins list",
            ),
            post(
                "/pins/accept",
                Access.ACT,
                self._accept_pin,
                "Accept a changed definition.",
                _DEFINITION,
                command="taskgate pins accept TOOL",
            ),
            post(
                "/login-links",
                see,
                self._login_link,
                "Create a one-time login link for the console.",
                closed_object(),
                command="taskgate approvals login",
            ),
            Route(
                method="GET",
                path="/api/tasks",
                access=see,
                kind=RouteKind.API,
                handler=self._tasks,
                answer=ROWS,
                summary="Tasks of all callers in the format of version 0.1; see /api/v1/tasks.",
                query=_PAGED,
            ),
        )

    async def _openapi(self, _visit: Visit) -> Answer:
        from taskgate import __version__

        return json_answer(openapi_document(self.table.routes, __version__))

    async def _list(self, visit: Visit) -> Answer:
        request = visit.request
        rows, after = await self._inbox.rows(
            visit.who,
            everything=request.query.get("all") in ("1", "true"),
            after=request.query.get("after"),
            limit=limit_of(request),
        )
        return json_answer(rows, headers=((b"x-next-after", after.encode("ascii")),) if after is not None else ())

    async def _inbox_rows(self, visit: Visit) -> Answer:
        rows, _ = await self._inbox.rows(visit.who, everything=False, after=None, limit=limit_of(visit.request))
        questions = [question_row(waiting) for waiting in self.questions.asked_of(visit.who)]
        return json_answer({"approvals": rows if visit.who.may(Permission.SEE) else [], "questions": questions})

    async def _show(self, visit: Visit) -> Answer:
        shown = await self._inbox.shown(visit.values["id"], visit.who)
        if shown is None:
            return problem(404, "Approval not found.")
        unaccepted = self._gateway.pins.changes_of(shown.row["server"], shown.row["name"])
        detail = {**approval_detail(shown.row, shown.card), "unaccepted": unaccepted, "may_decide": shown.may_decide}
        return json_answer(detail)

    async def _approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.APPROVE)

    async def _deny(self, visit: Visit) -> Answer:
        return await self._decide(visit, Verdict.DENY)

    async def _decide(self, visit: Visit, verdict: Verdict) -> Answer:
        request, who, approval_id = visit.request, visit.who, visit.values["id"]
        said = request.json()
        given = _text(said, "passphrase") or ""
        if request.locked and verdict is Verdict.APPROVE and not await self._passphrase.fits(given):
            text = "Approving requires the passphrase: set $TASKGATE_PASSPHRASE, or decide on a terminal or on the approval's page."
            return json_answer({"error": "passphrase_needed", "message": text}, 403)
        unknown = set(said) - {"reason", "arguments_digest", "grant", "passphrase"}
        if unknown:
            return problem(400, f"Unknown keys: {', '.join(sorted(unknown))}.")
        ruling = await self._inbox.decide(
            who,
            approval_id,
            verdict,
            reason=_text(said, "reason") or "",
            channel=PAGE_CHANNEL if who.logged_in else "api",
            digest=_text(said, "arguments_digest"),
            grant=_wish(said.get("grant")),
        )
        body: dict[str, Any] = {"id": approval_id, "message": ruling.text}
        if ruling.held is not None:
            body["state"] = ruling.held.approval.state.value
        if ruling.refusal:
            body["error"] = ruling.refusal
        if ruling.starts is not None:
            body["starts"] = ruling.starts
        if ruling.grant is not None:
            body["grant"] = grant_row(ruling.grant)
        return json_answer(body, STATUS_OF.get(ruling.refusal, 409))

    async def _grants(self, visit: Visit) -> Answer:
        everything = visit.request.query.get("all") in ("1", "true")
        return json_answer(
            [grant_row(grant) for grant in await self._records.grants(visit.who, all_of_them=everything)]
        )

    async def _revoke(self, visit: Visit) -> Answer:
        grant = await self._records.revoke_grant(visit.who, visit.values["id"])
        return json_answer(grant_row(grant)) if grant is not None else problem(404, "Grant not found.")

    async def _tasks(self, visit: Visit) -> Answer:
        request = visit.request
        page = await self._records.tasks(
            visit.who, TaskFilter(), only=None, after=request.query.get("after"), limit=limit_of(request)
        )
        headers = ((b"x-next-after", page.after.encode("ascii")),) if page.after is not None else ()
        return json_answer([task_row(task) for task in page.tasks], headers=headers)

    async def _pins(self, _visit: Visit) -> Answer:
        return json_answer(self._gateway.pins.changed_rows())

    async def _accept_pin(self, visit: Visit) -> Answer:
        who, said = visit.who, visit.request.json()
        server, tool, digest = _text(said, "server"), _text(said, "tool"), _text(said, "digest")
        if server is None or tool is None or digest is None:
            return problem(400, "Send server, tool and the digest of the definition that you reviewed.")
        done = await self._gateway.pins.accept(server, tool, digest, who.id)
        if not done:
            return problem(
                409, "No changed definition with this digest. It may have changed again: review the current one."
            )
        return json_answer({"server": server, "tool": tool, "digest": digest, "accepted_by": who.id})

    async def _login_link(self, visit: Visit) -> Answer:
        authorized = visit.authorized
        facts = self._login.facts_of(authorized.credential, self._authorizer.credentials)
        return json_answer({"url": self._login_at(await self._login.new_code(visit.who.id, facts))})

    def printed_login_url(self, who: Approver) -> str:
        """For a person at the terminal of this gateway."""
        return self._login_at(self._login.printed_code(who.id))

    def _login_at(self, code: str) -> str:
        base = self._inbox.approvals.page_url("").removesuffix("/approvals/")
        return f"{base}/login?code={code}"

    def webhook_route(self) -> Route:
        return Route(
            method="POST",
            path="/api/approvals/callback/{workflow}/{number}",
            access=Access.PUBLIC,
            kind=RouteKind.WEBHOOK,
            handler=self._callback,
            summary="A decision from an external service; the workflow's channel verifies its signature.",
        )

    async def _callback(self, visit: Visit) -> Answer:
        request, number = visit.request, visit.values["number"]
        channels = self._inbox.approvals.announcer.channels.get(visit.values["workflow"], ())
        index = int(number) if number in _DIGITS else -1
        channel = channels[index] if 0 <= index < len(channels) else None
        if not isinstance(channel, CallbackChannel):
            return problem(404, NOTHING_HERE)
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        reply = await asyncio.wait_for(channel.receive(headers, request.body), 30)
        return Answer(reply.status, reply.body, "application/json")


def _text(said: dict[str, Any], key: str) -> str | None:
    value = said.get(key)
    if value is not None and type(value) is not str:
        raise ValueError(f"{key} must be a string")
    return value


def _wish(said: Any) -> GrantWish | None:
    if said is None:
        return None
    if type(said) is not dict or set(said) - {"minutes", "exact_arguments", "whole_scope"}:
        raise ValueError("grant is an object with minutes, exact_arguments and whole_scope")
    minutes = said.get("minutes", 60)
    if type(minutes) is not int:
        raise ValueError("grant.minutes must be a whole number")
    return GrantWish(minutes * 60_000, said.get("exact_arguments") is True, said.get("whole_scope") is True)
