"""An access token in memory: its headers, when to renew it, and when it expires."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.ports.caller_credentials import IssuerUnavailable
from taskgate.ports.upstream_credentials import HeaderPairs
from taskgate.shown_fields import repr_without

DEFAULT_LIFETIME_S: Final = 3600.0
RENEW_BEFORE: Final = 0.2
"""The remaining part of a token's lifetime at which the next one is fetched."""


class AccessToken(msgspec.Struct, frozen=True):
    headers: HeaderPairs
    renew_at: float
    ends_at: float

    __repr__ = repr_without("headers")


def token_from_reply(reply: dict[str, Any]) -> AccessToken:
    token, life = reply.get("access_token"), reply.get("expires_in")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise IssuerUnavailable("the issuer returned no valid access token")
    if str(reply.get("token_type", "Bearer")).lower() not in ("bearer", "n_a"):
        raise IssuerUnavailable("the issuer returned a token of an unknown type")
    usable = isinstance(life, (int, float)) and not isinstance(life, bool) and 0 < life < 10**9
    return token_valid_for(bearer_header(token), float(life) if usable and life is not None else DEFAULT_LIFETIME_S)


def token_valid_for(headers: HeaderPairs, life_s: float) -> AccessToken:
    now = clock.monotonic()
    return AccessToken(headers, now + life_s * (1 - RENEW_BEFORE), now + life_s)


def bearer_header(token: str) -> HeaderPairs:
    return ((b"authorization", b"Bearer " + token.encode("ascii")),)
