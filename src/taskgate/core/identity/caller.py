"""The caller of a request: principal, roles and scope, as far as any decision depends on them."""

from __future__ import annotations

from typing import Final

import msgspec

ANONYMOUS: Final = "anonymous"
OPERATOR: Final = "operator"
ANONYMOUS_LIMIT: Final = "address:"
"""Prefix of the limit key of callers without an identity; no principal's name has it."""


class CredentialFacts(msgspec.Struct, frozen=True):
    """Facts about the holder of an issuer's token, for policies. Stored with a task, which is evaluated again before it is sent."""

    oauth_scopes: frozenset[str] = frozenset()
    client_id: str = ""
    authenticated_at: int | None = None
    """In seconds since 1970."""


class Caller(msgspec.Struct, frozen=True):
    """A principal with its roles, in one scope."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str = "default"
    place: str = ""
    """The local directory of the client, if it matters to servers; empty for callers that do not use the bridge."""
    address: str = ""
    """For callers without an identity: the address by which limits distinguish them."""
    facts: CredentialFacts | None = None
    """None without a token of an issuer."""

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def limit_key(self) -> str:
        """Key of limits: never a session or client name, which a caller can choose freely."""
        return f"{ANONYMOUS_LIMIT}{self.address}" if self.anonymous else self.principal
