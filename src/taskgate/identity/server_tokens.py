"""Access tokens for servers: obtained with the gateway's own credentials, from a person's login, or in a caller's name.

One request for a token runs at a time: fifty callers with an expired token cause one, also where several gateways share a store.
The old token stays in use until the new one has arrived. A token is sent only to the server that it was issued for, and is in no
log, error or status. Credentials that callers send are never used here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.identity.access_token import (
    DEFAULT_LIFETIME_S,
    AccessToken,
    bearer_header,
    token_from_reply,
    token_valid_for,
)
from taskgate.identity.assertions import Assertions
from taskgate.identity.discovery import joined_scopes, protected_resource, token_endpoint
from taskgate.identity.documents import Documents, IssuerRefused
from taskgate.identity.login_store import Login, LoginStore
from taskgate.identity.token_settings import ClientCredentials, ForwardedIdentity, Settings, StoredLogin, TokenExchange
from taskgate.mcp.oauth_challenge import Challenge
from taskgate.mcp.oauth_discovery import origin_of
from taskgate.ports.caller_credentials import IssuerUnavailable
from taskgate.ports.upstream_credentials import AccountNeeded, HeaderPairs, LoginNeeded

TRY_AGAIN_AFTER_S: Final = 5.0
CLAIM_S: Final = 20.0
FETCH_S: Final = 90.0  # A safeguard: each step has its own, shorter timeout.
CHECK_INTERVAL_S: Final = 0.25
MAX_PRINCIPALS: Final = 10_000
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"


class FetcherFactory(Protocol):
    """Creates the fetcher of documents of a server's issuer. `known` is an issuer of an existing login."""

    def __call__(self, settings: Settings, known: str | None = None) -> Documents: ...


class TokenDeps(msgspec.Struct, frozen=True):
    """Dependencies that the tokens of all servers share."""

    documents: FetcherFactory
    logins: LoginStore
    assertions: Assertions


class ServerTokens:
    """The credentials for one server, shared or of one principal. Two are equal if their settings are equal."""

    def __init__(self, settings: Settings, deps: TokenDeps, principal: str = "") -> None:
        self._settings = settings
        self._deps = deps
        self._principal = principal
        self._others: OrderedDict[str, ServerTokens] = OrderedDict()
        self._token: AccessToken | None = None
        self._source = principal
        """The principal whose login the token belongs to."""
        self._in_use: object | None = None
        self._fetching: asyncio.Task[AccessToken] | None = None
        self._failed_at: float | None = None
        self._was_refused = False
        self._scope: str | None = None if isinstance(settings, ForwardedIdentity) else settings.scope

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerTokens) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def per_principal(self) -> bool:
        return self._settings.per_principal

    def of(self, principal: str) -> ServerTokens:
        if not self._settings.per_principal or principal == self._principal:
            return self
        found = self._others.get(principal)
        if found is None:
            found = self._others[principal] = ServerTokens(self._settings, self._deps, principal)
            if len(self._others) > MAX_PRINCIPALS:
                self._others.popitem(last=False)
        return found

    @property
    def headers(self) -> HeaderPairs:
        settings = self._settings
        if isinstance(settings, ForwardedIdentity):
            return self._stated(settings)
        token = self._current()
        if token is None:
            return ()
        if clock.monotonic() >= token.renew_at and self._may_try():
            self._begin()
        return token.headers

    def _current(self) -> AccessToken | None:
        """The cached token, unless the account has been disconnected, here or at another gateway."""
        settings = self._settings
        if self._token is not None and isinstance(settings, StoredLogin):
            now = self._deps.logins.in_use(settings.server, self._source)
            if now is None or now is not self._in_use:
                self._token = None
        return self._token

    def _stated(self, settings: ForwardedIdentity) -> HeaderPairs:
        text = self._deps.assertions.about(self._principal, settings.resource).encode("ascii")
        name = settings.header.lower().encode("ascii")
        return ((name, b"Bearer " + text if name == b"authorization" else text),)

    async def ready(self) -> None:
        if isinstance(self._settings, ForwardedIdentity):
            return
        if self._current() is None and await self._may_need_none(self._settings):
            return
        if self._token is None or clock.monotonic() >= self._token.ends_at:
            await asyncio.shield(self._begin())

    async def _may_need_none(self, settings: Settings) -> bool:
        """Whether a shared server has no login yet: it is called without a token, and may then require one."""
        if not isinstance(settings, StoredLogin) or settings.per_principal:
            return False
        return await asyncio.to_thread(self._deps.logins.load, settings.server) is None

    async def renew(self, refused: HeaderPairs, challenge: str = "") -> bool:
        if isinstance(self._settings, ForwardedIdentity):
            return False
        token = self._current()
        if token is not None and token.headers != refused:
            return True
        self._was_refused = True
        required = Challenge.from_header(challenge)
        if required.insufficient_scope and required.scope is not None:
            if isinstance(self._settings, StoredLogin) and await self._has_new_login(self._settings):
                return True
            self._require_scope(self._settings, required.scope)
        return (await asyncio.shield(self._begin())).headers != refused

    async def _has_new_login(self, settings: StoredLogin) -> bool:
        """Whether there is a newer login than the current token's, which may have more scopes."""
        login = await asyncio.to_thread(self._deps.logins.load, settings.server, self._principal)
        fresh = self._unused(login) if login is not None else None
        if fresh is not None:
            self._token, self._source = fresh, self._principal
            self._in_use = self._deps.logins.in_use(settings.server, self._principal)
        elif login is not None:
            # Request the granted scopes again, together with the missing ones.
            self._scope = joined_scopes(self._scope, login.scope)
        return fresh is not None

    def _require_scope(self, settings: ClientCredentials | StoredLogin | TokenExchange, scope: str) -> None:
        """The server requires more scopes, which a login can only get by logging in again. Raises LoginNeeded."""
        oauth_scope = joined_scopes(self._scope, scope)
        if not isinstance(settings, StoredLogin):
            self._scope = oauth_scope
            return
        if settings.per_principal and self._principal:
            raise AccountNeeded(
                settings.server, self._principal, "the server requires more permissions than were granted", oauth_scope
            )
        what_to_do = f"Run `taskgate servers login {settings.server} --scope '{oauth_scope}'`, then try again."
        raise LoginNeeded(settings.server, "the server requires more permissions than the login has", what_to_do)

    def _may_try(self) -> bool:
        return self._failed_at is None or clock.monotonic() - self._failed_at >= TRY_AGAIN_AFTER_S

    def _begin(self) -> asyncio.Task[AccessToken]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._fetching

    async def _fetch(self) -> AccessToken:
        settings = self._settings
        try:
            async with asyncio.timeout(FETCH_S):
                if isinstance(settings, StoredLogin):
                    self._token = await self._by_login(settings)
                    self._in_use = self._deps.logins.in_use(settings.server, self._source)
                else:
                    assert not isinstance(settings, ForwardedIdentity)
                    self._token = await self._by_client(settings)
        except (IssuerUnavailable, TimeoutError) as fault:
            self._failed_at = clock.monotonic()
            what_to_do = "Check the server's `auth` settings and its issuer, then try again."
            why = f"no token could be obtained ({str(fault) or 'timeout'})"
            raise LoginNeeded(settings.server, why, what_to_do) from None
        except LoginNeeded:
            self._failed_at = clock.monotonic()
            raise
        return self._token

    async def _by_client(self, settings: ClientCredentials | TokenExchange) -> AccessToken:
        documents = self._deps.documents(settings)
        issuer, url = settings.issuer, settings.token_url
        if url is None:
            issuer = (await protected_resource(settings.resource, issuer, documents)).issuer
            url = await token_endpoint(issuer, documents)
        form = {"grant_type": "client_credentials", "resource": settings.resource}
        if isinstance(settings, TokenExchange):
            statement = self._deps.assertions.about(self._principal, issuer or origin_of(url))
            form |= {"grant_type": _EXCHANGE, "subject_token": statement, "subject_token_type": _JWT}
        if self._scope:
            form["scope"] = self._scope
        account = (settings.client_id, settings.client_secret)
        return token_from_reply(await documents.post_form(url, issuer or origin_of(url), form, account))

    async def _by_login(self, settings: StoredLogin) -> AccessToken:
        login = await asyncio.to_thread(self._deps.logins.load, settings.server, self._principal)
        self._source = self._principal
        if login is None:
            borrowed = await self._borrowed(settings) if settings.per_principal and not self._principal else None
            if borrowed is None:
                raise self._missing(settings, "no account is connected yet")
            return borrowed
        fresh = self._unused(login)
        if fresh is not None:
            return fresh
        if login.refresh_token is None or login.ended:
            if self._was_refused:
                await self._end(settings, login)
            raise self._missing(settings, "the login has expired or was revoked")
        return await self._renewed_alone(settings, login)

    async def _borrowed(self, settings: StoredLogin) -> AccessToken | None:
        """Lists are fetched with the shared account or, without one, with the first valid account."""
        every = await asyncio.to_thread(self._deps.logins.of_server, settings.server)
        source = next((principal for principal in sorted(every) if not every[principal].ended), None)
        if source is None:
            return None
        if source == self._principal:
            # The shared account has been connected meanwhile. Waiting for our own token would be a deadlock.
            return await self._by_login(settings)
        theirs, refused = self.of(source), self._token
        try:
            await theirs.ready()
            if self._was_refused and refused is not None and theirs.headers == refused.headers:
                await theirs.renew(refused.headers)
        except AccountNeeded:
            # Lists are fetched for all callers, so no caller can be asked to log in.
            raise self._missing(settings, "the account used to fetch lists has expired or was revoked") from None
        self._source = source
        return theirs._token

    def _unused(self, login: Login) -> AccessToken | None:
        """The token of the login, if it is not the one in use and has not expired."""
        before = self._token.headers if self._token is not None else ()
        fresh = bearer_header(login.access_token)
        if login.ended or fresh == before or (login.expires_at is not None and clock.wall() >= login.expires_at - 30):
            return None
        return token_valid_for(
            fresh, DEFAULT_LIFETIME_S if login.expires_at is None else login.expires_at - clock.wall()
        )

    async def _renewed_alone(self, settings: StoredLogin, login: Login) -> AccessToken:
        """Renew a login while no other gateway does; the others then find the new token in the store."""
        logins, server, owner = self._deps.logins, settings.server, secrets.token_hex(8)
        until = clock.monotonic() + 2 * CLAIM_S
        while not await asyncio.to_thread(logins.claim, server, self._principal, owner, CLAIM_S):
            if clock.monotonic() >= until:
                raise IssuerUnavailable("timeout while another gateway renews the login")
            await clock.sleep(CHECK_INTERVAL_S)
        try:
            current = await asyncio.to_thread(logins.load, server, self._principal)
            if current is None:
                raise self._missing(settings, "the account was disconnected")
            fresh = self._unused(current) if current != login else None
            if fresh is not None:
                return fresh
            if current.ended or current.refresh_token is None or await self._moved(settings, current):
                await self._end(settings, current)
                raise self._missing(settings, "the login has expired or was revoked")
            return await self._refreshed(settings, current, current.refresh_token)
        finally:
            await asyncio.to_thread(logins.release, server, self._principal, owner)

    async def _moved(self, settings: StoredLogin, login: Login) -> bool:
        """Whether the server, after refusing our token, names another issuer than that of the token."""
        if settings.issuer is not None or not self._was_refused:
            return False
        try:
            found = await protected_resource(settings.resource, None, self._deps.documents(settings, login.issuer))
        except IssuerUnavailable:
            return False
        return found.issuer != login.issuer

    async def _refreshed(self, settings: StoredLogin, login: Login, refresh_token: str) -> AccessToken:
        documents = self._deps.documents(settings, login.issuer)
        url = await token_endpoint(login.issuer, documents)
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": settings.resource}
        proof = login.prove(form)
        try:
            reply = await documents.post_form(url, login.issuer, form, proof)
        except IssuerRefused as refusal:
            if refusal.error != "invalid_grant":
                raise
            # Stored as ended, so that no gateway tries again: the person has to log in.
            await self._end(settings, login)
            raise self._missing(settings, "the login has expired or was revoked") from None
        token = token_from_reply(reply)
        renewed = replace(
            login,
            access_token=str(reply["access_token"]),
            refresh_token=str(reply.get("refresh_token") or refresh_token),
            expires_at=clock.wall() + (token.ends_at - clock.monotonic()),
        )
        if not await asyncio.to_thread(self._deps.logins.update, settings.server, renewed, self._principal):
            raise self._missing(settings, "the account was disconnected")
        return token

    async def _end(self, settings: StoredLogin, login: Login) -> None:
        ended = replace(login, ended=True)
        await asyncio.to_thread(self._deps.logins.update, settings.server, ended, self._principal)

    def _missing(self, settings: StoredLogin, why: str) -> LoginNeeded:
        if settings.per_principal and self._principal:
            return AccountNeeded(settings.server, self._principal, why)
        return LoginNeeded(settings.server, why, f"Run `taskgate servers login {settings.server}`, then try again.")
