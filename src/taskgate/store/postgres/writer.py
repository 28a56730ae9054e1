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
import threading
from typing import Final

import psycopg

from taskgate.core.errors import GatewayFault
from taskgate.store.batch import RETRY_S, Batch, BatchWriter, unavailable
from taskgate.store.postgres.commit import Committer, Lost
from taskgate.store.postgres.connection import reason

MAX_BATCH: Final = 128
STOP_WITHIN_S: Final = 10.0


class Writer(BatchWriter):
    """The event loop gathers batches; the thread carries them out, one at a time."""

    answer_within_s = 15.0
    medium = "the database"

    def __init__(self, committer: Committer) -> None:
        super().__init__()
        self._committer = committer
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._work, name="taskgate-store-commits", daemon=True)

    def start(self) -> None:
        super().start()
        self._thread.start()

    async def stop(self) -> None:
        await self._write_the_last(STOP_WITHIN_S)
        self._pause.set()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)

    def _refuse_more(self) -> None:
        super()._refuse_more()
        if self._trouble is not None and self._is_busy:
            raise unavailable(self._trouble)

    def _run_batch(self) -> None:
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

    def _over(self, batch: Batch, trouble: str | None) -> None:
        if trouble is not None:
            self._in_trouble(trouble)
        super()._over(batch, trouble)
