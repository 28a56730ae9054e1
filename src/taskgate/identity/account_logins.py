"""Connects a person's account at a server: the page of the gateway, the issuer's login, and the callback.

A login is bound to the server and principal that it was started for (stored under an unguessable name that is used once), to the
person who is logged in as that principal, to the browser that started it (a cookie), and to the issuer that answers (RFC 9207);
its code is useless without our verifier (PKCE). The address of the login comes only from the issuer's metadata, never from a
request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import asdict, replace

from taskgate import clock
from taskgate.identity.assertions import Assertions
from taskgate.identity.discovery import ProtectedResource, authority_of, joined_scopes, protected_resource
from taskgate.identity.documents import Documents, IssuerRefused
from taskgate.identity.login_store import Login, LoginStore, client_proof
from taskgate.identity.server_tokens import FetcherFactory
from taskgate.identity.token_settings import StoredLogin
from taskgate.mcp.oauth_challenge import Challenge
from taskgate.mcp.oauth_discovery import AuthorizationServer
from taskgate.ports.account_connector import AccountLoginRefused, ConnectRequest
from taskgate.ports.caller_credentials import IssuerUnavailable
from taskgate.replies.servers import AccountRow
from taskgate.shown_fields import repr_without

PAGE_VALID_S: Final = 86_400.0
LOGIN_VALID_S: Final = 600.0
CHECK_INTERVAL_S: Final = 2.0
MAX_PAGES: Final = 10_000
CALLBACK: Final = "/oauth/callback"
CLIENT_DOCUMENT: Final = "/oauth/client.json"


class _Client(msgspec.Struct, frozen=True):
    """The gateway's registration at one issuer."""

    client_id: str
    client_secret: str | None = None
    secret_in_form: bool = False

    __repr__ = repr_without("client_secret")


class _LoginInProgress(msgspec.Struct, frozen=True):
    """A login that was started and has not returned to the callback. Stored as JSON: do not rename fields."""

    server: str
    principal: str
    resource: str
    issuer: str
    sends_issuer: bool
    token_endpoint: str
    client_id: str
    client_secret: str | None
    secret_in_form: bool
    verifier: str
    browser: str
    redirect_uri: str
    scope: str | None

    __repr__ = repr_without("client_secret", "verifier")


class AccountLogins:
    """Implements the port `AccountConnector`. `base` returns the public address of the gateway."""

    def __init__(
        self,
        logins: LoginStore,
        documents: FetcherFactory,
        assertions: Assertions,
        base: Callable[[], str],
    ) -> None:
        self._logins = logins
        self._documents = documents
        self._assertions = assertions
        self._base = base
        self._servers: dict[str, StoredLogin] = {}
        self._pages: dict[tuple[str, str, str | None], tuple[str, float]] = {}
        self._waiting: WeakValueDictionary[tuple[str, str], asyncio.Event] = WeakValueDictionary()
        """Set when the person logs in. The waiting calls keep them."""

    def adopt(self, servers: Mapping[str, StoredLogin]) -> None:
        """Use these servers, which have accounts by the configuration in force."""
        self._servers = dict(servers)

    async def page(self, server: str, principal: str, scope: str | None) -> str:
        now = clock.monotonic()
        known = self._pages.get((server, principal, scope))
        if known is None or known[1] <= now:
            ticket = secrets.token_urlsafe(24)
            parameters = {"server": server, "principal": principal, "scope": scope}
            await asyncio.to_thread(self._logins.keep_note, _digest("page", ticket), parameters, PAGE_VALID_S)
            if len(self._pages) >= MAX_PAGES:
                self._pages = {key: page for key, page in self._pages.items() if page[1] > now}
            # A link is reused for half its lifetime, so the person has time to open it.
            known = self._pages[server, principal, scope] = (ticket, now + PAGE_VALID_S / 2)
        return f"{self._base()}/oauth/connect/{known[0]}"

    async def wait(self, server: str, principal: str, scope: str | None, within_s: float) -> bool:
        until = clock.monotonic() + within_s
        while True:
            # Before the read, so that a login between the read and the wait is noticed. A login without this scope sets the event
            # and removes it.
            connected = self._waiting.setdefault((server, principal), asyncio.Event())
            if await self._is_connected(server, principal, scope):
                return True
            left = until - clock.monotonic()
            if left <= 0:
                return False
            # Another gateway, or a command, may connect it meanwhile.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(CHECK_INTERVAL_S, left)):
                    await connected.wait()

    async def _is_connected(self, server: str, principal: str, scope: str | None) -> bool:
        login = await asyncio.to_thread(self._logins.load, server, principal)
        if login is None or login.ended:
            return False
        return set((scope or "").split()) <= set((login.scope or "").split())

    async def request_of(self, ticket: str) -> ConnectRequest | None:
        kept = await asyncio.to_thread(self._logins.note, _digest("page", ticket))
        settings = self._servers.get(str(kept["server"])) if kept is not None else None
        if kept is None or settings is None:
            return None
        return ConnectRequest(settings.server, str(kept["principal"]), settings.resource, kept.get("scope"))

    async def begin(self, ticket: str, browser: str) -> str:
        request = await self.request_of(ticket)
        if request is None:
            raise AccountLoginRefused(
                "This link has expired or was never issued. Call the tool again to get a new one."
            )
        return await self._begin(request, browser)

    async def begin_shared(self, server: str, browser: str) -> str:
        settings = self._servers.get(server)
        if settings is None:
            raise AccountLoginRefused("The server is not configured, or has no accounts.")
        return await self._begin(ConnectRequest(server, "", settings.resource), browser)

    async def _begin(self, request: ConnectRequest, browser: str) -> str:
        settings = self._servers[request.server]
        documents = self._documents(settings)
        try:
            challenge = Challenge.from_header(await documents.challenge(settings.resource))
            protected = await protected_resource(settings.resource, settings.issuer, documents, challenge)
            authority = await authority_of(protected.issuer, documents)
            client = await self._client(settings, authority, documents)
        except IssuerUnavailable as fault:
            raise AccountLoginRefused(f"The login cannot be started: {fault}.") from None
        oauth_scope = request.scope or settings.scope or challenge.scope or " ".join(protected.scopes)
        return await self._sent_off(replace(request, scope=oauth_scope), authority, client, protected, browser)

    async def _sent_off(
        self,
        request: ConnectRequest,
        authority: AuthorizationServer,
        client: _Client,
        protected: ProtectedResource,
        browser: str,
    ) -> str:
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(32)
        scope = joined_scopes(request.scope, _offline(authority))
        redirect_uri = f"{self._base()}{CALLBACK}"
        login = _LoginInProgress(
            server=request.server,
            principal=request.principal,
            resource=protected.resource,
            issuer=authority.issuer,
            sends_issuer=authority.sends_issuer,
            token_endpoint=authority.token_endpoint,
            client_id=client.client_id,
            client_secret=client.client_secret,
            secret_in_form=client.secret_in_form,
            verifier=verifier,
            browser=_digest("browser", browser),
            redirect_uri=redirect_uri,
            scope=scope,
        )
        await asyncio.to_thread(self._logins.keep_note, _digest("state", state), asdict(login), LOGIN_VALID_S)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        parameters = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": state,
            "resource": protected.resource,
        } | ({"scope": scope} if scope else {})
        if scope is not None and "offline_access" in scope.split():
            parameters["prompt"] = "consent"  # OpenID Connect issues no refresh token without it.
        return _with_query(authority.authorization_endpoint, parameters)

    async def _client(self, settings: StoredLogin, authority: AuthorizationServer, documents: Documents) -> _Client:
        """The configured client, our metadata document, or a registration at the issuer, in this order of preference."""
        if settings.client_id is not None:
            in_form = authority.auth_methods == ("client_secret_post",)
            return _Client(settings.client_id, settings.client_secret, in_form)
        if authority.takes_metadata_urls and self._base().startswith("https://"):
            return _Client(f"{self._base()}{CLIENT_DOCUMENT}")
        redirect_uri = f"{self._base()}{CALLBACK}"
        name = f"client {authority.issuer} {redirect_uri}"
        known = await asyncio.to_thread(self._logins.note, name)
        if known is not None:
            return _Client(**known)
        if authority.registration_endpoint is None:
            raise IssuerUnavailable(f"{authority.issuer} does not register clients: set client_id in the server's auth")
        methods = ("none", "client_secret_basic", "client_secret_post")
        method = next((each for each in methods if each in authority.auth_methods), "client_secret_basic")
        body = {**self._described(), "redirect_uris": [redirect_uri], "token_endpoint_auth_method": method}
        reply = await documents.post_json(authority.registration_endpoint, authority.issuer, body)
        secret = reply.get("client_secret")
        method = str(reply.get("token_endpoint_auth_method") or method)
        client = _Client(
            str(reply.get("client_id") or ""),
            secret if isinstance(secret, str) and method != "none" else None,
            method == "client_secret_post",
        )
        if not client.client_id:
            raise IssuerUnavailable(f"{authority.issuer} returned no client_id for the registration")
        await asyncio.to_thread(self._logins.keep_note, name, asdict(client))
        return client

    async def finish(
        self, query: Mapping[str, str], browser: str, may_connect: Callable[[str], bool]
    ) -> ConnectRequest:
        kept = await asyncio.to_thread(self._logins.take_note, _digest("state", query.get("state", "")))
        if kept is None:
            raise AccountLoginRefused("This login was already finished, has expired, or was not started here.")
        login = _LoginInProgress(**kept)
        if not hmac.compare_digest(login.browser, _digest("browser", browser)):
            raise AccountLoginRefused("This login was started in another browser. Start it again in this one.")
        if not may_connect(login.principal):
            raise AccountLoginRefused("This login was started for another caller than the one you are logged in as.")
        issuer = query.get("iss")
        if (login.sends_issuer or issuer is not None) and issuer != login.issuer:
            raise AccountLoginRefused(
                "The response came from another issuer than the one where the login was started. Nothing was connected."
            )
        if "error" in query:
            raise AccountLoginRefused(f"The login was refused by {login.issuer}: {query['error'][:60]}.")
        if login.server not in self._servers or not query.get("code"):
            raise AccountLoginRefused("The login response contained no code.")
        await self._redeem(login, query["code"])
        return ConnectRequest(login.server, login.principal, login.resource, login.scope)

    async def _redeem(self, login: _LoginInProgress, code: str) -> None:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect_uri,
            "code_verifier": login.verifier,
            "resource": login.resource,
        }
        proof = client_proof(form, login.client_id, login.client_secret, secret_in_form=login.secret_in_form)
        documents = self._documents(self._servers[login.server])
        try:
            reply = await documents.post_form(login.token_endpoint, login.issuer, form, proof)
        except IssuerRefused as refusal:
            raise AccountLoginRefused(f"{login.issuer} rejected the code: {refusal.error}.") from None
        except IssuerUnavailable as fault:
            raise AccountLoginRefused(f"The login failed: {fault}.") from None
        made = login_in(reply, login.issuer, login.client_id, login.client_secret, login.scope)
        made = replace(made, secret_in_form=login.secret_in_form)
        await asyncio.to_thread(self._logins.keep, login.server, made, login.principal)
        self._logged_in(login.server, login.principal)

    def _logged_in(self, server: str, principal: str) -> None:
        """Wake the calls that wait for a login."""
        connected = self._waiting.pop((server, principal), None)
        if connected is not None:
            connected.set()

    async def accounts(self, server: str) -> list[AccountRow] | None:
        if server not in self._servers:
            return None
        every = await asyncio.to_thread(self._logins.of_server, server)
        return [account_row(principal, every[principal]) for principal in sorted(every)]

    async def accounts_of(self, principal: str) -> dict[str, AccountRow]:
        found = {server: await asyncio.to_thread(self._logins.load, server, principal) for server in self._servers}
        return {server: account_row(principal, login) for server, login in found.items() if login is not None}

    async def disconnect(self, server: str, principal: str) -> bool:
        return await asyncio.to_thread(self._logins.forget, server, principal)

    async def reload_accounts(self) -> None:
        await asyncio.to_thread(self._logins.reload)

    def client_document(self) -> dict[str, Any]:
        return {
            "client_id": f"{self._base()}{CLIENT_DOCUMENT}",
            **self._described(),
            "redirect_uris": [f"{self._base()}{CALLBACK}"],
            "token_endpoint_auth_method": "none",
        }

    def _described(self) -> dict[str, Any]:
        return {
            "client_name": "Taskgate",
            "client_uri": self._base(),
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "web" if self._base().startswith("https://") else "native",
        }

    async def signing_keys(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._assertions.public_keys)


def account_row(principal: str, login: Login) -> AccountRow:
    """An account without secrets."""
    ended = login.ended or (
        login.refresh_token is None and login.expires_at is not None and login.expires_at <= clock.wall()
    )
    return AccountRow(
        principal=principal or None,
        state="ended" if ended else "connected",
        issuer=login.issuer,
        scope=login.scope,
        renews=login.refresh_token is not None and not login.ended,
        expires_at=None if login.expires_at is None else int(login.expires_at),
    )


def login_in(reply: Mapping[str, Any], issuer: str, client_id: str, secret: str | None, scope: str | None) -> Login:
    """The login in an issuer's token response. Raises AccountLoginRefused."""
    token, life, refresh = reply.get("access_token"), reply.get("expires_in"), reply.get("refresh_token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise AccountLoginRefused(f"{issuer} returned no valid token.")
    timed = isinstance(life, (int, float)) and not isinstance(life, bool) and 0 < life < 10**9
    granted = reply.get("scope")
    return Login(
        issuer=issuer,
        client_id=client_id,
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) else None,
        client_secret=secret,
        scope=granted if isinstance(granted, str) else scope,
        expires_at=clock.wall() + float(life) if timed and life is not None else None,
    )


def _offline(authority: AuthorizationServer) -> str | None:
    """The scope with which these issuers return refresh tokens."""
    return "offline_access" if "offline_access" in authority.scopes else None


def _with_query(address: str, parameters: Mapping[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(parameters)}"


def _digest(kind: str, value: str) -> str:
    """A digest for the store, from which the value cannot be recovered."""
    return f"{kind} {hashlib.sha256(value.encode()).hexdigest()}"
