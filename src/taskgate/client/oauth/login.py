"""Log in to one MCP server: authorization code with PKCE, refresh, and storage of the tokens.

The transport passes each refusal to `OAuth.answer`, which returns a new token or raises. Logins are serialised, so that
many requests that fail together cause one. A token is sent only to the server it was issued for.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from msgspec.structs import asdict

from taskgate import clock
from taskgate.client.errors import LoginFailed
from taskgate.client.oauth.credentials import ClientDescription, Credentials, obtain
from taskgate.client.oauth.discovery import Authority, discover_authority
from taskgate.client.oauth.fetcher import Fetcher, may_be_opened, read_object
from taskgate.mcp.oauth_challenge import Challenge

Visit = Callable[[str], Awaitable[str]]


class OAuth:
    """An OAuth login for `connect(auth=...)`.

    `visit` receives the address that the user must open, and returns the redirect address (which begins with `redirect_uri`);
    `browser_login()` does this with the user's browser. Set `client_id` (and `client_secret`) for a pre-registered client, or
    `metadata_url` for a published client description; otherwise the client is registered dynamically. `storage` is a mapping
    that keeps tokens by server; its contents are secret.
    """

    def __init__(
        self,
        visit: Visit,
        redirect_uri: str,
        *,
        client_name: str = "taskgate-client",
        client_id: str | None = None,
        client_secret: str | None = None,
        metadata_url: str | None = None,
        storage: MutableMapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._visit = visit
        self._description = ClientDescription(
            client_name=client_name,
            redirect_uri=redirect_uri,
            metadata_url=metadata_url,
            client_id=client_id,
            client_secret=client_secret,
        )
        self._storage = storage if storage is not None else {}
        self._fetcher = Fetcher(tls)
        self._lock = asyncio.Lock()
        self._given_to: str | None = None

    def token(self, url: str) -> str | None:
        """Return the access token for this server, or None."""
        token = self._kept(url).get("access_token")
        return token if isinstance(token, str) else None

    async def answer(self, url: str, header: str, used: str | None) -> str:
        """Return a new token after the server refused `used` with this `WWW-Authenticate` header. Raises LoginFailed."""
        async with self._lock:
            present = self.token(url)
            challenge = Challenge.from_header(header)
            if present is not None and present != used:
                return present  # another request already logged in
            return await self._login(url, challenge)

    async def _login(self, url: str, challenge: Challenge) -> str:
        authority = await discover_authority(self._fetcher, url, challenge)
        kept = self._kept(url)
        known = kept if kept.get("issuer") == authority.issuer else {}
        credentials = await self._credentials(authority, known)
        scope = scope_to_request(authority, challenge, known.get("scope"))
        if known.get("refresh_token") and challenge.error != "insufficient_scope":
            tokens = await self._refresh(authority, credentials, str(known["refresh_token"]))
        else:
            tokens = None
        if tokens is None:
            tokens = await self._authorize(authority, credentials, scope)
        return self._keep(url, authority, credentials, tokens, scope)

    async def _credentials(self, authority: Authority, known: dict[str, Any]) -> Credentials:
        if isinstance(known.get("client"), dict):
            return Credentials(**known["client"])
        if self._description.client_id is not None:
            if self._given_to not in (None, authority.issuer):
                raise LoginFailed(f"client_id belongs to {self._given_to} and is not sent to {authority.issuer}")
            self._given_to = authority.issuer
        return await obtain(self._fetcher, authority, self._description)

    async def _authorize(self, authority: Authority, credentials: Credentials, scope: str | None) -> dict[str, Any]:
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": credentials.client_id,
            "redirect_uri": self._description.redirect_uri,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "state": state,
            "resource": authority.resource,
        } | ({"scope": scope} if scope else {})
        joint = "&" if urlsplit(authority.authorization_endpoint).query else "?"
        if not may_be_opened(authority.authorization_endpoint):
            raise LoginFailed("the login page has no safe address (https is required); it was not opened")
        returned = await self._visit(f"{authority.authorization_endpoint}{joint}{urlencode(query)}")
        form = {
            "grant_type": "authorization_code",
            "code": read_code(returned, state, authority),
            "redirect_uri": self._description.redirect_uri,
            "code_verifier": verifier,
        }
        tokens = await self._ask_for_tokens(authority, credentials, form)
        if tokens is None:
            raise LoginFailed(f"{authority.issuer} returned no token for the code")
        return tokens

    async def _refresh(self, authority: Authority, credentials: Credentials, token: str) -> dict[str, Any] | None:
        form = {"grant_type": "refresh_token", "refresh_token": token}
        tokens = await self._ask_for_tokens(authority, credentials, form)
        return {"refresh_token": token, **tokens} if tokens is not None else None

    async def _ask_for_tokens(
        self, authority: Authority, credentials: Credentials, form: dict[str, str]
    ) -> dict[str, Any] | None:
        form["resource"] = authority.resource
        headers = credentials.sign(form)
        reply = await self._fetcher.post_form(authority.token_endpoint, form, headers)
        tokens = read_object(reply) if reply.status == 200 else None
        return tokens if tokens is not None and isinstance(tokens.get("access_token"), str) else None

    def _kept(self, url: str) -> dict[str, Any]:
        kept = self._storage.get(url)
        return kept if isinstance(kept, dict) else {}

    def _keep(
        self, url: str, authority: Authority, credentials: Credentials, tokens: dict[str, Any], scope: str | None
    ) -> str:
        self._storage[url] = {
            "issuer": authority.issuer,
            "client": asdict(credentials),
            "access_token": tokens["access_token"],
            "refresh_token": tokens.get("refresh_token"),
            "scope": tokens.get("scope") or scope,
            "expires_at": _end(tokens.get("expires_in")),
        }
        return str(tokens["access_token"])


def _end(expires_in: Any) -> float | None:
    """Return the expiry time of an access token in seconds since 1970, or None."""
    is_number = isinstance(expires_in, (int, float)) and not isinstance(expires_in, bool)
    return clock.wall() + expires_in if is_number else None


def scope_to_request(authority: Authority, challenge: Challenge, granted: Any) -> str | None:
    """Return the scopes to request: those of the challenge, else all that the server lists, plus those granted before."""
    if challenge.scope:
        scopes = challenge.scope.split()
    elif authority.resource_scopes is not None:
        scopes = list(authority.resource_scopes)
    else:
        return None
    if challenge.error == "insufficient_scope" and isinstance(granted, str):
        scopes = [*granted.split(), *scopes]
    if "offline_access" in authority.own_scopes:
        scopes.append("offline_access")  # needed for a refresh token
    return " ".join(dict.fromkeys(scopes)) or None


def read_code(returned: str, state: str, authority: Authority) -> str:
    """Return the code of the redirect address after checking state and issuer (RFC 6749, RFC 9207). Raises LoginFailed."""
    answer = {name: values[0] for name, values in parse_qs(urlsplit(returned).query).items()}
    if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise LoginFailed("the redirect has a wrong state")
    issuer = answer.get("iss")
    if (authority.sends_issuer or issuer is not None) and issuer != authority.issuer:
        raise LoginFailed(f"the redirect is from issuer {issuer!r}, not {authority.issuer!r}")
    if "error" in answer:
        raise LoginFailed(f"the login was refused: {answer.get('error_description') or answer['error']}")
    if not answer.get("code"):
        raise LoginFailed("the redirect has no code")
    return answer["code"]
