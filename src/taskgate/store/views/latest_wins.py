"""Values that wait to be written, where only the latest of each key matters: progress of a task, cursor of a caller.

A value stays visible here until the commit that holds it, so a reader never sees it go backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from taskgate.store.batch import DeferredWrite
from taskgate.store.operations.transaction import Locks, Transaction

V = TypeVar("V")


class LatestWins(Generic[V]):
    """`queue` hands a deferred write to the writer; `write` writes one value, and `locks` says what of."""

    def __init__(
        self,
        queue: Callable[[DeferredWrite], None],
        write: Callable[[Transaction, str, V], None],
        locks: Callable[[str], Locks],
    ) -> None:
        self._queue = queue
        self._write = write
        self._locks = locks
        self._waiting: dict[str, V] = {}

    def peek(self, key: str) -> V | None:
        return self._waiting.get(key)

    def put(self, key: str, value: V) -> None:
        is_queued = key in self._waiting
        self._waiting[key] = value
        if not is_queued:
            self._queue(self._deferred_write(key))

    def _deferred_write(self, key: str) -> DeferredWrite:
        written: list[V] = []

        def write(tx: Transaction) -> None:
            written[:] = [self._waiting[key]]
            self._write(tx, key, written[0])

        def committed() -> None:
            if not written or self._waiting[key] is written[0]:
                del self._waiting[key]
            else:
                self._queue(self._deferred_write(key))

        return DeferredWrite(write, committed, self._locks(key))
