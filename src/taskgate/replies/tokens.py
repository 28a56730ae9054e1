"""Configured tokens and revocations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from taskgate.replies.fields import Time, about


class TokenRow(Struct, frozen=True, kw_only=True):
    """A token, or a subject of an issuer that was revoked."""

    id: Annotated[str, about("id of the token")]
    principal: Annotated[str, about("principal")]
    roles: Annotated[Sequence[str], about("roles")]
    expires_at: Annotated[Time | None, about("end")]
    revoked_at: Annotated[Time | None, about("time at which it was revoked")] = None
    revoked_by: Annotated[str | None, about("person who revoked it")] = None
    reason: Annotated[str | None, about("reason of the revocation")] = None


class Tokens(Struct, frozen=True, kw_only=True):
    """All tokens."""

    tokens: Sequence[TokenRow]


class TokensRevoked(Struct, frozen=True, kw_only=True):
    """The reply to a revocation."""

    revoked: Annotated[Sequence[str], about("principals of the revoked tokens")]
    by: Annotated[str, about("name of the person")]
