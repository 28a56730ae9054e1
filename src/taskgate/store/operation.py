"""What a store can be asked to do, as values: an operation changes rows in one transaction, a query reads them.

`store/operations/` defines one class for each, with the statements that it runs; use cases create them and pass them to the store
(`ports.store`). An operation can be part of another one, in the same transaction: call its `run`. What a store does besides running
it is declared here, and done in one place (`store.open_store`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import StaleOwner
from taskgate.store.locks import NO_LOCKS, Locks
from taskgate.store.reader import Reader
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

T_co = TypeVar("T_co", covariant=True)
L = TypeVar("L", bound="Latest")


class LargeValue(NamedTuple):
    """A value that is too long for a row: the name under which it is stored beside the rows, and the record it belongs to."""

    name: str
    record_id: str


class LargeBody(NamedTuple):
    """The bytes of a large value that is to be stored, and the record it belongs to."""

    record_id: str
    body: bytes


class Operation(msgspec.Struct, Generic[T_co], frozen=True):
    """A change of rows, whose answer is a T. Its locks are taken in a fixed order before it runs.

    What only the owner of a task may write is an `OwnerOperation`; any other change can be made with any fence.
    """

    is_repeated: ClassVar[bool] = True
    """Whether a gateway that was declared dead repeats it with its new fence, which it gets shortly after."""
    is_guarded: ClassVar[bool] = True
    """Whether it has no effect once another gateway has taken over the store."""
    is_retention: ClassVar[bool] = False
    """Whether its CPU time counts as that of retention (`StoreState.deletion`)."""
    overwrites: ClassVar[bool] = False
    """Whether the deleted rows are overwritten in the files of the store before the answer."""

    @abstractmethod
    def run(self, tx: Transaction) -> T_co:
        """Make the change. May be called again, if the transaction is repeated, so it must have no other effect."""

    @property
    def locks(self) -> Locks:
        return NO_LOCKS

    def if_taken_over(self, stale: StaleOwner) -> T_co:
        """Return the answer of a gateway that was declared dead and did not get a new fence. Raises GatewayFault."""
        raise GatewayFault("store_unavailable", "Another Taskgate has taken over this store; this one must stop.")

    def reverted(self, answer: Any) -> Operation[None] | None:
        """Return the operation that undoes this one. It runs if the caller stopped waiting before the commit; None if the change
        stays."""
        return None

    def needs_lease(self, answer: Any) -> bool:
        """Return whether it fails if another gateway may have declared this one dead: asked before it runs (with None) and when it
        is durable."""
        return False

    def large_body(self) -> LargeBody | None:
        """Return what must be stored beside the rows, durably, before the transaction."""
        return None

    def with_large(self, name: str) -> Operation[T_co]:
        """Return this operation with the name under which `large_body` is stored."""
        raise NotImplementedError

    def discarded(self, answer: Any) -> Sequence[str]:
        """Return the names of large values that no row refers to after the commit."""
        return ()

    def remember(self, answer: Any, state: StoreState) -> None:
        """Update what the store keeps in memory. Called on the event loop when the change is durable."""


class OwnerOperation(Operation[T_co | StaleOwner], Generic[T_co], frozen=True):
    """A change that only the owner of a task may make. The answer is StaleOwner if another gateway has taken over."""

    is_repeated: ClassVar[bool] = False

    @abstractmethod
    def run(self, tx: Transaction) -> T_co | StaleOwner: ...

    def if_taken_over(self, stale: StaleOwner) -> T_co | StaleOwner:
        return stale


class Flush(OwnerOperation[None], frozen=True):
    """Answered when everything that was deferred before is durable: it is part of the same commit."""

    def run(self, tx: Transaction) -> None:
        return None


class Latest(Operation[None], frozen=True):
    """A deferred operation of which only the latest one for each key matters: the progress of a task, the cursor of a caller.

    It stays readable (`StoreState.waiting_for`) until it is committed, so a reader never sees the value go backwards.
    """

    @property
    @abstractmethod
    def key(self) -> str: ...

    def merged(self: L, earlier: L) -> L:
        """Return what is written in place of this one and an earlier one that is not written yet."""
        return self


class Query(msgspec.Struct, Generic[T_co], frozen=True):
    """A read, whose answer is a T. It sees the last commit and never waits for the writer."""

    is_search: ClassVar[bool] = False
    """Whether it may take milliseconds. Then it never runs on the thread of the event loop."""
    is_retention: ClassVar[bool] = False
    reused_for_s: ClassVar[float] = 0.0
    """How long the answer may be used again for an equal query."""

    @abstractmethod
    def run(self, reader: Reader) -> T_co | LargeValue:
        """Read. A LargeValue is replaced by its bytes, which are read and decrypted in a thread."""

    def remember(self, answer: Any, state: StoreState) -> None:
        """Update what the store keeps in memory. Called on the event loop."""
