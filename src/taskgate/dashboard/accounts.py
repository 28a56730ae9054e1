"""Where people connect their accounts at servers (`/oauth/connect`, `/oauth/callback`), what issuers and servers look up about us
(`/oauth/client.json`, `/.well-known/jwks.json`), and who is connected (`/api/v1/servers/NAME/accounts`).

The page of a login is opened by an unguessable address, says for whom and where, and goes on only by its own button, in the same
browser. Somebody who is logged in here as another principal is turned away: they would give their account to that one.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable
from typing import Final

from taskgate.access.routes import RouteKind
from taskgate.core.access import Access
from taskgate.core.identity import Permission
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, delete, get, post
from taskgate.dashboard.web import Answer, WebRequest, json_answer, problem
from taskgate.ports.credentials import AccountConnector, AccountLoginRefused, ConnectRequest

CONNECT: Final = "/oauth/connect/"
CALLBACK: Final = "/oauth/callback"
CLIENT_DOCUMENT: Final = "/oauth/client.json"
SIGNING_KEYS: Final = "/.well-known/jwks.json"
COOKIE: Final = "taskgate_connect"
ConnectCookie = Callable[[WebRequest], tuple[bytes, bytes] | None]
_PUBLIC: Final = ((b"access-control-allow-origin", b"*"),)
_LONGEST_NAME: Final = 400
_WHOSE: Final = closed_object(principal=TEXT)
_NO_ACCOUNTS: Final = problem(404, "There is no such server, or it has no accounts.")
_NOT_OURS: Final = problem(
    404, "There is no such principal in your tenant; the shared account is the gateway's operator's."
)
_PAGE: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{head}
<link rel="stylesheet" href="/static/style.css"></head><body><main><h1>{title}</h1>{body}</main></body></html>"""


class AccountPages:
    def __init__(
        self, accounts: AccountConnector, records: Records, is_https: Callable[[], bool], connect_cookie: ConnectCookie
    ) -> None:
        """`connect_cookie` makes the header by which the callback recognizes the login of whoever opened the page."""
        self._accounts = accounts
        self._records = records
        self._is_https = is_https
        self._connect_cookie = connect_cookie

    def page_routes(self) -> tuple[Route, ...]:
        """Outside `/api`: the pages on which people connect accounts, and the documents that machines look up."""
        pages, documents = RouteKind.PAGE, RouteKind.DOCUMENT
        return (
            *(
                Route(
                    method=method,
                    path=CONNECT + "{ticket}",
                    access=Access.PUBLIC,
                    kind=pages,
                    handler=self._connect,
                    summary="Connect an account at a server.",
                    optional_login=True,
                )
                for method in ("GET", "POST")
            ),
            Route(
                method="GET",
                path=CALLBACK,
                access=Access.PUBLIC,
                kind=pages,
                handler=self._callback,
                summary="Where a server's login sends the browser back to.",
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

    async def _connect(self, visit: Visit) -> Answer:
        request, who, ticket = visit.request, visit.person, visit.values["ticket"]
        asked = await self._accounts.asked(ticket)
        if asked is None or (who is not None and not who.reaches(asked.principal)):
            return _message(404, "Nothing to connect", "This page is too old, or was never given out.")
        if who is not None and not who.may(Permission.ACT) and who.id != asked.principal:
            return _message(403, "Not for you", "This page is meant for somebody else. Log out here, or ask them.")
        if request.method != "POST":
            kept = self._connect_cookie(request)
            return _asks(asked, (kept,) if kept is not None else ())
        browser = request.cookie(COOKIE) or secrets.token_urlsafe(24)
        try:
            address = await self._accounts.begin(ticket, browser)
        except AccountLoginRefused as refusal:
            return _message(502, "The login cannot be begun", str(refusal))
        secure = "; Secure" if self._is_https() else ""
        cookie = f"{COOKIE}={browser}; Path=/oauth; Max-Age=900; HttpOnly; SameSite=Lax{secure}"
        return _leads_on(address, (b"set-cookie", cookie.encode("ascii")))

    async def _callback(self, visit: Visit) -> Answer:
        request = visit.request
        try:
            done = await self._accounts.finish(request.query, request.cookie(COOKIE) or "")
        except AccountLoginRefused as refusal:
            return _message(400, "Not connected", str(refusal))
        text = f"Your account at {done.server} is connected. What waited for it goes on now; you can close this page."
        return _message(200, "Connected", text)

    # For operators

    def routes(self) -> tuple[Route, ...]:
        path, whose = "/servers/{name}/accounts", {"principal": "whose; nobody named: the one that all share"}
        return (
            get(path, Access.SEE, self._list, "Whose accounts at a server are connected, and how they are."),
            post(
                path,
                Access.ACT,
                self._hand_out,
                "A page on which somebody connects an account.",
                _WHOSE,
                status=201,
            ),
            delete(path, Access.ACT, self._disconnect, "Forget somebody's account at a server.", query=whose),
        )

    async def _list(self, visit: Visit) -> Answer:
        server = visit.values["name"]
        listed = await self._records.accounts(visit.who, server)
        return _NO_ACCOUNTS if listed is None else json_answer({"server": server, "accounts": listed})

    async def _hand_out(self, visit: Visit) -> Answer:
        principal = visit.request.json().get("principal", "")
        if await self._accounts.accounts(visit.values["name"]) is None:
            return _NO_ACCOUNTS
        if not isinstance(principal, str) or len(principal) > _LONGEST_NAME:
            return problem(400, '"principal" must be a name.')
        if not visit.who.reaches(principal):
            return _NOT_OURS
        return json_answer({"url": await self._accounts.page(visit.values["name"], principal, None)}, 201)

    async def _disconnect(self, visit: Visit) -> Answer:
        principal = visit.request.query.get("principal", "")
        if not visit.who.reaches(principal):
            return _NOT_OURS
        done = await self._accounts.disconnect(visit.values["name"], principal)
        return json_answer({"disconnected": done})


def _asks(asked: ConnectRequest, headers: tuple[tuple[bytes, bytes], ...]) -> Answer:
    whose = f"in the name of <strong>{html.escape(asked.principal)}</strong>" if asked.principal else "for all callers"
    more = f"<p>It asks for: <code>{html.escape(asked.scope)}</code></p>" if asked.scope else ""
    body = (
        f"<p>Taskgate wants to use your account at <strong>{html.escape(asked.server)}</strong> "
        f"(<code>{html.escape(asked.resource)}</code>), {whose}.</p>{more}"
        "<p>Go on only if you asked for this yourself.</p>"
        '<form method="post"><button>Connect my account</button></form>'
    )
    return _page(200, "Connect your account", body, headers=headers)


def _leads_on(address: str, *headers: tuple[bytes, bytes]) -> Answer:
    """A page that leads on: browsers do not let a form of ours be redirected to somebody else's address."""
    link = html.escape(address)
    refresh = f'<meta http-equiv="refresh" content="0;url={link}">'
    return _page(200, "Log in", f'<p><a href="{link}">Go on to the login</a></p>', refresh, headers=headers)


def _message(status: int, title: str, text: str) -> Answer:
    return _page(status, title, f"<p>{html.escape(text)}</p>")


def _page(status: int, title: str, body: str, head: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    text = _PAGE.format(title=html.escape(title), head=head, body=body)
    return Answer(status, text.encode(), headers=((b"referrer-policy", b"no-referrer"), *headers))
