"""The audit log: an append-only, hash-chained record of what was requested, decided and done. The chain is in `core.audit`.

Changes of tasks and approvals append their row in their own transaction. `record` is for facts without such a change, above all
plain calls: they are written with the next commit, because a plain call must not wait for the disk.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from taskgate.core.audit.chain import AuditEntry, Row


class AuditTime(NamedTuple):
    """Number, hash and time of one row of the audit log."""

    number: int
    hash: str
    at_ms: int


class ChainEnd(NamedTuple):
    """The last row of a chain, and when the chain began."""

    chain: str
    """Its name; empty where there is one chain."""
    began_ms: int
    number: int
    at_ms: int


class AuditLog(Protocol):
    def now_ms(self) -> int:
        """Return the store's time, which rows are stamped with."""
        ...

    def record(self, entry: AuditEntry) -> None:
        """Append with the next commit. `at_ms` 0 is replaced by the store's time."""
        ...

    async def record_now(self, entry: AuditEntry) -> None:
        """Append and return when it is durable."""
        ...

    async def recorded(self) -> None:
        """Return when every row that was recorded before is durable."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """Return the number and hash of the last durable row; 0 and the beginning of the chain if there is none."""
        ...

    @property
    def audit_chain(self) -> str:
        """The name of this gateway's chain, where each start has its own; empty where there is one chain."""
        ...

    async def begin_chain(self) -> None:
        """Write the first row of this start's chain, which names the ends of the others. Does nothing where there is one chain."""
        ...

    async def chain_ends(self) -> tuple[ChainEnd, ...]:
        """Return the end of each chain that has rows, of the thousand that began last."""
        ...

    async def ended_chains(self) -> tuple[str, ...]:
        """Return the chains that no gateway appends to any more."""
        ...

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        """Return the times of the rows after this one."""
        ...

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        """Delete the rows up to this number, which is not the last one, of this gateway's chain or of an ended one. `mark` is the
        signed record of this, for readers of the chain that do not have this gateway's files.
        """
        ...

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        """Return rows of the named chain; by default of this gateway's."""
        ...
