"""Temporary scopes, so that they outlive a restart of the gateway until they expire.

The body is opaque to the store. A change and its audit row are written together.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry


class KeptScope(msgspec.Struct, frozen=True):
    """A scope as stored. `expires_ms` is by the store's clock."""

    name: str
    expires_ms: int
    body: bytes


class ScopeStore(Protocol):
    def now_ms(self) -> int:
        """Return the store's time, by which scopes expire."""
        ...

    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        """Store a scope; return when it is durable. Names are unique."""
        ...

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        """Delete a scope; return when that is durable."""
        ...

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        """Return all scopes, including expired ones."""
        ...
