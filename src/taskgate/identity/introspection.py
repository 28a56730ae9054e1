"""Verifies opaque tokens by introspection at the issuer (RFC 7662)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from taskgate import clock
from taskgate.core.identity.claims import ClaimRules, TokenRefused, identity_in
from taskgate.identity.documents import Documents
from taskgate.ports.credentials import Credential

MAX_OPAQUE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Introspection:
    """How to ask, and for how long an answer is good: a token that is revoked meanwhile works until then."""

    url: str
    rules: ClaimRules
    client_id: str
    client_secret: str = field(repr=False)
    remember_s: float = 5.0


async def introspect(credential: bytes, asking: Introspection, documents: Documents) -> Credential:
    """Raises TokenRefused and IssuerUnavailable."""
    if len(credential) > MAX_OPAQUE_BYTES or not credential.isascii():
        raise TokenRefused("it is too long")
    form = {"token": credential.decode("ascii"), "token_type_hint": "access_token"}
    said = await documents.post_form(asking.url, asking.rules.issuer, form, (asking.client_id, asking.client_secret))
    if said.get("active") is not True:
        raise TokenRefused("it is not known, or not good any more")
    now = clock.wall()
    # An answer need not repeat who gives it, nor when the token ends; what it says is checked like a signed token's.
    claims = {"iss": asking.rules.issuer, "exp": int(now) + 3600, **said}
    identity, expires = identity_in(claims, asking.rules, now)
    return Credential(identity, clock.Expiry(expires), clock.Expiry(now + asking.remember_s))
