"""The JSON API of the inbox, for scripts and the command line. The paths and their answers are in docs/approvals.md."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Approver, Verdict
from taskgate.core.identity.roles import Permission
from taskgate.dashboard import questions_api
from taskgate.dashboard.inbox import STATUS_OF, Inbox
from taskgate.dashboard.login import Login, Passphrase
from taskgate.dashboard.rows import approval_detail, grant_row, task_row
from taskgate.dashboard.scopes_api import ScopesApi
from taskgate.dashboard.tasks_api import ApiRoute, TasksApi
from taskgate.dashboard.web import Answer, EventAnswer, Route, WebRequest, find_route, json_answer, limit_of, problem
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.governance.standing_grants import GrantWish
from taskgate.ports.approval_channel import CallbackChannel

VERSION: Final = "v1"
"""The API whose shapes are a promise; what stands beside it without a version came before it."""
_DIGITS: Final = frozenset("0123456789")
_NOTHING_HERE: Final = "There is nothing at this address."


class Api:
    def __init__(self, gateway: Gateway, inbox: Inbox, login: Login, passphrase: Passphrase) -> None:
        self._passphrase = passphrase
        self._gateway = gateway
        self._inbox = inbox
        self._login = login
        self._store = inbox.store
        self.tasks = TasksApi(gateway)
        shared, tasks = self._routes(), self.tasks.routes()
        self.routes: tuple[ApiRoute, ...] = (
            *shared,
            Route("GET", "tasks", Permission.SEE, self._tasks),
            *(route for route in tasks if route.path != "tasks"),
        )
        self.versioned_routes: tuple[ApiRoute, ...] = (*shared, *tasks, *ScopesApi(gateway).routes())

    def _routes(self) -> tuple[ApiRoute, ...]:
        """What stands below `/api` and `/api/v1` alike."""
        return (
            Route("GET", "approvals", Permission.SEE, self._list),
            Route("GET", "approvals/*", Permission.SEE, self._show),
            Route("POST", "approvals/*/approve", Permission.DECIDE, self._decide),
            Route("POST", "approvals/*/deny", Permission.DECIDE, self._decide),
            Route("GET", "grants", Permission.SEE, self._grants),
            Route("POST", "grants/*/revoke", Permission.DECIDE, self._revoke),
            Route("GET", "pins", Permission.SEE, self._pins),
            Route("POST", "pins/accept", Permission.ACT, self._accept_pin),
            Route("GET", "questions", Permission.SEE, self._activity),
            Route("GET", "waterfall", Permission.SEE, self._activity),
            Route("GET", "servers", Permission.SEE, self._activity),
            Route("POST", "questions/*", Permission.ACT, self._answer_question),
            Route("POST", "login-links", Permission.SEE, self._login_link),
        )

    async def answer(self, request: WebRequest, who: Approver) -> Answer | EventAnswer:
        """One request of a person who is known."""
        parts = [part for part in request.path.split("/") if part][1:]
        routes = self.routes
        if parts[:1] == [VERSION]:
            parts, routes = parts[1:], self.versioned_routes
        route = find_route(routes, request.method, parts)
        if route is None:
            return problem(404, _NOTHING_HERE)
        if not who.may(route.needs):
            return problem(403, f"You may not do this here: it needs a role that may {route.needs.value}.")
        try:
            return await route.handler(request, who, parts)
        except (ValueError, TypeError, msgspec.DecodeError, msgspec.ValidationError) as error:
            return problem(400, f"The request cannot be read: {error}")
        except CallerError as error:
            return problem(400, error.message)

    async def _list(self, request: WebRequest, _who: Approver, _parts: list[str]) -> Answer:
        rows, after = await self._inbox.rows(
            everything=request.query.get("all") in ("1", "true"),
            after=request.query.get("after"),
            limit=limit_of(request),
        )
        return json_answer(rows, headers=((b"x-next-after", after.encode("ascii")),) if after is not None else ())

    async def _show(self, _request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        shown = await self._inbox.shown(parts[1], who)
        if shown is None:
            return problem(404, "There is no such approval.")
        return json_answer({**approval_detail(shown.row, shown.card), "may_decide": shown.may_decide})

    async def _decide(self, request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        said = request.json()
        given = _text(said, "passphrase") or ""
        if request.locked and parts[2] == "approve" and not await self._passphrase.fits(given):
            return json_answer({"error": "passphrase_needed", "message": "Approving needs the passphrase."}, 403)
        unknown = set(said) - {"reason", "arguments_digest", "grant", "passphrase"}
        if unknown:
            return problem(400, f"Unknown keys: {', '.join(sorted(unknown))}.")
        ruling = await self._inbox.decide(
            who,
            parts[1],
            Verdict(parts[2]),
            reason=_text(said, "reason") or "",
            channel=PAGE_CHANNEL if who.logged_in else "api",
            digest=_text(said, "arguments_digest"),
            grant=_wish(said.get("grant")),
        )
        body: dict[str, Any] = {"id": parts[1], "message": ruling.text}
        if ruling.held is not None:
            body["state"] = ruling.held.approval.state.value
        if ruling.refusal:
            body["error"] = ruling.refusal
        if ruling.grant is not None:
            body["grant"] = grant_row(ruling.grant)
        return json_answer(body, STATUS_OF.get(ruling.refusal, 409))

    async def _grants(self, request: WebRequest, _who: Approver, _parts: list[str]) -> Answer:
        everything = request.query.get("all") in ("1", "true")
        return json_answer([grant_row(grant) for grant in await self._store.grants(all_of_them=everything)])

    async def _revoke(self, _request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        grant = await self._inbox.approvals.grants.revoke(who, parts[1])
        return json_answer(grant_row(grant)) if grant is not None else problem(404, "There is no such grant.")

    async def _tasks(self, request: WebRequest, _who: Approver, _parts: list[str]) -> Answer:
        page = await self._store.page(None, after=request.query.get("after"), limit=limit_of(request))
        headers = ((b"x-next-after", page.after.encode("ascii")),) if page.after is not None else ()
        return json_answer([task_row(task) for task in page.tasks], headers=headers)

    async def _pins(self, _request: WebRequest, _who: Approver, _parts: list[str]) -> Answer:
        return json_answer(self._gateway.pins.changed_rows())

    async def _accept_pin(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        said = request.json()
        server, tool, digest = _text(said, "server"), _text(said, "tool"), _text(said, "digest")
        if server is None or tool is None or digest is None:
            return problem(400, "Say which: server, tool and the digest of the definition you saw.")
        done = await self._gateway.pins.accept(server, tool, digest, who.id)
        if not done:
            return problem(409, "There is no such changed definition (any more). Look again.")
        return json_answer({"server": server, "tool": tool, "digest": digest, "accepted_by": who.id})

    async def _activity(self, request: WebRequest, _who: Approver, parts: list[str]) -> Answer:
        if parts[0] == "questions":
            return questions_api.list_questions(self._gateway)
        if parts[0] == "servers":
            return questions_api.servers_json(self._gateway)
        return questions_api.waterfall_json(self._gateway, request)

    async def _answer_question(self, request: WebRequest, _who: Approver, parts: list[str]) -> Answer:
        return await questions_api.answer_question(self._gateway, request, parts[1])

    async def _login_link(self, _request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        return json_answer({"url": self.login_url(who)})

    def login_url(self, who: Approver) -> str:
        base = self._inbox.approvals.page_url("").removesuffix("/approvals/")
        return f"{base}/login?code={self._login.new_code(who.id)}"

    async def callback(self, request: WebRequest, workflow: str, number: str) -> Answer:
        """A signed word from outside; the channel checks the signature."""
        channels = self._inbox.approvals.announcer.channels.get(workflow, ())
        index = int(number) if number in _DIGITS else -1
        channel = channels[index] if 0 <= index < len(channels) else None
        if not isinstance(channel, CallbackChannel):
            return problem(404, _NOTHING_HERE)
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
