"""Access tokens for servers: fetched with our own credentials or out of somebody's login, renewed before they end.

One request for a token at a time, whoever waits for it: fifty callers with an ended token cause one. The old token stays in use
until the new one is there. Tokens go to the server that they were issued for and stand in no log, error or status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from taskgate import clock
from taskgate.identity.documents import Documents
from taskgate.identity.signing_keys import issuer_metadata
from taskgate.ports.credentials import IssuerUnavailable
from taskgate.ports.upstream_credentials import HeaderPairs, LoginNeeded

USUAL_LIFE_S: Final = 3600.0
RENEW_BEFORE: Final = 0.2
"""Which part of a token's life is left when the next one is fetched."""
TRY_AGAIN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The gateway's own account at the issuer of a server (RFC 6749, 4.4)."""

    server: str
    resource: str
    client_id: str
    client_secret: str = field(repr=False)
    issuer: str | None = None
    """None: the server's own metadata name it."""
    token_url: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """What a person's login left: how to get further tokens without them."""

    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    client_secret: str | None = field(repr=False, default=None)
    scope: str | None = None
    expires_at: float | None = None


class Logins(Protocol):
    """Where logins are kept, so that the command that makes one and the gateway that uses it find the same."""

    def load(self, server: str) -> Login | None: ...

    def keep(self, server: str, login: Login) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """Somebody's login, shared by everybody who may use the server."""

    server: str
    resource: str


@dataclass(frozen=True, slots=True)
class _Token:
    headers: HeaderPairs = field(repr=False)
    renew_at: float
    ends_at: float


class ServerTokens:
    """The credentials of one server. Two of them are equal if they come from the same settings."""

    def __init__(
        self, settings: ClientCredentials | StoredLogin, documents: Callable[[], Documents], logins: Logins
    ) -> None:
        self._settings = settings
        self._documents = documents
        self._logins = logins
        self._token: _Token | None = None
        self._fetching: asyncio.Task[_Token] | None = None
        self._failed_at: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerTokens) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def headers(self) -> HeaderPairs:
        token = self._token
        if token is None:
            return ()
        if clock.monotonic() >= token.renew_at and self._may_try():
            self._begin()
        return token.headers

    async def ready(self) -> None:
        if self._token is None or clock.monotonic() >= self._token.ends_at:
            await asyncio.shield(self._begin())

    async def renew(self, refused: HeaderPairs) -> bool:
        if self._token is not None and self._token.headers != refused:
            return True
        return (await asyncio.shield(self._begin())).headers != refused

    def _may_try(self) -> bool:
        return self._failed_at is None or clock.monotonic() - self._failed_at >= TRY_AGAIN_AFTER_S

    def _begin(self) -> asyncio.Task[_Token]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._fetching

    async def _fetch(self) -> _Token:
        settings = self._settings
        try:
            if isinstance(settings, ClientCredentials):
                self._token = await self._by_client(settings)
            else:
                self._token = await self._by_login(settings)
        except IssuerUnavailable as fault:
            self._failed_at = clock.monotonic()
            what_to_do = "Look at the server's `auth` and at its issuer, then try again."
            if isinstance(settings, StoredLogin):
                what_to_do = f"Run `taskgate servers login {settings.server}`, then try again."
            raise LoginNeeded(settings.server, f"no token could be had ({fault})", what_to_do) from None
        except LoginNeeded:
            self._failed_at = clock.monotonic()
            raise
        return self._token

    async def _by_client(self, settings: ClientCredentials) -> _Token:
        issuer, url = await self._token_endpoint(settings.resource, settings.issuer, settings.token_url)
        form = {"grant_type": "client_credentials", "resource": settings.resource}
        if settings.scope:
            form["scope"] = settings.scope
        said = await self._documents().post_form(url, issuer, form, (settings.client_id, settings.client_secret))
        return _token_in(said)

    async def _by_login(self, settings: StoredLogin) -> _Token:
        login = await asyncio.to_thread(self._logins.load, settings.server)
        if login is None:
            what_to_do = f"Run `taskgate servers login {settings.server}`, then try again."
            raise LoginNeeded(settings.server, "nobody has logged in there yet", what_to_do)
        before = self._token.headers if self._token is not None else ()
        fresh = _bearer(login.access_token)
        if fresh != before and (login.expires_at is None or clock.wall() < login.expires_at - 30):
            life = USUAL_LIFE_S if login.expires_at is None else login.expires_at - clock.wall()
            return _token_of(fresh, life)
        if login.refresh_token is None:
            what_to_do = f"Run `taskgate servers login {settings.server}`, then try again."
            raise LoginNeeded(settings.server, "the login has ended", what_to_do)
        return await self._refreshed(settings, login, login.refresh_token)

    async def _refreshed(self, settings: StoredLogin, login: Login, refresh_token: str) -> _Token:
        issuer, url = await self._token_endpoint(settings.resource, login.issuer, None)
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": settings.resource}
        credentials = None
        if login.client_secret is not None:
            credentials = (login.client_id, login.client_secret)
        else:
            form["client_id"] = login.client_id
        said = await self._documents().post_form(url, issuer, form, credentials)
        token = _token_in(said)
        renewed = Login(
            login.issuer,
            login.client_id,
            str(said["access_token"]),
            str(said.get("refresh_token") or refresh_token),
            login.client_secret,
            login.scope,
            clock.wall() + (token.ends_at - clock.monotonic()),
        )
        await asyncio.to_thread(self._logins.keep, settings.server, renewed)
        return token

    async def _token_endpoint(self, resource: str, issuer: str | None, url: str | None) -> tuple[str, str]:
        """The issuer and its token endpoint. Raises IssuerUnavailable."""
        if url is not None:
            return issuer or _origin(url), url
        issuer = issuer or await self._issuer_of(resource)
        found = (await issuer_metadata(issuer, self._documents())).get("token_endpoint")
        if not isinstance(found, str):
            raise IssuerUnavailable(f"{issuer} names no token_endpoint")
        return issuer, found

    async def _issuer_of(self, resource: str) -> str:
        """The first issuer that the server's own metadata name (RFC 9728)."""
        well_known = f"{_origin(resource)}/.well-known/oauth-protected-resource"
        for address in dict.fromkeys((well_known + urlsplit(resource).path.rstrip("/"), well_known)):
            try:
                document = await self._documents().get(address, resource)
            except IssuerUnavailable:
                continue
            issuers = document.get("authorization_servers")
            if isinstance(issuers, list) and issuers and isinstance(issuers[0], str):
                return issuers[0]
        raise IssuerUnavailable(f"{resource} does not say who issues tokens for it; name the issuer")


def _token_in(said: dict[str, Any]) -> _Token:
    token, life = said.get("access_token"), said.get("expires_in")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise IssuerUnavailable("the issuer gave no usable access token")
    if str(said.get("token_type", "Bearer")).lower() != "bearer":
        raise IssuerUnavailable("the issuer gave a token of an unknown type")
    usable = isinstance(life, (int, float)) and not isinstance(life, bool) and 0 < life < 10**9
    return _token_of(_bearer(token), float(life) if usable and life is not None else USUAL_LIFE_S)


def _token_of(headers: HeaderPairs, life_s: float) -> _Token:
    now = clock.monotonic()
    return _Token(headers, now + life_s * (1 - RENEW_BEFORE), now + life_s)


def _bearer(token: str) -> HeaderPairs:
    return ((b"authorization", b"Bearer " + token.encode("ascii")),)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
