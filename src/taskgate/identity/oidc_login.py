"""Logs people in with an OpenID provider: authorization code with PKCE, state, nonce and the issuer parameter (RFC 9207).

The state of a login is in the browser's signed cookie, not in memory, so any gateway can finish a login that another one started.
The identity comes only from the signed ID token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from taskgate import clock
from taskgate.core.identity.claims import TokenProblem, TokenRefused, identity_in
from taskgate.core.identity.identity import Identity
from taskgate.identity.discovery import issuer_metadata
from taskgate.identity.documents import Documents, IssuerRefused, may_be_fetched
from taskgate.identity.signed_tokens import Issuer, check_signature, parse_token
from taskgate.ports.caller_credentials import IssuerUnavailable, LoginRefused, PendingLogin

METADATA_VALID_S: Final = 600.0
LONGEST_CODE: Final = 4096


class OidcLogin:
    def __init__(
        self, issuer: Issuer, client_id: str, client_secret: str | None, scopes: tuple[str, ...], documents: Documents
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._scopes = scopes
        self._documents = documents
        self._metadata: tuple[float, dict[str, Any]] | None = None

    async def begin(self, redirect_uri: str, back: str, *, fresh: bool) -> tuple[str, PendingLogin]:
        """The address to redirect the browser to, and the state to check on its return. Raises IssuerUnavailable."""
        metadata = await self._provider()
        endpoint = metadata.get("authorization_endpoint")
        if not isinstance(endpoint, str) or not may_be_fetched(endpoint, self._issuer.rules.issuer):
            raise IssuerUnavailable(f"{self._issuer.rules.issuer} names no safe authorization_endpoint")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = PendingLogin(
            state=state, nonce=nonce, verifier=verifier, back=back, fresh=fresh, at=int(clock.wall())
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge.decode("ascii"),
            "code_challenge_method": "S256",
        }
        if fresh:
            query |= {"max_age": "0", "prompt": "login"}
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}", pending

    async def finish(self, pending: PendingLogin, answer: Mapping[str, str], redirect_uri: str) -> Identity:
        """The person who logged in. Raises LoginRefused and IssuerUnavailable."""
        code = await self._code(pending, answer)
        claims, identity = await self._identity(await self._exchange(code, pending, redirect_uri))
        if not _same(claims.get("nonce"), pending.nonce):
            raise LoginRefused("the response belongs to another login")
        at = identity.authenticated_at
        if pending.fresh and (at is None or at < pending.at - self._issuer.rules.skew):
            raise LoginRefused("the provider did not require a new login")
        return identity

    async def close(self) -> None:
        await self._issuer.keys.close()

    async def _code(self, pending: PendingLogin, answer: Mapping[str, str]) -> str:
        if not _same(answer.get("state"), pending.state):
            raise LoginRefused("the response belongs to another login")
        named = answer.get("iss")
        must_name = (await self._provider()).get("authorization_response_iss_parameter_supported") is True
        if (must_name or named is not None) and named != self._issuer.rules.issuer:
            raise LoginRefused("the response comes from another provider")
        if "error" in answer:
            raise LoginRefused("the provider refused the login")
        code = answer.get("code", "")
        if not code or len(code) > LONGEST_CODE:
            raise LoginRefused("the response has no code")
        return code

    async def _exchange(self, code: str, pending: PendingLogin, redirect_uri: str) -> str:
        endpoint = (await self._provider()).get("token_endpoint")
        if not isinstance(endpoint, str):
            raise IssuerUnavailable(f"{self._issuer.rules.issuer} names no token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": pending.verifier,
        }
        credentials = None
        if self._client_secret is None:
            form["client_id"] = self._client_id
        else:
            credentials = (quote(self._client_id, safe=""), quote(self._client_secret, safe=""))
        try:
            reply = await self._documents.post_form(endpoint, self._issuer.rules.issuer, form, credentials)
        except IssuerRefused as refused:
            raise LoginRefused(f"the provider refused the code: {refused.error[:60]}") from None
        token = reply.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("the provider returned no ID token")
        return token

    async def _identity(self, id_token: str) -> tuple[dict[str, Any], Identity]:
        try:
            token = parse_token(id_token.encode("utf-8", "replace"))
            await check_signature(token, self._issuer)
            if token.claims.get("azp", self._client_id) != self._client_id:
                raise TokenRefused(TokenProblem.OTHER_CLIENT)
            return token.claims, identity_in(token.claims, self._issuer.rules, clock.wall())[0]
        except TokenRefused as refused:
            raise LoginRefused(f"the ID token is not accepted: {refused}") from None

    async def _provider(self) -> dict[str, Any]:
        if self._metadata is None or clock.monotonic() - self._metadata[0] > METADATA_VALID_S:
            found = await issuer_metadata(self._issuer.rules.issuer, self._documents)
            self._metadata = (clock.monotonic(), found)
        return self._metadata[1]


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
