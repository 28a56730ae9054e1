"""Lists and adds revocations of tokens and principals, for the console. Implemented by the known people of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Revocation(Protocol):
    @property
    def by(self) -> str: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Revocations(Protocol):
    @property
    def revoked(self) -> Mapping[str, Revocation]:
        """By the digest of a token, or by the name of a principal."""
        ...

    async def revoke(self, name: str, principal: str, by: str, reason: str) -> None: ...
