"""Verifies opaque tokens by introspection at the issuer (RFC 7662)."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.identity.claims import TokenProblem, TokenRefused, bound_certificate, identity_in
from taskgate.core.settings.identity import Issued
from taskgate.identity.documents import Documents
from taskgate.ports.caller_credentials import Credential
from taskgate.shown_fields import repr_without

MAX_OPAQUE_BYTES: Final = 4096


class Introspection(msgspec.Struct, frozen=True):
    """The endpoint, and how long a result is cached: a revoked token is accepted until then."""

    url: str
    rules: Issued
    client_id: str
    client_secret: str
    remember_s: float = 5.0

    __repr__ = repr_without("client_secret")


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
