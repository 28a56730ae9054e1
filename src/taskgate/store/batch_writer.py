"""Group commit: operations that wait at the same time share one transaction and one sync.

`BatchWriter` is the event loop's side of a writer and is the same for every database. It gathers waiting operations into batches,
resolves their futures when the commit is durable and never earlier, and reverts a committed operation whose caller has stopped
waiting.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.store.locks import NO_LOCKS, Locks
from taskgate.store.transaction import Transaction

T = TypeVar("T")
Write = Callable[[Transaction], T]
Revert = Callable[[Any], Write[None] | None]
"""Return the operation that reverts a committed one, given its value; None if there is nothing to revert."""


class DeferredWrite(NamedTuple):
    """A write that no caller waits for; `committed` is called when it is durable."""

    write: Callable[[Transaction], None]
    committed: Callable[[], None] | None = None
    locks: Locks = NO_LOCKS


class QueuedOperation:
    """An operation and the future that its caller awaits."""

    __slots__ = ("failure", "future", "is_abandoned", "is_committed", "locks", "operation", "revert", "value")

    def __init__(
        self,
        operation: Write[Any],
        future: asyncio.Future[Any],
        revert: Revert | None = None,
        locks: Locks = NO_LOCKS,
    ) -> None:
        self.operation = operation
        self.future = future
        self.revert = revert
        self.locks = locks
        self.is_committed = False
        self.is_abandoned = False
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self, transaction: Transaction) -> None:
        if not self.future.done():
            self.value = self.operation(transaction)

    def finish(self, failure: BaseException | None) -> None:
        """Record the outcome; `settle` resolves the future."""
        self.failure = failure

    def time_out(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError())

    def abandon(self) -> bool:
        """The caller has stopped waiting. Return whether the operation is committed already."""
        self.is_abandoned = True
        return self.is_committed

    def settle(self) -> None:
        self.is_committed = self.failure is None
        if self.future.done():
            return
        if self.failure is not None:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self.value)


class Batch(NamedTuple):
    """The writes that share one commit."""

    waiting: list[QueuedOperation]
    deferred: list[DeferredWrite]


MAX_WAITING: Final = 20_000
MAX_DEFERRED: Final = 20_000
DEFERRED_DELAY_S: Final = 0.25
"""A deferred write waits this long for a commit that it can join."""
RETRY_S: Final = 0.5
SWITCH_INTERVAL_S: Final = 0.00005


class BatchWriter(ABC):
    timeout_s: ClassVar[float]
    medium: ClassVar[str]
    """The name of the storage in error messages: the disk or the database."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedOperation] = deque()
        self._deferred: deque[DeferredWrite] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._is_stopping = False
        self._idle: asyncio.Future[None] | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        return self._problem

    @property
    def is_committing(self) -> bool:
        """Whether a batch is being written, until its outcome is known on the loop. A virtual clock does not advance meanwhile."""
        return self._is_busy

    def start(self) -> None:
        # A busy event loop releases the interpreter lock only briefly. With a longer interval the committing thread would
        # lose the race for it repeatedly, for seconds.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    async def _drain(self, timeout_s: float) -> None:
        """Write what is queued, once, and accept nothing more."""
        self._is_stopping = True
        loop = self._bind()
        if self._is_busy or self._waiting or self._deferred:
            self._idle = loop.create_future()
            self._start_batch()
            await asyncio.wait([self._idle], timeout=timeout_s)
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, operation: Write[T], revert: Revert | None = None, locks: Locks = NO_LOCKS) -> T:
        """Run the operation in the next commit and return its value once that commit is durable.

        `revert` is used if the commit becomes durable after the caller has stopped waiting.
        """
        self._check_capacity()
        loop = self._bind()
        waiting = QueuedOperation(operation, loop.create_future(), revert, locks)
        self._waiting.append(waiting)
        self._start_batch()
        timer = loop.call_later(self._patience_s, waiting.time_out)
        try:
            value: T = await waiting.future
            return value
        except (TimeoutError, asyncio.CancelledError) as reason:
            self._abandon(waiting)
            if isinstance(reason, TimeoutError):
                raise unavailable(self._problem or f"{self.medium} did not answer in time") from None
            raise
        finally:
            timer.cancel()

    @property
    def _patience_s(self) -> float:
        """How long a write waits."""
        return self.timeout_s

    def _check_capacity(self) -> None:
        """Raises GatewayFault if another write cannot be accepted."""
        if self._is_stopping or len(self._waiting) >= MAX_WAITING:
            raise GatewayFault("store_unavailable", "The store cannot accept more writes now. Try again shortly.")

    def _abandon(self, waiting: QueuedOperation) -> None:
        """The caller has stopped waiting. Revert the operation now if it is committed, otherwise when it is."""
        if waiting.abandon():
            self._revert(waiting)

    def _revert(self, waiting: QueuedOperation) -> None:
        undo = waiting.revert(waiting.value) if waiting.revert is not None else None
        if undo is not None:
            self.defer(DeferredWrite(undo, None, waiting.locks))

    def defer(self, write: DeferredWrite) -> None:
        """Write with the next commit, without waiting for it."""
        if len(self._deferred) >= MAX_DEFERRED:
            raise unavailable("too many writes are queued")
        self._bind()
        self._deferred.append(write)
        self._start_in(DEFERRED_DELAY_S)

    def _bind(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _start_batch(self) -> None:
        """Start a batch in the next iteration of the event loop, so that writes of the same iteration share it."""
        if not self._is_busy:
            self._is_busy = True
            self._bind().call_soon(self._run_batch)

    @abstractmethod
    def _run_batch(self) -> None:
        """Carry out the queued writes; the outcome is passed to `_finish_batch`."""

    def _start_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._bind().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._deferred or self._problem is not None:
            self._start_batch()

    def _call_on_loop(self, callback: Callable[..., None], *values: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)

    def _finish_batch(self, batch: Batch, problem: str | None) -> None:
        """Resolve the futures of a batch, on the loop: its commit is durable, or it failed and never took effect."""
        self._problem = problem
        if problem is None:
            for write in batch.deferred:
                if write.committed is not None:
                    write.committed()
        else:
            self._deferred.extendleft(reversed(batch.deferred))
            for waiting in batch.waiting:
                waiting.finish(unavailable(problem))
            self._start_in(RETRY_S)
        for waiting in batch.waiting:
            waiting.settle()
            if waiting.is_committed and waiting.is_abandoned:
                self._revert(waiting)
        self._is_busy = False
        if self._has_more() or (self._is_stopping and self._deferred and problem is None):
            self._start_batch()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _has_more(self) -> bool:
        return bool(self._waiting)


def unavailable(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable", f"The store cannot be written to: {why}. Nothing was accepted; try again later."
    )
