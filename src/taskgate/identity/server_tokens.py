"""Access tokens for servers: fetched with our own credentials, out of somebody's login, or in a caller's name; renewed before they
end.

One request for a token at a time, whoever waits for it: fifty callers with an ended token cause one, also where several gateways
share a store. The old token stays in use until the new one is there. Tokens go to the server that they were issued for and stand in
no log, error or status. What a caller sent us as a credential is never used here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Protocol

from taskgate import clock
from taskgate.identity.access_token import USUAL_LIFE_S, AccessToken, bearer_header, token_from_reply, token_lasting
from taskgate.identity.assertions import Assertions
from taskgate.identity.discovery import challenge_in, joined_scopes, origin_of, protected_resource, token_endpoint
from taskgate.identity.documents import Documents, IssuerRefused
from taskgate.identity.kept_logins import KeptLogins, Login
from taskgate.identity.token_settings import ClientCredentials, ForwardedIdentity, Settings, StoredLogin, TokenExchange
from taskgate.ports.credentials import AccountNeeded, HeaderPairs, IssuerUnavailable, LoginNeeded

TRY_AGAIN_AFTER_S: Final = 5.0
CLAIM_S: Final = 20.0
FETCH_S: Final = 90.0  # Each step has a time of its own, which is shorter; this one only ends what would never end.
LOOK_EVERY_S: Final = 0.25
MOST_PRINCIPALS: Final = 10_000
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"


class Documenting(Protocol):
    """Gives the means to fetch documents about a server's issuer. `known` is an issuer that somebody has logged in at."""

    def __call__(self, settings: Settings, known: str | None = None) -> Documents: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What all servers' tokens are fetched with."""

    documents: Documenting
    logins: KeptLogins
    assertions: Assertions


class ServerTokens:
    """The credentials of one server, of everybody or of one principal. Two are equal if they come from the same settings."""

    def __init__(self, settings: Settings, means: Means, principal: str = "") -> None:
        self._settings = settings
        self._means = means
        self._principal = principal
        self._others: OrderedDict[str, ServerTokens] = OrderedDict()
        self._token: AccessToken | None = None
        self._lender = principal
        """Whose login the token is of."""
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
            found = self._others[principal] = ServerTokens(self._settings, self._means, principal)
            if len(self._others) > MOST_PRINCIPALS:
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
        """The token in memory, unless the account was disconnected since: here, or at another gateway."""
        settings = self._settings
        if self._token is not None and isinstance(settings, StoredLogin):
            now = self._means.logins.in_use(settings.server, self._lender)
            if now is None or now is not self._in_use:
                self._token = None
        return self._token

    def _stated(self, settings: ForwardedIdentity) -> HeaderPairs:
        text = self._means.assertions.about(self._principal, settings.resource).encode("ascii")
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
        """Whether nobody has logged in to a server that all share: it is tried without, and says if it wants a login."""
        if not isinstance(settings, StoredLogin) or settings.per_principal:
            return False
        return await asyncio.to_thread(self._means.logins.load, settings.server) is None

    async def renew(self, refused: HeaderPairs, challenge: str = "") -> bool:
        if isinstance(self._settings, ForwardedIdentity):
            return False
        token = self._current()
        if token is not None and token.headers != refused:
            return True
        self._was_refused = True
        asked = challenge_in(challenge)
        if asked.wants_more and asked.scope is not None:
            if isinstance(self._settings, StoredLogin) and await self._has_new_login(self._settings):
                return True
            self._want_more(self._settings, asked.scope)
        return (await asyncio.shield(self._begin())).headers != refused

    async def _has_new_login(self, settings: StoredLogin) -> bool:
        """Whether somebody has logged in since the present token was taken; that one may be allowed more."""
        login = await asyncio.to_thread(self._means.logins.load, settings.server, self._principal)
        fresh = self._unused(login) if login is not None else None
        if fresh is not None:
            self._token, self._lender = fresh, self._principal
            self._in_use = self._means.logins.in_use(settings.server, self._principal)
        elif login is not None:
            # What was given before is asked for again, beside what is missing.
            self._scope = joined_scopes(self._scope, login.scope)
        return fresh is not None

    def _want_more(self, settings: ClientCredentials | StoredLogin | TokenExchange, scope: str) -> None:
        """The server wants a token that may do more. A login must be made anew for that. Raises LoginNeeded."""
        wanted = joined_scopes(self._scope, scope)
        if not isinstance(settings, StoredLogin):
            self._scope = wanted
            return
        if settings.per_principal and self._principal:
            raise AccountNeeded(settings.server, self._principal, "it wants more rights than were given", wanted)
        what_to_do = f"Run `taskgate servers login {settings.server} --scope '{wanted}'`, then try again."
        raise LoginNeeded(settings.server, "it wants more rights than the login has", what_to_do)

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
                    self._in_use = self._means.logins.in_use(settings.server, self._lender)
                else:
                    assert not isinstance(settings, ForwardedIdentity)
                    self._token = await self._by_client(settings)
        except (IssuerUnavailable, TimeoutError) as fault:
            self._failed_at = clock.monotonic()
            what_to_do = "Look at the server's `auth` and at its issuer, then try again."
            why = f"no token could be had ({str(fault) or 'it took too long'})"
            raise LoginNeeded(settings.server, why, what_to_do) from None
        except LoginNeeded:
            self._failed_at = clock.monotonic()
            raise
        return self._token

    async def _by_client(self, settings: ClientCredentials | TokenExchange) -> AccessToken:
        documents = self._means.documents(settings)
        issuer, url = settings.issuer, settings.token_url
        if url is None:
            issuer = (await protected_resource(settings.resource, issuer, documents)).issuer
            url = await token_endpoint(issuer, documents)
        form = {"grant_type": "client_credentials", "resource": settings.resource}
        if isinstance(settings, TokenExchange):
            statement = self._means.assertions.about(self._principal, issuer or origin_of(url))
            form |= {"grant_type": _EXCHANGE, "subject_token": statement, "subject_token_type": _JWT}
        if self._scope:
            form["scope"] = self._scope
        account = (settings.client_id, settings.client_secret)
        return token_from_reply(await documents.post_form(url, issuer or origin_of(url), form, account))

    # Somebody's login

    async def _by_login(self, settings: StoredLogin) -> AccessToken:
        login = await asyncio.to_thread(self._means.logins.load, settings.server, self._principal)
        self._lender = self._principal
        if login is None:
            borrowed = await self._borrowed(settings) if settings.per_principal and not self._principal else None
            if borrowed is None:
                raise self._missing(settings, "nobody has logged in there yet")
            return borrowed
        usable = self._unused(login)
        if usable is not None:
            return usable
        if login.refresh_token is None or login.ended:
            if self._was_refused:
                await self._end(settings, login)
            raise self._missing(settings, "the login has ended")
        return await self._renewed_alone(settings, login)

    async def _borrowed(self, settings: StoredLogin) -> AccessToken | None:
        """Lists are fetched with the account that all share; without one, with the first account that is good."""
        every = await asyncio.to_thread(self._means.logins.of_server, settings.server)
        lender = next((principal for principal in sorted(every) if not every[principal].ended), None)
        if lender is None:
            return None
        if lender == self._principal:
            # It has been connected since we looked for it. To ask ourselves for a token would be to wait for ourselves.
            return await self._by_login(settings)
        theirs, refused = self.of(lender), self._token
        try:
            await theirs.ready()
            if self._was_refused and refused is not None and theirs.headers == refused.headers:
                await theirs.renew(refused.headers)
        except AccountNeeded:
            # Nobody is there who could be asked: lists are fetched for everybody.
            raise self._missing(settings, "the account that lists are fetched with has ended") from None
        self._lender = lender
        return theirs._token

    def _unused(self, login: Login) -> AccessToken | None:
        """The login's own token, if it is not the one that is in use already and has not ended."""
        before = self._token.headers if self._token is not None else ()
        fresh = bearer_header(login.access_token)
        if login.ended or fresh == before or (login.expires_at is not None and clock.wall() >= login.expires_at - 30):
            return None
        return token_lasting(fresh, USUAL_LIFE_S if login.expires_at is None else login.expires_at - clock.wall())

    async def _renewed_alone(self, settings: StoredLogin, login: Login) -> AccessToken:
        """One gateway renews at a time; the others find what it got in the store."""
        logins, server, owner = self._means.logins, settings.server, secrets.token_hex(8)
        until = clock.monotonic() + 2 * CLAIM_S
        while not await asyncio.to_thread(logins.claim, server, self._principal, owner, CLAIM_S):
            if clock.monotonic() >= until:
                raise IssuerUnavailable("another gateway has been renewing the login for too long")
            await clock.sleep(LOOK_EVERY_S)
        try:
            current = await asyncio.to_thread(logins.load, server, self._principal)
            if current is None:
                raise self._missing(settings, "the account was disconnected")
            usable = self._unused(current) if current != login else None
            if usable is not None:
                return usable
            if current.ended or current.refresh_token is None or await self._moved(settings, current):
                await self._end(settings, current)
                raise self._missing(settings, "the login has ended")
            return await self._refreshed(settings, current, current.refresh_token)
        finally:
            await asyncio.to_thread(logins.release, server, self._principal, owner)

    async def _moved(self, settings: StoredLogin, login: Login) -> bool:
        """Whether the server, having refused our token, names another issuer now than the one that gave it."""
        if settings.issuer is not None or not self._was_refused:
            return False
        try:
            found = await protected_resource(settings.resource, None, self._means.documents(settings, login.issuer))
        except IssuerUnavailable:
            return False
        return found.issuer != login.issuer

    async def _refreshed(self, settings: StoredLogin, login: Login, refresh_token: str) -> AccessToken:
        documents = self._means.documents(settings, login.issuer)
        url = await token_endpoint(login.issuer, documents)
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": settings.resource}
        proof = login.prove(form)
        try:
            said = await documents.post_form(url, login.issuer, form, proof)
        except IssuerRefused as refusal:
            if refusal.error != "invalid_grant":
                raise
            # Written down, so that nobody asks the issuer again: only the person can help.
            await self._end(settings, login)
            raise self._missing(settings, "the login has ended") from None
        token = token_from_reply(said)
        renewed = replace(
            login,
            access_token=str(said["access_token"]),
            refresh_token=str(said.get("refresh_token") or refresh_token),
            expires_at=clock.wall() + (token.ends_at - clock.monotonic()),
        )
        if not await asyncio.to_thread(self._means.logins.update, settings.server, renewed, self._principal):
            raise self._missing(settings, "the account was disconnected")
        return token

    async def _end(self, settings: StoredLogin, login: Login) -> None:
        ended = replace(login, ended=True)
        await asyncio.to_thread(self._means.logins.update, settings.server, ended, self._principal)

    def _missing(self, settings: StoredLogin, why: str) -> LoginNeeded:
        if settings.per_principal and self._principal:
            return AccountNeeded(settings.server, self._principal, why)
        return LoginNeeded(settings.server, why, f"Run `taskgate servers login {settings.server}`, then try again.")
