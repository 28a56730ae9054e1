"""The scopes that were handed over at run time, so that they outlive a restart of the gateway until their time is over.

What a body means is the gateway's business. A change and the audit row that proves it are written together.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.core.audit import AuditEntry


class KeptScope(msgspec.Struct, frozen=True):
    """`expires_ms` is wall-clock time."""

    name: str
    expires_ms: int
    body: bytes


class ScopeStore(Protocol):
    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        """Returns when it is on the disk. A name is kept once."""
        ...

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        """Returns when it is off the disk."""
        ...

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        """All of them, also those whose time is over."""
        ...
