"""What an adapter supplies to `store.open_store`: how to write, read, defer, and keep large results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DeferredWrite, Revert, Write
from taskgate.store.locks import Locks
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState

T = TypeVar("T")


class LargeResults(Protocol):
    """Storage for results that are too long for a row. They are durable before the commit that refers to them."""

    async def write(self, task_id: str, body: bytes) -> str:
        """Make the bytes durable; return the name under which they are stored."""
        ...

    async def read(self, name: str) -> bytes: ...

    async def remove(self, names: list[str]) -> int: ...

    async def remove_orphans(self) -> int:
        """Remove results that no task refers to and that are too old to belong to a write in progress."""
        ...


class Engine(Protocol):
    """How an adapter writes, reads and measures time."""

    @property
    def ownership(self) -> Ownership: ...

    @property
    def state(self) -> StoreState: ...

    @property
    def large_results(self) -> LargeResults: ...

    @property
    def sealing(self) -> Sealing: ...

    @property
    def can_rejoin(self) -> bool:
        """Whether a gateway that was declared dead continues shortly after, with a new fence."""
        ...

    def now_ms(self) -> int: ...

    def may_send(self) -> bool:
        """Return whether the ownership is certainly still valid. Checked before anything is sent to a server."""
        ...

    async def write(self, operation: Write[T], locks: Locks, revert: Revert | None = None) -> T:
        """Run the operation in the next commit and return its value once that commit is durable.

        `revert` is used if the commit becomes durable after the caller has stopped waiting.
        """
        ...

    async def read(self, query: Callable[[Reader], T]) -> T: ...

    async def read_in_thread(self, query: Callable[[Reader], T]) -> T:
        """Like `read`, for queries that may take milliseconds: never on the thread of the event loop."""
        ...

    def defer(self, write: DeferredWrite) -> None:
        """Write with the next commit, without waiting for it."""
        ...

    async def overwrite_deleted(self) -> None:
        """Return when deleted rows can no longer be read from the store's own files."""
        ...
