"""What the views of a store share: the engine that an adapter supplies, and the rule about stale owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.decision import Grant
from taskgate.ports.store_answers import Ownership, StaleOwner
from taskgate.store.batch import DeferredWrite, Operation, TakeBack
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.transaction import NO_LOCKS, KeptEvents, Locks, Transaction
from taskgate.store.sealing import Sealing

T = TypeVar("T")

COMES_BACK_TRIES: Final = 40
COMES_BACK_PAUSE_S: Final = 0.25


class LargeResults(Protocol):
    """Where results are kept that are too long for a row: durable before the commit that names them."""

    async def write(self, task_id: str, body: bytes) -> str:
        """Make the bytes durable; gives the name under which to find them."""
        ...

    async def read(self, name: str) -> bytes: ...

    async def remove(self, names: list[str]) -> int: ...

    async def remove_orphans(self) -> int:
        """Remove those that no task names, if they are so old that no write can still be on its way."""
        ...


class Engine(Protocol):
    """How an adapter writes, reads and keeps time."""

    @property
    def ownership(self) -> Ownership: ...

    @property
    def kept_events(self) -> KeptEvents: ...

    @property
    def large_results(self) -> LargeResults: ...

    @property
    def sealing(self) -> Sealing: ...

    @property
    def comes_back(self) -> bool:
        """Whether one that was taken for dead goes on in a moment, under a new fence."""
        ...

    def now_ms(self) -> int: ...

    def may_send(self) -> bool:
        """Whether we certainly still are who our ownership says: looked at before something is sent in its name."""
        ...

    async def write(self, operation: Operation[T], locks: Locks, take_back: TakeBack | None = None) -> T:
        """Run the operation in the next commit and return its value once that commit is durable.

        `take_back` says how to undo it, given its value, if it is durable after all when whoever waited has given up.
        """
        ...

    async def read(self, ask: Callable[[Reader], T]) -> T: ...

    def defer(self, write: DeferredWrite) -> None:
        """Write with the next commit, without anybody waiting."""
        ...

    async def overwrite_deleted(self) -> None:
        """Return when deleted rows can no longer be read from the store's own files."""
        ...


class StoreView:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.known_grants: tuple[Grant, ...] = ()
        """The grants that stand, as they were last read; read again inside each intent where others can change them."""

    @property
    def ownership(self) -> Ownership:
        return self._engine.ownership

    def now_ms(self) -> int:
        return self._engine.now_ms()

    async def _read(self, ask: Callable[[Reader], T]) -> T:
        return await self._engine.read(ask)

    async def _write(
        self, operation: Operation[T], locks: Locks = NO_LOCKS, take_back: TakeBack | None = None
    ) -> T | StaleOwner:
        """Run the operation if we still own the store; see `Engine.write`."""

        def guarded(tx: Transaction) -> T | StaleOwner:
            return StaleOwner(tx.ownership) if tx.is_stale() else operation(tx)

        return await self._engine.write(guarded, locks, take_back)

    async def _write_or_fault(self, operation: Operation[T], locks: Locks = NO_LOCKS) -> T:
        """For writes whose answer has no room for `StaleOwner`. They are of no task, so they are ours under any fence."""
        answer = await self._write(operation, locks)
        tries = COMES_BACK_TRIES if self._engine.comes_back else 0
        while isinstance(answer, StaleOwner) and tries:
            await clock.sleep(COMES_BACK_PAUSE_S)
            answer, tries = await self._write(operation, locks), tries - 1
        if isinstance(answer, StaleOwner):
            raise GatewayFault("store_unavailable", "Another Taskgate has taken over this store; this one must stop.")
        return answer

    def _defer(self, write: DeferredWrite) -> None:
        def guarded(tx: Transaction) -> None:
            if not tx.is_stale():
                write.write(tx)

        self._engine.defer(DeferredWrite(guarded, write.committed, write.locks))
