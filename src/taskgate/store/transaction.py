"""The write transaction that store operations run in.

Each adapter implements `Transaction` and creates one per group commit. The time is read once, so all changes of a transaction carry
the same timestamp. Statements are identified by name and take named parameters; both adapters define the same names with the same
meaning.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from taskgate.ports.store_answers import Ownership
from taskgate.store.history_state import Loss
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Runs a named statement."""

    def __call__(self, name: str, /, **values: Any) -> Rows: ...


_IDS_PER_READ: Final = 32


class Transaction(ABC):
    """The interface that operations use. Valid only between BEGIN and COMMIT."""

    __slots__ = (
        "_random",
        "_revisions",
        "_stale",
        "audit_head",
        "now_ms",
        "open_counts",
        "ownership",
        "sealing",
        "state",
    )
    is_shared: ClassVar[bool]
    """Whether other gateways write to the same database."""

    def __init__(self, now_ms: int, ownership: Ownership, state: StoreState, sealing: Sealing) -> None:
        self.sealing = sealing
        self.now_ms = now_ms
        self.ownership = ownership
        self.state = state
        self.audit_head: tuple[int, str] | None = None
        """Number and hash of the last audit row, once known to this transaction; see `operations.audit`."""
        self.open_counts: dict[str, int] = {}
        """Upper bounds of the open tasks per limit key, where this transaction has counted them."""
        self._stale: bool | None = None
        self._random = b""
        self._revisions: dict[str, int] | None = None

    @abstractmethod
    def run(self, name: str, /, **values: Any) -> Rows: ...

    def put(self, name: str, /, **values: Any) -> None:
        """Insert a row that cannot exist yet. An adapter may send several of one kind together, before the next statement runs."""
        self.run(name, **values)

    def queue(self, name: str, /, **values: Any) -> None:
        """Run a write whose result is not needed. An adapter may send several together, before the next statement that reads."""
        self.run(name, **values)

    def put_history(self, loss: Loss, **values: Any) -> None:
        """Insert a row of history. An adapter must not fail the operation if only this row cannot be written, but note the loss."""
        self.put("insert_history", **values)

    def changes_one(self, name: str, /, **values: Any) -> bool:
        """Run a statement that must change exactly one row; return False if it did not."""
        return self.run(name, **values).rowcount == 1

    def change_each(self, name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Run the statement for each set of values; return False if one of them did not change exactly one row."""
        changed = [self.changes_one(name, **values) for values in rows]
        return all(changed)

    def task_row(self, task_id: str) -> Any:
        """Return the row of a task with its arguments, or None."""
        return self.run("find_task", id=task_id).fetchone()

    def next_event_number(self, caller: str) -> int:
        """Reserve the next number in a caller's event stream; no other transaction gets it before the commit."""
        number: int = self.run("next_event_number", caller=caller, now_ms=self.now_ms).fetchone()[0]
        return number

    def random_bytes(self, count: int) -> bytes:
        """Return random bytes for an id. They are read in larger blocks, because each read releases the interpreter lock."""
        if len(self._random) < count:
            self._random = secrets.token_bytes(count * _IDS_PER_READ)
        taken, self._random = self._random[:count], self._random[count:]
        return taken

    @abstractmethod
    def announce(self, topic: str, name: str) -> None:
        """Notify other gateways on the same store, with the commit, that this record changed."""

    def is_stale(self) -> bool:
        """Return whether another gateway has taken over this gateway's ownership."""
        if self._stale is None:
            found = self._find_owner()
            self._stale = found is None or found[0] != self.ownership.fence or bool(found[1])
        return self._stale

    def _find_owner(self) -> Any:
        return self.run("find_owner", owner=self.ownership.owner).fetchone()

    def revisions(self) -> Mapping[str, int]:
        """Return the revisions of records that gateways cache; only where `is_shared`."""
        if self._revisions is None:
            self._revisions = dict(self.run("revisions").fetchall())
        return self._revisions

    @property
    def audit_number(self) -> int:
        """The number of the last audit row if this transaction has written one, otherwise 0."""
        return self.audit_head[0] if self.audit_head is not None else 0

    def audited(self, number: int, digest: str) -> None:
        """Remember the audit row that this transaction appended."""
        self.audit_head = (number, digest)

    def reset_audit_head(self, head: tuple[int, str] | None) -> None:
        """Set the end of the audit chain: at the beginning, or after a rollback to a savepoint. None if it must be read."""
        self.audit_head = head
