"""One write transaction as the operations see it: named statements, the time, and in whose name.

Each adapter has its own, made once per group commit. The time is read once, so everything in it happened at the same moment.
Statements are known by name and take their values by name; every adapter has the same names with the same meaning, in its own SQL.

An operation says beforehand what it is about to read and change (`Locks`), for databases that several gateways write to at once. An
adapter whose database has one writer need not look at it. The others lock what the operations of one transaction name, all at once
and in one order, before the first of them runs: then what an operation reads stays true until its commit, and two transactions
never wait for each other in a circle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from taskgate.core.identity import tenant_of
from taskgate.ports.store_answers import KEPT_EVENTS, KEPT_EVENTS_MS, Ownership
from taskgate.store.sealing import Sealing


class Locks(NamedTuple):
    """A task stands for its approval, its questions and its caller's events too; an approval for its task."""

    tasks: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    """Whose events are appended to."""
    limits: tuple[str, ...] = ()
    """Whose open tasks and approvals are counted."""
    names: tuple[str, ...] = ()
    """Anything else that is known by a name: idempotency keys, grants, secrets."""


NO_LOCKS: Final = Locks()


def tenants_of(callers: tuple[str, ...]) -> tuple[str, ...]:
    """The names under which the open tasks and approvals of these callers' tenants are counted."""
    return tuple(f"tenant {tenant}" for tenant in dict.fromkeys(map(tenant_of, callers)) if tenant)


class KeptEvents:
    """Changed on the event loop and read by the committing thread too, one number at a time."""

    __slots__ = ("for_ms", "most")

    def __init__(self, most: int = KEPT_EVENTS, for_ms: int = KEPT_EVENTS_MS) -> None:
        self.most = most
        self.for_ms = for_ms


class Rows(Protocol):
    """What a statement answers."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Runs a named statement."""

    def __call__(self, name: str, /, **values: Any) -> Rows: ...


class Transaction(ABC):
    """What an operation may do. Lives only inside one BEGIN and COMMIT."""

    __slots__ = ("_revisions", "_stale", "audit_head", "kept_events", "most_open", "now_ms", "ownership", "sealing")
    is_shared: ClassVar[bool]
    """Whether other gateways write to the same database."""

    def __init__(self, now_ms: int, ownership: Ownership, kept_events: KeptEvents, sealing: Sealing) -> None:
        self.sealing = sealing
        self.now_ms = now_ms
        self.ownership = ownership
        self.kept_events = kept_events
        self.audit_head: tuple[int, str] | None = None
        """Number and hash of the last audit row, once this transaction has looked; see `operations.audit`."""
        self.most_open: dict[str, int] = {}
        """How many open tasks somebody has at the most, where that was counted in this transaction."""
        self._stale: bool | None = None
        self._revisions: dict[str, int] | None = None

    @abstractmethod
    def run(self, name: str, /, **values: Any) -> Rows: ...

    def put(self, name: str, /, **values: Any) -> None:
        """Insert a row that cannot be there yet. Several of one kind may be sent together, before the next statement runs."""
        self.run(name, **values)

    def changes_one(self, name: str, /, **values: Any) -> bool:
        """Run a statement that is meant to change exactly one row; False if it did not."""
        return self.run(name, **values).rowcount == 1

    def next_event_number(self, caller: str) -> int:
        """The next number of a caller's events, which is ours from now on until the commit."""
        number: int = self.run("next_event_number", caller=caller, now_ms=self.now_ms).fetchone()[0]
        return number

    @abstractmethod
    def announce(self, topic: str, name: str) -> None:
        """Tell other gateways on the same store, with the commit, that they should look at this again."""

    def is_stale(self) -> bool:
        """Whether another owner has taken over since we started."""
        if self._stale is None:
            found = self.run("find_owner", owner=self.ownership.owner).fetchone()
            self._stale = found is None or found[0] != self.ownership.fence or bool(found[1])
        return self._stale

    def revisions(self) -> Mapping[str, int]:
        """The revisions of what gateways keep in memory; only where `is_shared`."""
        if self._revisions is None:
            self._revisions = dict(self.run("revisions").fetchall())
        return self._revisions

    @property
    def audit_number(self) -> int:
        """The number of the last audit row, if this transaction has written one; else 0."""
        return self.audit_head[0] if self.audit_head is not None else 0

    def forget_head(self) -> None:
        """After a rollback to a savepoint the remembered end of the audit chain may never have been written."""
        self.audit_head = None
