"""The console and the JSON API: one table of routes, and the checks that every request passes before its handler runs.

Bearer tokens come from scripts, cookies from browsers. A request with a cookie changes something only if it also carries the form
token of one of our pages.
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from taskgate import clock
from taskgate.access.routes import RouteKind
from taskgate.core.access import Access
from taskgate.core.delivery import safe_return
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.approval import Approver
from taskgate.core.identity import permissions_of
from taskgate.dashboard.accounts import CALLBACK, AccountPages, login_needed
from taskgate.dashboard.api import NOTHING_HERE, Api
from taskgate.dashboard.frame import templates_compiled
from taskgate.dashboard.login import CONNECT_COOKIE, LOGIN_COOKIE, Fits, Login, Passphrase
from taskgate.dashboard.pages import LiveUpdates, Steering
from taskgate.dashboard.records import Inbox, Records
from taskgate.dashboard.routes import (
    Configuration,
    Found,
    LoginCookie,
    Route,
    RouteTable,
    Visit,
    form_route,
    get,
    page_route,
    refusal,
)
from taskgate.dashboard.web import (
    Answer,
    BodyTooLarge,
    EventAnswer,
    Receive,
    Scope,
    Send,
    WebRequest,
    problem,
    read_request,
    redirect,
    send_answer,
)
from taskgate.gateway.gateway import Gateway
from taskgate.ports.credentials import IssuerUnavailable, LoginRefused, PeopleLogin
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.dashboard.pages import Pages

STATIC: Final = "/static/"
START: Final = "/now"
LOGIN_BEGIN: Final = "/login/oidc"
LOGIN_CALLBACK: Final = "/login/callback"
_METHODS: Final = ("GET", "POST")
_REALM: Final = ((b"www-authenticate", b"Bearer"),)

ByBearer = Callable[[bytes], Awaitable[Approver | None]]
Provider = Callable[[], PeopleLogin | None]
"""Where people log in by the configuration of now."""


class Dashboard:
    """`by_bearer` says whose a bearer token is. Host and Origin have been checked by the site that it is a part of."""

    def __init__(
        self,
        gateway: Gateway,
        secret: bytes,
        by_bearer: ByBearer,
        fits: Fits | None,
        provider: Provider,
        *,
        configuration: Configuration,
    ) -> None:
        self._gateway = gateway
        self._by_bearer = by_bearer
        self.login = Login(secret, self._named, self._is_https, gateway.tasks.store)
        self._provider = provider
        records = Records(gateway)
        self._inbox = Inbox(gateway.approvals, records)
        self._passphrase = Passphrase(fits)
        self.live = LiveUpdates(gateway.events)
        self._steering = Steering(gateway, records, configuration)
        self.accounts = AccountPages(gateway.accounts, records, self.login, self._is_https)
        events = get("/events", Access.LOGIN, self._events, "Which kinds of things change, as they do.", stream=True)
        more = (events, *self._steering.routes(), *self.accounts.routes())
        self.api = Api(gateway, self._inbox, self.login, self._passphrase, more)
        self._entry = RouteTable(self._entry_routes())

    @cached_property
    def _pages(self) -> Pages:
        # The template engine is loaded with the first page, not with the gateway.
        from taskgate.dashboard.pages import Pages

        return Pages(self._gateway, self._inbox, self.login, self.api, self._steering)

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route of the console and the API."""
        return (*self._entry.routes, *self.api.table.routes, *self._pages.table.routes)

    def _named(self, name: str) -> Approver | None:
        governing = self._gateway.plan.value.governing
        if name in governing.roles:
            return governing.approvers.get(name, Approver(name, governing.roles[name]))
        return governing.approvers.get(name)

    def _is_https(self) -> bool:
        url = self._gateway.plan.value.governing.public_url
        return url is not None and url.startswith("https:")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Around one request: whatever breaks is answered and logged."""
        try:
            request = await read_request(scope, receive)
            answer = await self._answer(request)
        except BodyTooLarge:
            answer = problem(413, "The request is too large.")
        except TaskgateError as error:
            answer = problem(503, error.message)
        except Exception as fault:  # one request: it breaks for this visitor only
            log.error("page failed", path=scope["path"], exc_info=fault)
            answer = problem(500, "Something went wrong inside the gateway; its log says more.")
        await send_answer(send, answer)

    async def _answer(self, request: WebRequest) -> Answer | EventAnswer:
        path = request.path
        if request.method not in _METHODS and not (request.method == "DELETE" and path.startswith("/api/v1/")):
            return Answer(405, headers=((b"allow", b"GET, POST"),))
        found = self._entry.find(request.method, path)
        if found is None and (path == "/api" or path.startswith("/api/")):
            return await self._answer_api(request, self.api.find(request))
        if found is None or found.route.kind in (RouteKind.PAGE, RouteKind.FORM):
            if _is_meant_for_mcp(request):
                return problem(404, f"There is nothing at {request.path[:80]}. MCP is served at /mcp.")
            await templates_compiled()
            return await self._answer_page(request, found or self._pages.table.find(request.method, path))
        return await found.route.handler(Visit(request, None, found.values))

    async def _answer_api(self, request: WebRequest, found: Found | None) -> Answer | EventAnswer:
        bearer = request.headers.get(b"authorization")
        cookie = request.cookie(self.login.cookie_name)
        who = await self._by_bearer(bearer) if bearer is not None else await self.login.who(cookie)
        if who is None:
            if found is not None and found.route.anonymous and bearer is None:
                answer = await self.api.answer(found, Visit(request, None, found.values))
                if isinstance(answer, EventAnswer):
                    return answer
            return _unknown(401 if bearer is None else 403)
        if request.method != "GET":
            if request.method == "POST" and not request.is_json:
                return problem(415, "Send application/json.")
            token = request.headers.get(b"x-form-token", b"").decode("latin-1")
            if bearer is None and not self.login.good_form(cookie, token):
                return problem(403, "A session of the pages needs the header x-form-token for this.")
        if found is None:
            return problem(404, NOTHING_HERE)
        needed = found.route.access.permission
        if needed is not None and not who.may(needed):
            return problem(403, refusal(needed))
        locked = bearer is not None and self._passphrase.needed_by(who)
        return await self.api.answer(found, Visit(replace(request, locked=locked), who, found.values))

    async def _events(self, visit: Visit) -> Answer | EventAnswer:
        """The stream of an open page. It ends when the login or the token behind it does."""
        bearer, cookie = visit.request.headers.get(b"authorization"), visit.request.cookie(self.login.cookie_name)

        async def still_may() -> bool:
            now = await self.login.who(cookie) if bearer is None else self._named(visit.who.id)
            return now is not None and permissions_of(now.roles) >= permissions_of(visit.who.roles)

        last_id = visit.request.headers.get(b"last-event-id", b"").decode("latin-1") or None
        if self.live.is_full:
            return problem(503, "Too many pages are open at this gateway.")
        return EventAnswer(self.live.stream(last_id, visit.who, still_may))

    async def _answer_page(self, request: WebRequest, found: Found | None) -> Answer | EventAnswer:
        pages = self._pages
        cookie = request.cookie(self.login.cookie_name)
        guarded = request.method == "POST" and (found is None or found.route.kind is RouteKind.FORM)
        if guarded and not self.login.good_form(cookie, request.form().get("form_token")):
            return pages.frame.message(
                request, None, 403, "Try again", "This form is too old or not from here. Open the page again."
            )
        access = found.route.access if found is not None else Access.LOGIN
        if found is not None and access is Access.PUBLIC:
            person = await self.login.who(cookie) if found.route.optional_login else None
            return await found.route.handler(Visit(request, person, found.values))
        who = await self._logged_in(request, found)
        if who is None:
            return self._login_page(request, status=401) if request.method == "POST" else _to_login(request)
        if found is None:
            return pages.frame.message(request, who, 404, "Nothing here", "There is nothing at this address.")
        if access.permission is not None and not who.may(access.permission):
            text = f"This needs a role that may {access.permission.value}. A page that is meant for you opens by its own link."
            return pages.frame.message(request, who, 403, "Not you", text)
        return await found.route.handler(Visit(request, who, found.values))

    async def _logged_in(self, request: WebRequest, found: Found | None) -> Approver | None:
        if found is not None and found.route.cookie is LoginCookie.CONNECT:
            return await self.login.who_connects(request.cookie(CONNECT_COOKIE))
        return await self.login.who(request.cookie(self.login.cookie_name))

    # Entry: what is served to people who are not logged in yet, and what leads there and back

    def _entry_routes(self) -> tuple[Route, ...]:
        public, login = Access.PUBLIC, Access.LOGIN
        return (
            Route(
                method="GET",
                path=STATIC + "{name}",
                access=public,
                kind=RouteKind.DOCUMENT,
                handler=self._static,
                summary="Style sheet and script of the pages.",
            ),
            page_route("/login", public, self._log_in, "The login page."),
            form_route("/login", public, self._log_in, "Log in with a token or a one-time code."),
            page_route(LOGIN_BEGIN, public, self._on_the_way_in, "Begin a login with the OpenID provider."),
            page_route(
                LOGIN_CALLBACK, public, self._on_the_way_in, "Where the OpenID provider sends the browser back to."
            ),
            form_route("/logout", login, self._log_out, "Log out here, or everywhere."),
            page_route("/", login, self._home, "Leads to the first page of the console."),
            self.api.webhook_route(),
            *self.accounts.page_routes(),
        )

    async def _static(self, visit: Visit) -> Answer:
        from taskgate.dashboard.frame import static_answer

        accepted = visit.request.headers.get(b"accept-encoding", b"")
        return static_answer(visit.values["name"], accepted) or Answer(404)

    async def _home(self, _visit: Visit) -> Answer:
        return redirect(START)

    async def _log_out(self, visit: Visit) -> Answer:
        request = visit.request
        everywhere = request.form().get("everywhere") == "1"
        ended = await self.login.end(request.cookie(self.login.cookie_name), everywhere=everywhere)
        return redirect("/login", (b"set-cookie", ended))

    def _login_page(self, request: WebRequest, code: str = "", note: str | None = None, status: int = 200) -> Answer:
        wished = request.form().get("next") if request.method == "POST" else request.query.get("next")
        back = safe_return(wished) or ""
        return self._pages.login(
            request,
            code,
            note,
            status,
            back,
            passphrase=self._passphrase.is_set,
            provider=self._provider() is not None,
            fresh=request.query.get("fresh") == "1",
        )

    async def _on_the_way_in(self, visit: Visit) -> Answer:
        request, provider = visit.request, self._provider()
        if provider is None:
            return self._login_page(request, status=404)
        try:
            return await (self._to_provider if request.path == LOGIN_BEGIN else self._from_provider)(request, provider)
        except LoginRefused as refused:
            note = f"You are not logged in: {refused}. Try again."
        except IssuerUnavailable as fault:
            log.warning("login with the provider failed", why=str(fault))
            note = "The provider where people log in cannot be reached or refused; the gateway's log says more."
        return self._login_page(request, note=note, status=403)

    async def _to_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        back, fresh = safe_return(request.query.get("next")) or START, request.query.get("fresh") == "1"
        address, pending = await provider.begin(self._callback_url(), back, fresh=fresh)
        return redirect(address, (b"set-cookie", self.login.pending_cookie(pending)))

    async def _from_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        """The browser comes from another site, so it would not send a Strict cookie on a redirect: our own page leads on."""
        pending = self.login.pending(request.cookie(LOGIN_COOKIE))
        if pending is None:
            raise LoginRefused("it took too long, or began in another browser")
        identity, at = await provider.finish(pending, request.query, self._callback_url())
        self._gateway.people.note(identity)
        who = Approver(identity.principal, identity.roles, identity.may_call)
        log.info("logged in", who=who.id, by="provider")
        cookies = (await self.login.begin(who, at), self.login.no_pending_cookie())
        page = self._pages.frame.message(request, None, 200, "Logged in", "You are being taken on.")
        on = (b"refresh", f"0; url={pending.back}".encode("ascii", "ignore"))
        return replace(page, headers=(*page.headers, on, *((b"set-cookie", cookie) for cookie in cookies)))

    def _callback_url(self) -> str:
        return f"{self._gateway.address.base()}{LOGIN_CALLBACK}"

    async def _log_in(self, visit: Visit) -> Answer:
        """A GET only shows the form, so that nothing that merely opens links can use a code up."""
        request = visit.request
        if request.method != "POST":
            return self._login_page(request, request.query.get("code", ""))
        form = request.form()
        if form.get("code"):
            who = await self.login.redeem(form["code"])
            note = "This link was used already or is too old. Ask for a new one with: taskgate approvals login"
        else:
            who = await self._by_bearer(b"Bearer " + form.get("token", "").strip().encode())
            note = "This is not a token of this gateway."
        if who is None:
            log.warning("login refused")
            return self._login_page(request, note=note, status=403)
        if self._passphrase.needed_by(who) and not await self._passphrase.fits(form.get("passphrase", "")):
            log.warning("login refused", who=who.id)
            return self._login_page(request, note="The passphrase does not fit.", status=403)
        log.info("logged in", who=who.id)
        back = safe_return(form.get("next")) or START
        return redirect(back, (b"set-cookie", await self.login.begin(who, int(clock.wall()))))


def _unknown(status: int) -> Answer:
    text = b'{"error":"Only people who are known may come here. Send a bearer token of one."}'
    return Answer(status, text, "application/json", _REALM if status == 401 else ())


def _is_meant_for_mcp(request: WebRequest) -> bool:
    """A client with a wrong address posts JSON where only forms are posted, or looks for an authorization server."""
    if request.path.startswith("/.well-known/"):
        return True
    return request.method == "POST" and request.is_json


_LED_ON: Final = "same_site=1"


def _to_login(request: WebRequest) -> Answer:
    """To the login page, which leads back to the address that was asked for."""
    if request.path == CALLBACK:
        return login_needed()
    query = "&".join(part for part in request.raw_query.split("&") if part and part != _LED_ON)
    wished = safe_return(f"{request.path}?{query}" if query else request.path)
    came_from = request.headers.get(b"sec-fetch-site")
    if came_from == b"cross-site" and wished is not None and _LED_ON not in request.raw_query:
        # A link of another site led here, so the browser kept the Strict cookie back. It sends it when our own page leads on.
        return _leads_on(f"{wished}{'&' if query else '?'}{_LED_ON}")
    if wished is None or wished in ("/", START):
        return redirect("/login")
    return redirect(f"/login?next={quote(wished, safe='/')}")


def _leads_on(where: str) -> Answer:
    text = f'<!doctype html><title>Taskgate</title><a href="{html.escape(where)}">Go on</a>'
    return Answer(200, text.encode(), headers=((b"refresh", f"0; url={where}".encode("ascii")),))
