"""The append-only, hash-chained record of what was asked, decided and done. The chain itself is `core.audit`.

Changes of tasks and approvals append their row in their own transaction. `record` is for facts that have no such
change, above all plain calls that passed through: they ride along with the next commit, because a plain call must
not wait for the disk.
"""

from __future__ import annotations

from typing import Protocol

from taskgate.core.audit import AuditEntry, Row


class AuditLog(Protocol):
    def record(self, entry: AuditEntry) -> None:
        """Append soon. `at_ms` 0 is replaced by the store's time."""
        ...

    async def record_now(self, entry: AuditEntry) -> None:
        """Append and return when it is durable."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """The number and the hash of the last row that is durable; 0 and the chain's beginning if there is none."""
        ...

    async def forget_audit(self, up_to: int) -> None:
        """Remove the rows up to this number, which is not the last."""
        ...

    async def audit_rows(self, after: int = 0, limit: int = 1_000) -> tuple[Row, ...]: ...
