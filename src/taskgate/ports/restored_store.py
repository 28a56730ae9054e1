"""Stores that were restored from a backup."""

from __future__ import annotations

from typing import Protocol

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.store_answers import Voided


class RestoredStore(Protocol):
    """Whether the database is older than what was last written to it, because it was restored from a backup."""

    @property
    def is_restored(self) -> bool:
        """If set, tasks that are stored as waiting may have run since the backup, and grants may have been revoked."""
        ...

    async def accept_restored(self) -> Voided:
        """End grants, unspent approvals and logins; then the store is current. Its open tasks must have been ended before."""
        ...

    async def declare_restored(self, entry: AuditEntry) -> None:
        """Make the next start treat the store as restored."""
        ...

    async def trust_restored(self, entry: AuditEntry) -> bool:
        """Make the next start treat the store as current; return whether it was marked as restored."""
        ...
