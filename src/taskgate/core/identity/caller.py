"""The caller of a request: principal, roles and scope, as far as any decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Who is calling, as far as any decision needs to know, and in which conversation: events, questions and lists are kept
# by it.
#
# A conversation is one client's talk with us: a session of the stateful generation, or what a stateless client calls
# itself in `_meta["taskgate/client"]`. A principal may hold several at once; what one of them caused is told to that
# one, and to the others only after it has ended. Callers without an identity have one conversation each, which is all
# that they are known by.

ANONYMOUS: Final = "anonymous"
OPERATOR: Final = "operator"
ANONYMOUS_LIMIT: Final = "address:"
"""How the limit key of every caller without an identity begins; no principal's name does."""


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """What an issuer's token said about its holder, for policies to judge by. Kept with a task, which is judged again later."""

    oauth_scopes: frozenset[str] = frozenset()
    client_id: str = ""
    authenticated_at: int | None = None
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with its roles, working in one scope."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str = "default"
    place: str = ""
    """Where its client stands on this machine, if that matters to servers; empty for everybody who is not behind a bridge."""
    address: str = ""
    """Of callers without an identity: where they come from, as far as limits tell them apart."""
    facts: CredentialFacts | None = None
    """None for whoever has no token of an issuer."""

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def limit_key(self) -> str:
        """Under which name limits are kept: never by session or client name, which cost nothing to invent."""
        return f"{ANONYMOUS_LIMIT}{self.address}" if self.anonymous else self.principal
