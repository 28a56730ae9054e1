"""The console and the JSON API as one application: finds the route of a request, checks it, and runs its handler.

Scripts authenticate with bearer tokens, browsers with cookies. A request with a cookie changes something only if it also contains
the form token of one of our pages.
"""

from __future__ import annotations

import html
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import msgspec

from taskgate.access.authorize import AccessRefused, Authorized, Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.access.open_stream import CONNECTION, OpenStream
from taskgate.access.proof import Proof, SessionProof
from taskgate.access.routes import RouteKind
from taskgate.core.errors import TaskgateError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.return_path import safe_return
from taskgate.dashboard.accounts import CALLBACK, AccountPages, login_needed
from taskgate.dashboard.api import Api
from taskgate.dashboard.approval_callback import ApprovalCallback
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.frame import templates_compiled
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.live_updates import LiveUpdates
from taskgate.dashboard.login import CONNECT_COOKIE, Login
from taskgate.dashboard.login_links import LoginLinks
from taskgate.dashboard.login_pages import START, LoginPages, Provider
from taskgate.dashboard.page_turns import PageTurns
from taskgate.dashboard.passphrase import Fits, Passphrase
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Found, LoginCookie, Route, RouteTable, Visit, get, page_route
from taskgate.dashboard.steering import Steering
from taskgate.dashboard.web import (
    Answer,
    BodyTooLarge,
    EventAnswer,
    Receive,
    RequestProblem,
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
from taskgate.late_imports import PAGES, load
from taskgate.replies.fields import about
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.dashboard.pages import Pages

STATIC: Final = "/static/"
_METHODS: Final = ("GET", "POST")


class Dashboard:
    """The ASGI application of the console. The site that contains it has checked Host and Origin."""

    def __init__(
        self,
        services: ConsoleServices,
        secret: bytes,
        authorizer: Authorizer,
        responses: OpenResponses,
        *,
        fits: Fits | None,
        provider: Provider,
        configuration: Configuration,
    ) -> None:
        self._services = services
        self._authorizer = authorizer
        self._responses = responses
        self.login = Login(secret, self._approver, self._is_https, services.calls.tasks.store, services.events)
        records = Records(
            store=services.calls.tasks.store,
            plan=services.plan,
            revocation=services.decisions.approvals.grants,
            temporary_scopes=services.servers.temporary_scopes,
            account_connector=services.servers.accounts,
            waterfall=services.calls.waterfall,
        )
        self._inbox = Inbox(
            approvals=services.decisions.approvals,
            records=records,
            catalogs=services.servers.catalogs,
            pins=services.decisions.pins,
            plan=services.plan,
            polled_ago_s=services.calls.tasks.methods.seconds_since_poll,
        )
        self._passphrase = Passphrase(fits)
        self.live = LiveUpdates(services.events)
        self._turns = PageTurns()
        self._steering = Steering(services, records, configuration)
        self.accounts = AccountPages(services.servers.accounts, records, self.login, self._is_https)
        self.login_links = LoginLinks(self.login, authorizer, services.address.base)
        events = get(
            "/events",
            Access.LOGIN,
            self._events,
            "Topics of changes, for open pages.",
            query={
                "after": "version of the open page; a change since then is sent immediately",
                "view": "deprecated; has no effect",
            },
            stream=True,
            answer=Annotated[
                str, about("events `change` with `{topics}`; `ended` with `{error_type, message}` ends the stream")
            ],
        )
        more = (events, *self.login_links.routes(), *self._steering.routes(), *self.accounts.routes())
        self.api = Api(
            services, self._inbox, self._passphrase, menu=lambda user: self._pages.frame.menu(user), more=more
        )
        self._login_pages = LoginPages(
            login=self.login,
            authorizer=authorizer,
            passphrase=self._passphrase,
            provider=provider,
            frame=lambda: self._pages.frame,
            base_url=services.address.base,
            note_person=services.people.note,
        )
        self._entry = RouteTable(self._entry_routes())

    @cached_property
    def _pages(self) -> Pages:
        # The template engine is loaded with the first page, not with the gateway.
        from taskgate.dashboard.pages import Pages

        return Pages(self._services, self._inbox, self.login, self.api, self._steering)

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route of the console and the API."""
        return (*self._entry.routes, *self.api.table.routes, *self._pages.table.routes)

    def _approver(self, name: str) -> Approver | None:
        governing = self._services.plan.value.governing
        if name in governing.roles:
            return governing.approvers.get(name, Approver(name, governing.roles[name]))
        return governing.approvers.get(name)

    def _is_https(self) -> bool:
        url = self._services.plan.value.governing.public_url
        return url is not None and url.startswith("https:")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are logged and returned as a reply."""
        authorized = None
        try:
            request = await read_request(scope, receive)
            answer, authorized = await self._answer(request)
        except BodyTooLarge:
            answer = problem(413, "The request body is too large.")
        except TaskgateError as error:
            answer = problem(503, error.message)
        except Exception as fault:  # an error affects this request only
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
        is_api = path == "/api" or path.startswith("/api/")
        found = await self._find(request, is_api)
        for_people = not is_api and (found is None or found.route.kind in (RouteKind.PAGE, RouteKind.FORM))
        if for_people and _is_meant_for_mcp(request):
            return problem(404, f"Not found: {request.path[:80]}. MCP is served at /mcp."), None
        kind = found.route.kind if found is not None else RouteKind.API if is_api else RouteKind.PAGE
        if kind in (RouteKind.PAGE, RouteKind.FORM):
            # The login pages and the messages for people are pages, too.
            await load(*PAGES)
            await templates_compiled()
        refusal = self._forgery_refusal(request, kind)
        if refusal is not None:
            return refusal, None
        try:
            authorized = await self._authorized(request, found, kind)
        except AccessRefused as refused:
            return await self._refused(request, kind, refused), None
        if found is None:
            return self._not_found(request, kind, authorized), None
        return await self._handled(request, found, authorized), authorized

    async def _find(self, request: WebRequest, is_api: bool) -> Found | None:
        found = self._entry.find(request.method, request.path)
        if found is not None:
            return found
        if is_api:
            return self.api.find(request)
        await load(*PAGES)
        return self._pages.table.find(request.method, request.path)

    async def _authorized(self, request: WebRequest, found: Found | None, kind: RouteKind) -> Authorized:
        """Authorize a request. Without a login an unknown address looks like a known one."""
        if found is None:
            return await self._authorizer.authorize(self._proof(request, kind, LoginCookie.CONSOLE), Access.LOGIN)
        route = found.route
        proof = self._proof(request, kind, route.cookie)
        scope = route.named_scope(request)
        return await self._authorizer.authorize(proof, route.access, scope, anonymous=route.anonymous)

    def _proof(self, request: WebRequest, kind: RouteKind, which: LoginCookie) -> Proof:
        """Scripts send a bearer token or a certificate, browsers a session cookie; pages accept only cookies."""
        proof = request.proof
        if which is LoginCookie.CONNECT:
            return SessionProof(request.cookie(CONNECT_COOKIE), self.login.connecting, proof)
        cookie = request.cookie(self.login.cookie_name)
        if kind in (RouteKind.PAGE, RouteKind.FORM) or (cookie is not None and proof.authorization is None):
            return SessionProof(cookie, self.login, proof)
        return proof

    def _forgery_refusal(self, request: WebRequest, kind: RouteKind) -> Answer | None:
        """A refusal of a request that another site may have made the browser send, or None."""
        if request.method == "GET" or kind not in (RouteKind.API, RouteKind.FORM, RouteKind.PAGE):
            return None
        cookie = request.cookie(self.login.cookie_name)
        if kind is not RouteKind.API:
            if kind is RouteKind.PAGE or self.login.is_valid_form(cookie, request.form().get("form_token")):
                return None
            text = "This form has expired or did not come from this console. Reload the page and try again."
            return self._pages.frame.message(request, None, 403, "Form rejected", text)
        if request.method == "POST" and not request.is_json:
            return problem(415, "Send the content type application/json.")
        token = request.headers.get(b"x-form-token", b"").decode("latin-1")
        bearer = request.headers.get(b"authorization")
        if cookie is not None and bearer is None and not self.login.is_valid_form(cookie, token):
            return problem(403, "Requests with a console session need the header x-form-token.")
        return None

    async def _handled(self, request: WebRequest, found: Found, authorized: Authorized) -> Answer | EventAnswer:
        person, route = authorized.person, found.route
        bearer = request.headers.get(b"authorization")
        locked = bearer is not None and person is not None and self._passphrase.needed_by(person)
        visit = Visit(
            request=msgspec.structs.replace(request, locked=locked),
            person=person,
            values=found.values,
            authorized=authorized,
            version=self.live.version,
        )
        if "\0" in request.path or any("\0" in value for value in request.query.values()):
            return self._has_null(visit, route.kind)
        if route.kind is RouteKind.API:
            return await self.api.answer(found, visit)
        try:
            return await self._turns.answer(route, visit)
        except RequestProblem as refused:
            title = "Not found" if refused.status == 404 else "Request failed"
            return self._pages.frame.message(visit.request, person, refused.status, title, refused.text)

    def _has_null(self, visit: Visit, kind: RouteKind) -> Answer:
        """Refuse an address with a null character. No name contains one, and PostgreSQL accepts none as a value."""
        text = "Invalid request: the address contains the character U+0000."
        if kind is RouteKind.API:
            return problem(400, text)
        return self._pages.frame.message(visit.request, visit.person, 400, "Request failed", text)

    async def _person(self, request: WebRequest) -> Approver | None:
        """The logged-in person, for the header of a page that refuses the request."""
        try:
            proof = self._proof(request, RouteKind.PAGE, LoginCookie.CONSOLE)
            return (await self._authorizer.authorize(proof, Access.LOGIN)).person
        except AccessRefused:
            return None

    def _not_found(self, request: WebRequest, kind: RouteKind, authorized: Authorized) -> Answer:
        if kind is RouteKind.API:
            return problem(404, "Not found. GET /api/v1/openapi.json lists the routes of this API.")
        return self._pages.frame.message(
            request, authorized.person, 404, "Page not found", "Check the address, or go to the start page."
        )

    async def _refused(self, request: WebRequest, kind: RouteKind, refused: AccessRefused) -> Answer:
        if kind not in (RouteKind.PAGE, RouteKind.FORM):
            return self._refused_script(refused)
        if refused.reason is AccessRefusal.NO_CREDENTIAL:
            return self._login_pages.page(request, status=401) if request.method == "POST" else _to_login(request)
        title = "Page not found" if refused.status == 404 else "Access denied"
        return self._pages.frame.message(
            request, await self._person(request), refused.status, title, refused.text, reason=refused.reason.value
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
        """The event stream of an open page."""
        last_id = visit.request.headers.get(b"last-event-id", b"").decode("latin-1") or visit.parameter("after")
        if self.live.is_full:
            return problem(503, "Too many open console pages. Close some, then try again.")
        return self.live.stream(last_id, visit.user)

    def _entry_routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path=STATIC + "{name}",
                access=Access.PUBLIC,
                kind=RouteKind.DOCUMENT,
                handler=self._static,
                summary="Style sheet and script of the console.",
            ),
            *self._login_pages.routes(),
            page_route("/", Access.LOGIN, self._home, "Redirect to the start page of the console."),
            ApprovalCallback(lambda: self._services.decisions.approvals.announcer.channels).route(),
            *self.accounts.page_routes(),
        )

    async def _static(self, visit: Visit) -> Answer:
        from taskgate.dashboard.assets import static_answer

        accepted = visit.request.headers.get(b"accept-encoding", b"")
        return static_answer(visit.values["name"], accepted) or Answer(404)

    async def _home(self, _visit: Visit) -> Answer:
        return redirect(START)


def _is_meant_for_mcp(request: WebRequest) -> bool:
    """Whether an MCP client uses a wrong address: it posts JSON where only forms are posted, or looks for metadata."""
    if request.path.startswith("/.well-known/"):
        return True
    return request.method == "POST" and request.is_json


_SAME_SITE: Final = "same_site=1"


def _to_login(request: WebRequest) -> Answer:
    """Redirect to the login page, which returns to the requested address."""
    if request.path == CALLBACK:
        return login_needed()
    query = "&".join(part for part in request.raw_query.split("&") if part and part != _SAME_SITE)
    return_to = safe_return(f"{request.path}?{query}" if query else request.path)
    fetch_site = request.headers.get(b"sec-fetch-site")
    if fetch_site == b"cross-site" and return_to is not None and _SAME_SITE not in request.raw_query:
        # The browser does not send a Strict cookie when it follows a link on another site. It does when our own page redirects.
        return _continue_at(f"{return_to}{'&' if query else '?'}{_SAME_SITE}")
    if return_to is None or return_to in ("/", START):
        return redirect("/login")
    return redirect(f"/login?next={quote(return_to, safe='/')}")


def _continue_at(where: str) -> Answer:
    text = f'<!doctype html><title>Taskgate</title><a href="{html.escape(where)}">Continue</a>'
    return Answer(200, text.encode(), headers=((b"refresh", f"0; url={where}".encode("ascii")),))
