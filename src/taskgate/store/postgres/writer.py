"""The one writer of this gateway. Operations that wait at the same time share one transaction and one commit.

As in the SQLite store, an operation is a function of a `Transaction`, whoever waits is answered after the COMMIT and never before,
and if one operation fails the batch is done again with each in its own savepoint. The differences: here the operations run in
the writer's thread, because their statements travel to a server; other gateways write to the same database, so what the
operations of a batch will touch is locked first, all of it in one order; and a commit whose answer was lost with the connection is
neither done nor undone until the server has been asked whether it is there.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

from taskgate.core.errors import GatewayFault
from taskgate.store.batch import Batch, DeferredWrite, Locks, Operation, TakeBack, Waiting, unavailable
from taskgate.store.postgres.commit import Committer, Lost
from taskgate.store.postgres.connection import reason

T = TypeVar("T")

MAX_BATCH: Final = 64
MAX_WAITING: Final = 20_000
MAX_DEFERRED: Final = 20_000
RIDE_ALONG_DELAY_S: Final = 0.25
RETRY_S: Final = 0.5
ANSWER_WITHIN_S: Final = 15.0
STOP_WITHIN_S: Final = 10.0
SWITCH_INTERVAL_S: Final = 0.00005


class Writer:
    """The event loop gathers batches; the thread carries them out, one at a time."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: deque[Waiting] = deque()
        self._deferred: deque[DeferredWrite] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._is_stopping = False
        self._idle: asyncio.Future[None] | None = None
        self._trouble: str | None = None
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._work, name="taskgate-store-commits", daemon=True)

    @property
    def trouble(self) -> str | None:
        return self._trouble

    @property
    def is_committing(self) -> bool:
        return self._is_busy

    def start(self) -> None:
        # As in the SQLite store: a thread that asks for the interpreter's lock later than a busy loop lets go of it starves.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._thread.start()

    async def stop(self) -> None:
        """Write what waits, once, then end."""
        self._is_stopping = True
        loop = self._bind()
        if self._is_busy or self._waiting or self._deferred:
            self._idle = loop.create_future()
            self._go_on()
            await asyncio.wait([self._idle], timeout=STOP_WITHIN_S)
        if self._timer is not None:
            self._timer.cancel()
        self._pause.set()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)

    async def write(self, operation: Operation[T], locks: Locks, take_back: TakeBack | None) -> T:
        if self._is_stopping or len(self._waiting) >= MAX_WAITING:
            raise GatewayFault("store_unavailable", "The store takes no more writes just now. Try again soon.")
        if self._trouble is not None and self._is_busy:
            raise unavailable(self._trouble)
        waiting = Waiting(operation, self._bind().create_future(), take_back, locks)
        self._waiting.append(waiting)
        self._go_on()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                value: T = await waiting.future
                return value
        except TimeoutError:
            self._give_up(waiting)
            raise unavailable("the database did not answer in time") from None
        except asyncio.CancelledError:
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: Waiting) -> None:
        if waiting.give_up():
            self._take_back(waiting)

    def _take_back(self, waiting: Waiting) -> None:
        undo = waiting.take_back(waiting.value) if waiting.take_back is not None else None
        if undo is not None:
            self.defer(DeferredWrite(undo, None, waiting.locks))

    def defer(self, write: DeferredWrite) -> None:
        if len(self._deferred) >= MAX_DEFERRED:
            raise unavailable("too much is waiting to be written")
        self._bind()
        self._deferred.append(write)
        self._look_again_in(RIDE_ALONG_DELAY_S)

    def _bind(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _go_on(self) -> None:
        """Hand over the next batch in the next turn of the loop, so that writes of the same turn share it."""
        if not self._is_busy:
            self._is_busy = True
            self._bind().call_soon(self._hand_over)

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._bind().call_later(seconds, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        if self._deferred or self._trouble is not None:
            self._go_on()

    def _hand_over(self) -> None:
        deferred = [self._deferred.popleft() for _ in range(min(len(self._deferred), MAX_BATCH * 4))]
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
        self._batches.put(Batch(waiting, deferred))

    def _work(self) -> None:
        """The thread: everything that waits for the database."""
        while (batch := self._batches.get()) is not None:
            self._tell_loop(self._over, batch, self._carried_out(batch))
        self._committer.close()

    def _carried_out(self, batch: Batch) -> str | None:
        """What was wrong with the database, or None: then each operation knows by itself how it went."""
        try:
            self._committer.commit(batch)
        except Lost as lost:
            return self._find_out(lost)
        except (psycopg.Error, OSError) as error:
            self._committer.hang_up()
            return reason(error) if isinstance(error, psycopg.Error) else str(error)
        except GatewayFault as fault:
            self._committer.hang_up()
            return fault.message
        return None

    def _find_out(self, lost: Lost) -> str | None:
        """The answer to a COMMIT was lost: nothing goes on before it is known what became of it.

        Whoever waits is told so when their time is up; if it was committed after all, what they gave up on is taken back.
        """
        self._tell_loop(self._in_trouble, lost.why)
        while not self._pause.is_set():
            try:
                if self._committer.was_committed(lost.number):
                    return None
                return lost.why
            except (psycopg.Error, OSError, GatewayFault):
                self._committer.hang_up()
                self._pause.wait(RETRY_S)
        return lost.why

    def _in_trouble(self, why: str) -> None:
        """New writes need not wait for what may take long."""
        self._trouble = why
        for waiting in self._waiting:
            waiting.ended(unavailable(why))
            waiting.settle()
        self._waiting.clear()

    def _tell_loop(self, what: Callable[..., None], *values: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *values)

    def _over(self, batch: Batch, trouble: str | None) -> None:
        """Back on the loop: the commit is durable, or it is not and never was."""
        self._trouble = trouble
        if trouble is None:
            for write in batch.deferred:
                if write.committed is not None:
                    write.committed()
        else:
            self._deferred.extendleft(reversed(batch.deferred))
            for waiting in batch.waiting:
                waiting.ended(unavailable(trouble))
            self._in_trouble(trouble)
            self._look_again_in(RETRY_S)
        for waiting in batch.waiting:
            waiting.settle()
            if waiting.is_committed and waiting.is_given_up:
                self._take_back(waiting)
        self._is_busy = False
        if self._waiting or (self._is_stopping and self._deferred and trouble is None):
            self._go_on()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
