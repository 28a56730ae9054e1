"""Who is calling, as far as any decision needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "anonymous"
OPERATOR: Final = "operator"
ANONYMOUS_LIMIT: Final = "address:"
"""How the limit key of every caller without an identity begins; no principal's name does."""


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

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def limit_key(self) -> str:
        """Under which name limits are kept: never by session or client name, which cost nothing to invent."""
        return f"{ANONYMOUS_LIMIT}{self.address}" if self.anonymous else self.principal
