"""Deferred writes of which only the latest value per key matters: progress of a task, cursor of a caller.

A value stays readable here until it is committed, so a reader never sees it go backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Generic, TypeVar

from taskgate.lazy_dataclass import dataclass
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.locks import Locks
from taskgate.store.transaction import Transaction

V = TypeVar("V")


@dataclass(slots=True)
class LatestWins(Generic[V]):
    """`queue` passes a deferred write to the writer; `write` writes one value, under the locks of its key."""

    queue: Callable[[DeferredWrite], None]
    write: Callable[[Transaction, str, V], None]
    locks: Callable[[str], Locks]
    _waiting: dict[str, V] = field(default_factory=dict, init=False)

    def peek(self, key: str) -> V | None:
        return self._waiting.get(key)

    def put(self, key: str, value: V) -> None:
        is_queued = key in self._waiting
        self._waiting[key] = value
        if not is_queued:
            self.queue(self._deferred_write(key))

    def _deferred_write(self, key: str) -> DeferredWrite:
        written: list[V] = []

        def write(tx: Transaction) -> None:
            written[:] = [self._waiting[key]]
            self.write(tx, key, written[0])

        def committed() -> None:
            if not written or self._waiting[key] is written[0]:
                del self._waiting[key]
            else:
                self.queue(self._deferred_write(key))

        return DeferredWrite(write, committed, self.locks(key))
