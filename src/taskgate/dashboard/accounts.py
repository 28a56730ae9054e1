"""Accounts of people at servers: pages that connect them, documents about the gateway as an OAuth client, and the JSON API.

The page of a caller has an unguessable address, which the caller may pass on. So the address is not sufficient: the page opens
only for the person who is logged in as the caller's principal, because that principal's calls then run under the account. No role
is exempt. The browser reaches the callback from another site and does not send the Strict cookie of the console; the callback
recognizes the login by a Lax cookie for `/oauth`, set when the page was opened. The shared account has no such address: operators
connect it from the page of its server.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from taskgate.access.routes import RouteKind
from taskgate.core.identity.access import Access
from taskgate.dashboard.login import Login
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import (
    TEXT,
    LoginCookie,
    Route,
    Visit,
    closed_object,
    delete,
    form_route,
    get,
    page_route,
    post,
)
from taskgate.dashboard.web import Answer, WebRequest, json_answer, problem
from taskgate.ports.account_connector import AccountConnector, AccountLoginRefused, ConnectRequest
from taskgate.replies.servers import Accounts, BrowserLink, Disconnected

CONNECT: Final = "/oauth/connect/"
CALLBACK: Final = "/oauth/callback"
CLIENT_DOCUMENT: Final = "/oauth/client.json"
SIGNING_KEYS: Final = "/.well-known/jwks.json"
CONNECT_SHARED: Final = "/servers/{name}/connect"
COOKIE: Final = "taskgate_connect"
_PUBLIC: Final = ((b"access-control-allow-origin", b"*"),)
_LONGEST_NAME: Final = 400
_OWNER: Final = closed_object(principal=TEXT)
_NO_ACCOUNTS: Final = problem(404, "Server not found, or it has no accounts.")
_NOT_OURS: Final = problem(
    404, "Principal not found in your tenant. Only the gateway's operator manages the shared account."
)
_SHARED: Final = "Connect the shared account on the server's page in the console, or run: taskgate servers login NAME"
_NO_LOGIN: Final = (
    "Anonymous callers cannot log in, so no account can be connected for them. Make the call with a token."
)
_NOT_YOURS: Final = (
    "This page connects an account for another caller. If you continued, that caller's calls would run under your account. If you "
    "made the call, log out and log in as its caller."
)
_PAGE: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{head}
<link rel="stylesheet" href="/static/style.css"></head><body><main><h1>{title}</h1>{body}</main></body></html>"""


class AccountPages(msgspec.Struct, eq=False):
    _accounts: AccountConnector
    _records: Records
    _login: Login
    _is_https: Callable[[], bool]

    def page_routes(self) -> tuple[Route, ...]:
        """Routes outside `/api`: pages that connect accounts, and public documents."""
        page, documents = CONNECT + "{ticket}", RouteKind.DOCUMENT
        return (
            page_route(page, Access.LOGIN, self._ask, "Connect your own account at a server."),
            form_route(page, Access.LOGIN, self._begin, "Continue to the server's login."),
            form_route(CONNECT_SHARED, Access.ACT, self._begin_shared, "Connect the account that all callers share."),
            Route(
                method="GET",
                path=CALLBACK,
                access=Access.LOGIN,
                kind=RouteKind.PAGE,
                handler=self._callback,
                summary="Redirect target of a server's login.",
                cookie=LoginCookie.CONNECT,
            ),
            Route(
                method="GET",
                path=CLIENT_DOCUMENT,
                access=Access.PUBLIC,
                kind=documents,
                handler=self._client_document,
                summary="This gateway as an OAuth client (client id metadata document).",
            ),
            Route(
                method="GET",
                path=SIGNING_KEYS,
                access=Access.PUBLIC,
                kind=documents,
                handler=self._signing_keys,
                summary="The public keys of what this gateway signs (RFC 7517).",
            ),
        )

    async def _client_document(self, _visit: Visit) -> Answer:
        return json_answer(self._accounts.client_document(), headers=_PUBLIC)

    async def _signing_keys(self, _visit: Visit) -> Answer:
        return json_answer(await self._accounts.signing_keys(), headers=_PUBLIC)

    async def _ask(self, visit: Visit) -> Answer:
        request = await self._own_page(visit)
        if isinstance(request, Answer):
            return request
        token = self._login.form_token(visit.request.cookie(self._login.cookie_name))
        return _consent_page(request, visit.user.id, token, self._connect_cookies(visit.request))

    async def _begin(self, visit: Visit) -> Answer:
        request = await self._own_page(visit)
        if isinstance(request, Answer):
            return request
        return await self._to_login(
            visit.request, lambda browser: self._accounts.begin(visit.values["ticket"], browser)
        )

    async def _begin_shared(self, visit: Visit) -> Answer:
        server = visit.values["name"]
        if not self._records.may_connect(visit.user, ""):
            return _message(404, "Not allowed", "Only the gateway's operator can connect the shared account.")
        if await self._accounts.accounts(server) is None:
            return _message(404, "Server not found", "It is not configured, or has no accounts.")
        return await self._to_login(visit.request, lambda browser: self._accounts.begin_shared(server, browser))

    async def _own_page(self, visit: Visit) -> ConnectRequest | Answer:
        """The request of the page, if it is for the logged-in person; otherwise a refusal."""
        request = await self._accounts.request_of(visit.values["ticket"])
        if request is None or not request.principal or not visit.user.reaches(request.principal):
            return _message(
                404,
                "Link not valid",
                "This link has expired or was never issued. Call the tool again to get a new one.",
            )
        if not self._records.may_connect(visit.user, request.principal):
            return _message(403, "Not your account", _NOT_YOURS)
        return request

    async def _to_login(self, request: WebRequest, begin: Callable[[str], Awaitable[str]]) -> Answer:
        browser = request.cookie(COOKIE) or secrets.token_urlsafe(24)
        try:
            address = await begin(browser)
        except AccountLoginRefused as refusal:
            return _message(502, "Login failed", str(refusal))
        return _redirect_page(address, (b"set-cookie", self._cookie(browser, 900)), *self._connect_cookies(request))

    def _connect_cookies(self, request: WebRequest) -> tuple[tuple[bytes, bytes], ...]:
        kept = self._login.connect_cookie(request.cookie(self._login.cookie_name))
        return (kept,) if kept is not None else ()

    def _cookie(self, browser: str, seconds: int) -> bytes:
        secure = "; Secure" if self._is_https() else ""
        text = f"{COOKIE}={browser}; Path=/oauth; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        return text.encode("ascii")

    async def _callback(self, visit: Visit) -> Answer:
        request, user = visit.request, visit.user
        try:
            done = await self._accounts.finish(
                request.query,
                request.cookie(COOKIE) or "",
                lambda principal: self._records.may_connect(user, principal),
            )
        except AccountLoginRefused as refusal:
            return _message(400, "Not connected", str(refusal))
        await self._records.note_account("account_connected", user, done.server, done.principal)
        account = "Your account" if done.principal else "The shared account"
        text = f"{account} at {done.server} is connected. Waiting calls continue now; you can close this page."
        return _message(200, "Connected", text, (b"set-cookie", self._cookie("", 0)))

    def routes(self) -> tuple[Route, ...]:
        path, query = "/servers/{name}/accounts", {"principal": "owner of the account; default: the shared account"}
        return (
            get(
                path,
                Access.SEE,
                self._list,
                "Connected accounts at a server and their state.",
                answer=Accounts,
            ),
            post(
                path,
                Access.ACT,
                self._create_link,
                "Create a link with which a principal connects an account.",
                _OWNER,
                status=201,
                command="taskgate servers login {name}",
                answer=BrowserLink,
            ),
            delete(
                path,
                Access.ACT,
                self._disconnect,
                "Disconnect an account at a server.",
                query=query,
                command="taskgate servers logout {name}",
                answer=Disconnected,
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        server = visit.values["name"]
        listed = await self._records.accounts(visit.user, server)
        return _NO_ACCOUNTS if listed is None else json_answer(Accounts(server=server, accounts=listed))

    async def _create_link(self, visit: Visit) -> Answer:
        principal = visit.request.json().get("principal", "")
        if await self._accounts.accounts(visit.values["name"]) is None:
            return _NO_ACCOUNTS
        if not isinstance(principal, str) or len(principal) > _LONGEST_NAME:
            return problem(400, '"principal" must be a name.')
        if not visit.user.reaches(principal):
            return _NOT_OURS
        if not principal:
            return problem(400, _SHARED)
        if not self._records.can_log_in(principal):
            return problem(400, _NO_LOGIN)
        return json_answer(BrowserLink(url=await self._accounts.page(visit.values["name"], principal, None)), 201)

    async def _disconnect(self, visit: Visit) -> Answer:
        principal = visit.request.query.get("principal", "")
        if not visit.user.reaches(principal):
            return _NOT_OURS
        server = visit.values["name"]
        done = await self._accounts.disconnect(server, principal)
        if done:
            await self._records.note_account("account_disconnected", visit.user, server, principal)
        return json_answer(Disconnected(disconnected=done))


def login_needed() -> Answer:
    """The reply to a callback without the login that its page was opened with."""
    text = "Your console session has ended, or the page was opened in another browser. Log in and open the page again."
    return _message(401, "Not connected", text)


def _consent_page(
    request: ConnectRequest, user: str, form_token: str, headers: tuple[tuple[bytes, bytes], ...]
) -> Answer:
    more = f"<p>Requested scopes: <code>{html.escape(request.scope)}</code></p>" if request.scope else ""
    body = (
        f"<p>Taskgate will use your account at <strong>{html.escape(request.server)}</strong> "
        f"(<code>{html.escape(request.resource)}</code>) for calls of <strong>{html.escape(request.principal)}</strong>.</p>{more}"
        f"<p>You are logged in as <strong>{html.escape(user)}</strong>. Continue only if you made the call yourself.</p>"
        f'<form method="post"><input type="hidden" name="form_token" value="{html.escape(form_token)}">'
        "<button>Connect my account</button></form>"
    )
    return _page(200, "Connect your account", body, headers=headers)


def _redirect_page(address: str, *headers: tuple[bytes, bytes]) -> Answer:
    """A page that redirects: browsers do not allow a form of ours to be redirected to another site."""
    link = html.escape(address)
    refresh = f'<meta http-equiv="refresh" content="0;url={link}">'
    return _page(200, "Log in", f'<p><a href="{link}">Continue to the login</a></p>', refresh, headers=headers)


def _message(status: int, title: str, text: str, *headers: tuple[bytes, bytes]) -> Answer:
    return _page(status, title, f"<p>{html.escape(text)}</p>", headers=headers)


def _page(status: int, title: str, body: str, head: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    text = _PAGE.format(title=html.escape(title), head=head, body=body)
    # The referrer policy of all pages does not send the address to other sites. With `no-referrer` a browser would send the form
    # with `Origin: null`, which is refused.
    return Answer(status, text.encode(), headers=headers)
