"""The part of an open store that is the same for every database: run operations and queries, and do what they declare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership, StaleOwner
from taskgate.store.batch_writer import DeferredWrite, Write
from taskgate.store.engine import Engine
from taskgate.store.operation import L, LargeBody, LargeValue, Latest, Operation, Query
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

T = TypeVar("T")

REJOIN_TRIES: Final = 40
REJOIN_PAUSE_S: Final = 0.25


class _TakenOver(NamedTuple):
    """The answer of a transaction in which this gateway was no longer the owner of the store."""

    stale: StaleOwner


class OpenStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reused: dict[Query[Any], tuple[Any, float]] = {}
        """Answers that may be used again, with the time until which."""

    @property
    def state(self) -> StoreState:
        return self._engine.state

    @property
    def ownership(self) -> Ownership:
        return self._engine.ownership

    def now_ms(self) -> int:
        return self._engine.now_ms()

    async def remove_unused_results(self) -> int:
        return await self._engine.large_results.remove_orphans()

    async def do(self, operation: Operation[T]) -> T:
        if operation.needs_lease(None):
            self._check_lease()
        if (large := operation.large_body()) is not None:
            # If this is cancelled, the commit may still succeed, so the bytes stay; if it does not, the sweep removes them.
            operation = operation.with_large(await self._store_large(large))
        answer = await self._written(operation)
        if names := operation.discarded(answer):
            await self._engine.large_results.remove(list(names))
        if operation.needs_lease(answer):
            # The commit may have taken so long that another gateway has taken over.
            self._check_lease()
        operation.remember(answer, self.state)
        if operation.overwrites:
            await self._engine.overwrite_deleted()
        return answer

    async def _written(self, operation: Operation[T]) -> T:
        work, locks, revert = self._guarded(operation), operation.locks, partial(_reverting, operation)
        tries = REJOIN_TRIES if operation.is_repeated and self._engine.can_rejoin else 0
        while isinstance(answer := await self._engine.write(work, locks, revert), _TakenOver):
            if not tries:
                return operation.if_taken_over(answer.stale)
            tries -= 1
            await clock.sleep(REJOIN_PAUSE_S)
        return answer

    def _guarded(self, operation: Operation[T]) -> Write[T | _TakenOver]:
        run = self.state.deletion.counted(operation.run) if operation.is_retention else operation.run
        if not operation.is_guarded:
            return run

        def guarded(tx: Transaction) -> T | _TakenOver:
            return _TakenOver(StaleOwner(tx.ownership)) if tx.is_stale() else run(tx)

        return guarded

    async def _store_large(self, large: LargeBody) -> str:
        sealed = await asyncio.to_thread(self._engine.sealing.seal, large.body, large.record_id)
        return await self._engine.large_results.write(large.record_id, sealed)

    def _check_lease(self) -> None:
        """Raises GatewayFault while other gateways may have declared this one dead. Whether they have is known after the next
        renewal of the lease."""
        if not self._engine.may_send():
            raise GatewayFault(
                "store_unavailable", "The lease of this gateway was not renewed in time; nothing is sent before it is."
            )

    async def ask(self, query: Query[T]) -> T:
        if query.reused_for_s:
            return await self._reused_or_asked(query)
        run = self.state.deletion.counted(query.run) if query.is_retention else query.run
        read = await (self._engine.read_in_thread(run) if query.is_search else self._engine.read(run))
        answer: Any = await self._large(read) if type(read) is LargeValue else read
        query.remember(answer, self.state)
        result: T = answer
        return result

    async def _reused_or_asked(self, query: Query[T]) -> T:
        found = self._reused.get(query)
        if found is None or clock.monotonic() > found[1]:
            answer: Any = await self._engine.read(query.run)
            found = self._reused[query] = (answer, clock.monotonic() + query.reused_for_s)
        result: T = found[0]
        return result

    async def _large(self, large: LargeValue) -> bytes:
        sealed = await self._engine.large_results.read(large.name)
        return await asyncio.to_thread(self._engine.sealing.open, sealed, large.record_id)

    def defer(self, operation: Operation[None], settled: Callable[[bool], None] | None = None) -> None:
        if isinstance(operation, Latest):
            self._defer_latest(operation)
        elif settled is None:
            self._engine.defer(DeferredWrite(self._deferred(operation), None, operation.locks))
        else:
            self._engine.defer(self._reported(operation, settled))

    def _reported(self, operation: Operation[None], settled: Callable[[bool], None]) -> DeferredWrite:
        work = self._guarded(operation)
        is_done = False

        def write(tx: Transaction) -> None:
            nonlocal is_done
            is_done = False  # until the end: if the database refuses this write, the others are committed without it
            is_done = not isinstance(work(tx), _TakenOver)

        return DeferredWrite(write, lambda: settled(is_done), operation.locks)

    def _deferred(self, operation: Operation[None]) -> Callable[[Transaction], None]:
        work = self._guarded(operation)

        def write(tx: Transaction) -> None:
            work(tx)

        return write

    def _defer_latest(self, operation: Latest) -> None:
        at = (type(operation), operation.key)
        earlier = self.state.waiting.get(at)
        if earlier is None:
            self._queue_latest(at, operation)
        self.state.waiting[at] = operation if earlier is None else operation.merged(earlier)

    def _queue_latest(self, at: tuple[type[L], str], operation: L) -> None:
        """Queue a write of what waits under this key when the write runs; if that changes before the commit, it is queued again."""
        waiting = self.state.waiting
        written: list[Latest] = []

        def write(tx: Transaction) -> None:
            written[:] = [waiting[at]]
            self._deferred(written[0])(tx)

        def committed() -> None:
            if not written or waiting[at] is written[0]:
                del waiting[at]
            else:
                self._queue_latest(at, waiting[at])

        self._engine.defer(DeferredWrite(write, committed, operation.locks))


def _reverting(operation: Operation[T], answer: T | _TakenOver) -> Write[None] | None:
    undo = None if isinstance(answer, _TakenOver) else operation.reverted(answer)
    return None if undo is None else undo.run
