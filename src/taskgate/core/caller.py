"""Who is calling, as far as any decision needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "anonymous"
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with its roles, working in one scope."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str = "default"
    place: str = ""
    """Where its client stands on this machine, if that matters to servers; empty for everybody who is not behind a bridge."""

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS
