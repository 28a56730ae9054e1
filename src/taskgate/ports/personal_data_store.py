"""The data that a store holds about one person: list it, and erase it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import IdentityRecord


class Erased(msgspec.Struct, frozen=True):
    """How many rows of one person were erased."""

    tasks: int = 0
    approvals: int = 0
    grants: int = 0
    events: int = 0
    recorded_calls: int = 0
    history: int = 0
    usage: int = 0
    identity_records: int = 0
    open_questions: int = 0
    """Questions of servers to this person and their answers; only where gateways share a store."""
    sessions: int = 0
    """Sessions without a live home; only where gateways share a store."""


class Unfinished(msgspec.Struct, frozen=True):
    """Nothing was erased, because these tasks or held calls have not ended. At most 100 are listed."""

    ids: tuple[str, ...]


class PersonalDataStore(Protocol):
    """Rows that are stored under one person's name."""

    async def tasks_of(self, principal: str, after: str = "", limit: int = 50) -> tuple[str, ...]:
        """Return the ids of their tasks, oldest first, including those whose results have expired."""
        ...

    async def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]: ...

    async def erase(self, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
        """Delete everything except the audit chain and identity records of the kind `kept_records`, then append the entry.

        Returns when the bytes are gone from the store's files, as far as the store controls them.
        """
        ...
