"""The one thread that writes. Operations that wait at the same time share one commit, and so one sync of the disk.

An operation is a function of a `Transaction`. If one fails, the batch is done again with each in its own savepoint,
so it takes nothing back from its neighbours; operations may therefore run twice and must not touch anything outside.
Whoever waits is answered after the COMMIT, never before: what was answered is on the disk. If the disk refuses,
everybody in that commit gets `store_unavailable`, and the thread keeps trying with a small write until the disk
takes it again. *Ride-alongs* (progress, cursors, audit of plain calls) wait for nobody: they go with the next
commit, or after a moment with one of their own.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.transaction import Transaction

T = TypeVar("T")
Operation = Callable[[Transaction], T]

MAX_BATCH: Final = 64
MAX_WAITING: Final = 20_000
MAX_RIDE_ALONGS: Final = 20_000
RIDE_ALONG_DELAY_S: Final = 0.25
RETRY_S: Final = 0.5
ANSWER_WITHIN_S: Final = 30.0


class RideAlong(NamedTuple):
    """A write that nobody waits for; `committed` is told, in the writer's thread, when it is on the disk."""

    write: Callable[[Transaction], None]
    committed: Callable[[], None] | None = None


class _Waiting:
    """An operation and the future of whoever waits for it."""

    __slots__ = ("failure", "future", "loop", "operation", "value")

    def __init__(self, operation: Operation[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.operation = operation
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self, transaction: Transaction) -> None:
        self.value = self.operation(transaction)


class Writer:
    """Owns the writing connection from `start` to `stop`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        clock: Callable[[], int],
        ownership: Ownership,
    ) -> None:
        self._connection = connection
        self._checkpointer = checkpointer
        self._clock = clock
        self._ownership = ownership
        self._waiting: deque[_Waiting] = deque()
        self._riding: deque[RideAlong] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="taskgate-store-writer", daemon=True)

    @property
    def trouble(self) -> str | None:
        return self._trouble

    def start(self) -> None:
        self._checkpointer.start()
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end. Blocks; call it off the event loop."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(ANSWER_WITHIN_S)
        self._checkpointer.stop()
        self._connection.close()

    async def write(self, operation: Operation[T]) -> T:
        """Run the operation in the next commit and return its value once that commit is on the disk."""
        waiting = _Waiting(operation, asyncio.get_running_loop())
        with self._wake:
            if self._stopping or len(self._waiting) >= MAX_WAITING:
                raise GatewayFault("store_unavailable", "The store takes no more writes just now. Try again soon.")
            self._waiting.append(waiting)
            self._wake.notify()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                value: T = await waiting.future
                return value
        except TimeoutError:
            raise unavailable("the disk did not answer in time") from None

    def ride_along(self, rider: RideAlong) -> None:
        """Write soon, without anybody waiting."""
        with self._wake:
            if len(self._riding) >= MAX_RIDE_ALONGS:
                raise unavailable("too much is waiting to be written")
            self._riding.append(rider)
            if len(self._riding) == 1:
                self._wake.notify()

    def _work(self) -> None:
        while True:
            batch, riding, over = self._next_work()
            if batch or riding or self._trouble is not None:
                self._commit(batch, riding)
                _answer(batch)
                self._checkpointer.finish(self._connection)
            if over:
                return

    def _next_work(self) -> tuple[list[_Waiting], list[RideAlong], bool]:
        """Waits until there is something to do. Takes at most one batch; what came meanwhile waits for the next one."""
        with self._wake:
            while not self._waiting and not self._stopping:
                pause = RIDE_ALONG_DELAY_S if self._riding else None
                if self._trouble is not None:
                    pause = RETRY_S
                if not self._wake.wait(pause) and pause is not None:
                    break
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            riding = list(self._riding)
            self._riding.clear()
            return batch, riding, self._stopping and not self._waiting

    def _commit(self, batch: list[_Waiting], riding: list[RideAlong]) -> None:
        try:
            try:
                self._run_all(batch, riding, one_by_one=False)
            except sqlite3.OperationalError:
                raise
            except Exception:  # one of them failed, and took the whole transaction with it: find out which
                self._connection.execute("ROLLBACK")
                self._run_all(batch, riding, one_by_one=True)
        except sqlite3.Error as error:
            self._undo(batch, riding, error)
            return
        self._trouble = None
        self._checkpointer.committed()
        for rider in riding:
            if rider.committed is not None:
                rider.committed()

    def _run_all(self, batch: list[_Waiting], riding: list[RideAlong], *, one_by_one: bool) -> None:
        """One transaction. Savepoints cost as much as a whole operation, so they are used only after a failure."""
        self._connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(self._connection, self._clock(), self._ownership)
        for waiting in batch:
            if waiting.future.cancelled():
                continue
            if one_by_one:
                waiting.failure = self._in_savepoint(transaction, waiting.run)
            else:
                waiting.run(transaction)
        for rider in riding:
            if one_by_one:
                self._in_savepoint(transaction, rider.write)
            else:
                rider.write(transaction)
        if self._trouble is not None:
            transaction.run("touch_owner", owner=self._ownership.owner, now_ms=transaction.now_ms)
        self._connection.execute("COMMIT")

    def _in_savepoint(self, transaction: Transaction, write: Callable[[Transaction], None]) -> Exception | None:
        """A failing disk ends the whole transaction; anything else takes back only this one write."""
        self._connection.execute("SAVEPOINT one")
        failure: Exception | None = None
        try:
            write(transaction)
        except sqlite3.OperationalError:
            raise
        except Exception as error:  # the failure of one write, answered to whoever waits for it
            failure = error
            self._connection.execute("ROLLBACK TO one")
            transaction.forget_head()
        self._connection.execute("RELEASE one")
        return failure

    def _undo(self, batch: list[_Waiting], riding: list[RideAlong], error: sqlite3.Error) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._trouble = str(error)
        for waiting in batch:
            waiting.failure = unavailable(self._trouble)
        with self._wake:
            self._riding.extendleft(reversed(riding))


def unavailable(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable", f"The store cannot be written to: {why}. Nothing was accepted; try again later."
    )


def _answer(batch: list[_Waiting]) -> None:
    """Hand the answers over to the event loops, one call per loop and not one per waiter."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
    for waiting in batch:
        by_loop.setdefault(waiting.loop, []).append(waiting)
    for loop, group in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, group)


def _settle(group: list[_Waiting]) -> None:
    for waiting in group:
        if waiting.future.done():
            continue
        if waiting.failure is not None:
            waiting.future.set_exception(waiting.failure)
        else:
            waiting.future.set_result(waiting.value)
