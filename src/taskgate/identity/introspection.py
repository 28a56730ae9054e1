"""Verifies opaque tokens by introspection at the issuer (RFC 7662)."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from taskgate import clock
from taskgate.core.identity.claims import ClaimRules, TokenProblem, TokenRefused, bound_certificate, identity_in
from taskgate.identity.documents import Documents
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.caller_credentials import Credential

MAX_OPAQUE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Introspection:
    """The endpoint, and how long a result is cached: a revoked token is accepted until then."""

    url: str
    rules: ClaimRules
    client_id: str
    client_secret: str = field(repr=False)
    remember_s: float = 5.0


async def introspect(credential: bytes, settings: Introspection, documents: Documents) -> Credential:
    """Raises TokenRefused and IssuerUnavailable."""
    if len(credential) > MAX_OPAQUE_BYTES or not credential.isascii():
        raise TokenRefused(TokenProblem.TOO_LONG)
    form = {"token": credential.decode("ascii"), "token_type_hint": "access_token"}
    reply = await documents.post_form(
        settings.url, settings.rules.issuer, form, (settings.client_id, settings.client_secret)
    )
    if reply.get("active") is not True:
        raise TokenRefused(TokenProblem.INACTIVE)
    bound = bound_certificate(reply)
    now = clock.wall()
    # A response may omit issuer and expiry; the claims that it has are checked like those of a signed token.
    claims = {"iss": settings.rules.issuer, "exp": int(now) + 3600, **reply}
    identity, expires = identity_in(claims, settings.rules, now)
    return Credential(identity, clock.Expiry(expires), clock.Expiry(now + settings.remember_s), certificate=bound)
