"""What shares one commit: operations that somebody waits for, and deferred writes that nobody waits for. Used by the writers of
the adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.store.operations.transaction import NO_LOCKS, Locks, Transaction

T = TypeVar("T")
Operation = Callable[[Transaction], T]
TakeBack = Callable[[Any], Operation[None] | None]


class DeferredWrite(NamedTuple):
    """A write that nobody waits for; `committed` is told when it is on the disk."""

    write: Callable[[Transaction], None]
    committed: Callable[[], None] | None = None
    locks: Locks = NO_LOCKS


class Waiting:
    """An operation and the future of whoever waits for it."""

    __slots__ = ("failure", "future", "is_committed", "is_given_up", "locks", "operation", "take_back", "value")

    def __init__(
        self,
        operation: Operation[Any],
        future: asyncio.Future[Any],
        take_back: TakeBack | None = None,
        locks: Locks = NO_LOCKS,
    ) -> None:
        self.operation = operation
        self.future = future
        self.take_back = take_back
        self.locks = locks
        self.is_committed = False
        self.is_given_up = False
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self, transaction: Transaction) -> None:
        if not self.future.cancelled():
            self.value = self.operation(transaction)

    def settle(self) -> None:
        self.is_committed = self.failure is None
        if self.future.done():
            return
        if self.failure is not None:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self.value)


class Batch(NamedTuple):
    """What shares one commit."""

    waiting: list[Waiting]
    deferred: list[DeferredWrite]


def unavailable(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable", f"The store cannot be written to: {why}. Nothing was accepted; try again later."
    )
