"""The base class of all views: guarded writes, and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.grants import Grant
from taskgate.ports.store_answers import Ownership, StaleOwner
from taskgate.store.batch_writer import DeferredWrite, Operation, Revert
from taskgate.store.locks import NO_LOCKS, Locks
from taskgate.store.operations.reader import Reader
from taskgate.store.transaction import Transaction
from taskgate.store.views.engine import Engine

T = TypeVar("T")

REJOIN_TRIES: Final = 40
REJOIN_PAUSE_S: Final = 0.25


class StoreView:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.known_grants: tuple[Grant, ...] = ()
        """The valid grants as last read. Where other gateways can change them, each intent reads them again."""

    @property
    def ownership(self) -> Ownership:
        return self._engine.ownership

    def now_ms(self) -> int:
        return self._engine.now_ms()

    async def _read(self, query: Callable[[Reader], T]) -> T:
        return await self._engine.read(query)

    async def _write(
        self, operation: Operation[T], locks: Locks = NO_LOCKS, revert: Revert | None = None
    ) -> T | StaleOwner:
        """Run the operation if this gateway still owns the store; see `Engine.write`."""

        def guarded(tx: Transaction) -> T | StaleOwner:
            return StaleOwner(tx.ownership) if tx.is_stale() else operation(tx)

        return await self._engine.write(guarded, locks, revert)

    async def _write_or_fault(self, operation: Operation[T], locks: Locks = NO_LOCKS) -> T:
        """Raise GatewayFault instead of returning `StaleOwner`. For writes that concern no task: any fence may make them."""
        answer = await self._write(operation, locks)
        tries = REJOIN_TRIES if self._engine.can_rejoin else 0
        while isinstance(answer, StaleOwner) and tries:
            await clock.sleep(REJOIN_PAUSE_S)
            answer, tries = await self._write(operation, locks), tries - 1
        if isinstance(answer, StaleOwner):
            raise GatewayFault("store_unavailable", "Another Taskgate has taken over this store; this one must stop.")
        return answer

    async def _delete(self, operation: Operation[T], locks: Locks = NO_LOCKS) -> T:
        """Write for retention, which must know its CPU time."""
        return await self._write_or_fault(self._engine.settings.deletion.counted(operation), locks)

    def _defer(self, write: DeferredWrite) -> None:
        def guarded(tx: Transaction) -> None:
            if not tx.is_stale():
                write.write(tx)

        self._engine.defer(DeferredWrite(guarded, write.committed, write.locks))
