"""The console and the JSON API: one table of routes, and the checks that every request passes before its handler runs.

Bearer tokens come from scripts, cookies from browsers. A request with a cookie changes something only if it also carries the form
token of one of our pages.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from taskgate import clock
from taskgate.access.authorize import AccessRefused, Authorized, Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.access.open_stream import CONNECTION, OpenStream
from taskgate.access.proof import CodeProof, HttpProof, Proof, ProviderProof, SessionProof
from taskgate.access.routes import RouteKind
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.return_path import safe_return
from taskgate.dashboard.accounts import CALLBACK, AccountPages, login_needed
from taskgate.dashboard.api import NOTHING_HERE, Api
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.frame import templates_compiled
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.live_updates import LiveUpdates
from taskgate.dashboard.login import CONNECT_COOKIE, LOGIN_COOKIE, Login, LoginFacts
from taskgate.dashboard.passphrase import Fits, Passphrase
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Found, LoginCookie, Route, RouteTable, Visit, form_route, get, page_route
from taskgate.dashboard.steering import Steering
from taskgate.dashboard.web import (
    Answer,
    BodyTooLarge,
    EventAnswer,
    Receive,
    Scope,
    Send,
    WebRequest,
    json_answer,
    problem,
    read_request,
    redirect,
    send_answer,
    send_stream,
)
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.credentials import IssuerUnavailable, LoginRefused, PeopleLogin
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.dashboard.pages import Pages

STATIC: Final = "/static/"
START: Final = "/now"
LOGIN_BEGIN: Final = "/login/oidc"
LOGIN_CALLBACK: Final = "/login/callback"
_METHODS: Final = ("GET", "POST")
_PROVIDER_AWAY: Final = (
    "Login failed: the identity provider is unavailable or refused the request. The gateway's log has details."
)
_USED_CODE: Final = "This link has expired or was already used. Create a new one with: taskgate approvals login"
Provider = Callable[[], PeopleLogin | None]
"""Where people log in by the configuration of now."""


class Dashboard:
    """Host and Origin have been checked by the site that it is a part of."""

    def __init__(
        self,
        gateway: ConsoleServices,
        secret: bytes,
        authorizer: Authorizer,
        responses: OpenResponses,
        *,
        fits: Fits | None,
        provider: Provider,
        configuration: Configuration,
    ) -> None:
        self._gateway = gateway
        self._authorizer = authorizer
        self._responses = responses
        self.login = Login(secret, self._named, self._is_https, gateway.tasks.store, gateway.events)
        self._provider = provider
        records = Records(gateway)
        self._inbox = Inbox(gateway.approvals, records)
        self._passphrase = Passphrase(fits)
        self.live = LiveUpdates(gateway.events)
        self._steering = Steering(gateway, records, configuration)
        self.accounts = AccountPages(gateway.accounts, records, self.login, self._is_https)
        events = get(
            "/events",
            Access.LOGIN,
            self._events,
            "Topics of changes, for open pages.",
            query={"after": "version of the open page; a change since then is sent immediately"},
            stream=True,
        )
        more = (events, *self._steering.routes(), *self.accounts.routes())
        self.api = Api(gateway, self._inbox, self.login, self._passphrase, authorizer, more=more)
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
        authorized = None
        try:
            request = await read_request(scope, receive)
            answer, authorized = await self._answer(request)
        except BodyTooLarge:
            answer = problem(413, "The request body is too large.")
        except TaskgateError as error:
            answer = problem(503, error.message)
        except Exception as fault:  # one request: it breaks for this visitor only
            log.error("page failed", path=scope["path"], exc_info=fault)
            answer = problem(500, "Internal error. The gateway's log has details.")
        if isinstance(answer, Answer):
            await send_answer(send, answer)
        else:
            assert authorized is not None
            await send_stream(OpenStream(scope[CONNECTION], send, self._responses, authorized), answer)

    async def _answer(self, request: WebRequest) -> tuple[Answer | EventAnswer, Authorized | None]:
        path = request.path
        if request.method not in _METHODS and not (request.method == "DELETE" and path.startswith("/api/v1/")):
            return Answer(405, headers=((b"allow", b"GET, POST"),)), None
        found = self._entry.find(request.method, path)
        is_api = path == "/api" or path.startswith("/api/")
        if found is None and is_api:
            found = self.api.find(request)
        if found is None and not is_api:
            found = self._pages.table.find(request.method, path)
        for_people = not is_api and (found is None or found.route.kind in (RouteKind.PAGE, RouteKind.FORM))
        if for_people and _is_meant_for_mcp(request):
            return problem(404, f"Not found: {request.path[:80]}. MCP is served at /mcp."), None
        kind = found.route.kind if found is not None else RouteKind.API if is_api else RouteKind.PAGE
        if kind in (RouteKind.PAGE, RouteKind.FORM):
            await templates_compiled()
        forged = self._is_forged(request, kind)
        if forged is not None:
            return forged, None
        try:
            authorized = await self._authorized(request, found, kind)
        except AccessRefused as refused:
            return await self._refused(request, kind, refused), None
        if found is None:
            return self._not_found(request, kind, authorized), None
        return await self._handled(request, found, authorized), authorized

    async def _authorized(self, request: WebRequest, found: Found | None, kind: RouteKind) -> Authorized:
        """The one way to a handler. What is not there looks the same to people who are not logged in as what is."""
        if found is None:
            return await self._authorizer.authorize(self._proof(request, kind, LoginCookie.CONSOLE), Access.LOGIN)
        route = found.route
        proof = self._proof(request, kind, route.cookie)
        scope = route.asked_scope(request)
        return await self._authorizer.authorize(proof, route.access, scope, anonymous=route.anonymous)

    def _proof(self, request: WebRequest, kind: RouteKind, which: LoginCookie) -> Proof:
        """Scripts show a bearer token or a certificate, browsers a session cookie; pages take cookies only."""
        came = request.came
        if which is LoginCookie.CONNECT:
            return SessionProof(request.cookie(CONNECT_COOKIE), self.login.connecting, came)
        cookie = request.cookie(self.login.cookie_name)
        if kind in (RouteKind.PAGE, RouteKind.FORM) or (cookie is not None and came.authorization is None):
            return SessionProof(cookie, self.login, came)
        return came

    def _is_forged(self, request: WebRequest, kind: RouteKind) -> Answer | None:
        """A refusal for what another site may have made a browser send."""
        if request.method == "GET" or kind not in (RouteKind.API, RouteKind.FORM, RouteKind.PAGE):
            return None
        cookie = request.cookie(self.login.cookie_name)
        if kind is not RouteKind.API:
            if kind is RouteKind.PAGE or self.login.good_form(cookie, request.form().get("form_token")):
                return None
            text = "This form has expired or did not come from this console. Reload the page and try again."
            return self._pages.frame.message(request, None, 403, "Form rejected", text)
        if request.method == "POST" and not request.is_json:
            return problem(415, "Send the content type application/json.")
        token = request.headers.get(b"x-form-token", b"").decode("latin-1")
        bearer = request.headers.get(b"authorization")
        if cookie is not None and bearer is None and not self.login.good_form(cookie, token):
            return problem(403, "Requests with a console session need the header x-form-token.")
        return None

    async def _handled(self, request: WebRequest, found: Found, authorized: Authorized) -> Answer | EventAnswer:
        person, route = authorized.person, found.route
        bearer = request.headers.get(b"authorization")
        locked = bearer is not None and person is not None and self._passphrase.needed_by(person)
        visit = Visit(replace(request, locked=locked), person, found.values, authorized, self.live.version)
        if route.kind is RouteKind.API:
            return await self.api.answer(found, visit)
        return await route.handler(visit)

    async def _visitor(self, request: WebRequest) -> Approver | None:
        """The person who is logged in, for the frame of a page that refuses the request."""
        try:
            proof = self._proof(request, RouteKind.PAGE, LoginCookie.CONSOLE)
            return (await self._authorizer.authorize(proof, Access.LOGIN)).person
        except AccessRefused:
            return None

    def _not_found(self, request: WebRequest, kind: RouteKind, authorized: Authorized) -> Answer:
        if kind is RouteKind.API:
            return problem(404, NOTHING_HERE)
        return self._pages.frame.message(
            request, authorized.person, 404, "Page not found", "Check the address, or go to the start page."
        )

    async def _refused(self, request: WebRequest, kind: RouteKind, refused: AccessRefused) -> Answer:
        if kind not in (RouteKind.PAGE, RouteKind.FORM):
            return self._refused_script(refused)
        if refused.reason is AccessRefusal.NO_CREDENTIAL:
            return self._login_page(request, status=401) if request.method == "POST" else _to_login(request)
        title = "Page not found" if refused.status == 404 else "Access denied"
        return self._pages.frame.message(
            request, await self._visitor(request), refused.status, title, refused.text, reason=refused.reason.value
        )

    def _refused_script(self, refused: AccessRefused) -> Answer:
        headers: list[tuple[bytes, bytes]] = []
        if refused.status == 401:
            error = "" if refused.reason is AccessRefusal.NO_CREDENTIAL else "invalid_token"
            headers.append(self._authorizer.resources.challenge("", error))
        if refused.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % refused.retry_after_s))
        body = {"error": refused.text, "reason": refused.reason.value}
        return json_answer(body, refused.status, tuple(headers))

    async def _events(self, visit: Visit) -> Answer | EventAnswer:
        """The stream of an open page."""
        last_id = visit.request.headers.get(b"last-event-id", b"").decode("latin-1") or visit.asked("after")
        if self.live.is_full:
            return problem(503, "Too many open console pages. Close some, then try again.")
        return self.live.stream(last_id, visit.who)

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
                summary="Style sheet and script of the console.",
            ),
            page_route("/login", public, self._log_in, "The login page."),
            form_route("/login", public, self._log_in, "Log in with a token or a one-time code."),
            page_route(LOGIN_BEGIN, public, self._on_the_way_in, "Start a login with the OpenID provider."),
            page_route(LOGIN_CALLBACK, public, self._on_the_way_in, "Redirect target of the OpenID provider."),
            form_route("/logout", login, self._log_out, "Log out of this session, or of all sessions."),
            page_route("/", login, self._home, "Redirect to the start page of the console."),
            self.api.webhook_route(),
            *self.accounts.page_routes(),
        )

    async def _static(self, visit: Visit) -> Answer:
        from taskgate.dashboard.assets import static_answer

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
        status = 403
        try:
            return await (self._to_provider if request.path == LOGIN_BEGIN else self._from_provider)(request, provider)
        except LoginRefused as refused:
            note = f"Login failed: {refused}. Try again."
        except IssuerUnavailable as fault:
            log.warning("login with the provider failed", why=str(fault))
            note = _PROVIDER_AWAY
        except AccessRefused as refused:
            log.warning("login with the provider refused", why=refused.why or refused.reason.value)
            note = f"Login failed: {refused.why}. Try again." if refused.why else refused.text
            if refused.reason is AccessRefusal.UNVERIFIABLE:
                note = _PROVIDER_AWAY
            elif refused.reason is AccessRefusal.TOO_MANY_ATTEMPTS:
                status = refused.status
        return self._login_page(request, note=note, status=status)

    async def _to_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        back, fresh = safe_return(request.query.get("next")) or START, request.query.get("fresh") == "1"
        address, pending = await provider.begin(self._callback_url(), back, fresh=fresh)
        return redirect(address, (b"set-cookie", self.login.pending_cookie(pending)))

    async def _from_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        """The browser comes from another site, so it would not send a Strict cookie on a redirect: our own page leads on."""
        pending = self.login.pending(request.cookie(LOGIN_COOKIE))
        if pending is None:
            raise LoginRefused("the login expired or was started in another browser")
        answer, address = request.query, self._callback_url()
        proof = ProviderProof(lambda: provider.finish(pending, answer, address), request.came)
        credential = (await self._authorizer.authorize(proof, Access.LOGIN)).credential
        identity = credential.identity
        self._gateway.people.note(identity)
        who = Approver(identity.principal, identity.roles, identity.may_call)
        log.info("logged in", who=who.id, by="provider")
        facts = self.login.facts_of(credential, self._authorizer.credentials)
        cookies = (await self.login.begin(who, identity.authenticated_at, facts), self.login.no_pending_cookie())
        page = self._pages.frame.message(request, None, 200, "Logged in", "Redirecting to the console.")
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
        try:
            who, facts = await self._proved(request, form)
        except AccessRefused as refused:
            log.warning("login refused", why=refused.reason.value)
            status = refused.status if refused.status in (429, 503) else 403
            by_code = form.get("code") and refused.reason is AccessRefusal.UNKNOWN_CREDENTIAL
            return self._login_page(request, note=_USED_CODE if by_code else refused.text, status=status)
        if self._passphrase.needed_by(who) and not await self._passphrase.fits(form.get("passphrase", "")):
            log.warning("login refused", who=who.id)
            return self._login_page(request, note="Wrong passphrase.", status=403)
        log.info("logged in", who=who.id)
        back = safe_return(form.get("next")) or START
        return redirect(back, (b"set-cookie", await self.login.begin(who, int(clock.wall()), facts)))

    async def _proved(self, request: WebRequest, form: Mapping[str, str]) -> tuple[Approver, LoginFacts]:
        """The person who logs in by a one-time code or a token. Raises AccessRefused."""
        came = request.came
        if form.get("code"):
            authorized = await self._authorizer.authorize(CodeProof(form["code"], self.login, came), Access.LOGIN)
        else:
            token = b"Bearer " + form.get("token", "").strip().encode()
            authorized = await self._authorizer.authorize(
                HttpProof(came.arrival, token, came.every_header), Access.LOGIN
            )
        person = authorized.person
        assert person is not None
        return person, self.login.facts_of(authorized.credential, self._authorizer.credentials)


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
    text = f'<!doctype html><title>Taskgate</title><a href="{html.escape(where)}">Continue</a>'
    return Answer(200, text.encode(), headers=((b"refresh", f"0; url={where}".encode("ascii")),))
