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

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS
