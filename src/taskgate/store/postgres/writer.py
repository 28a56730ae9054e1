"""The writer of a PostgreSQL store: one thread that carries out batches of operations, one transaction each.

As in the SQLite store, callers are answered after the COMMIT and never before, and if one operation fails the batch is repeated
with each in its own savepoint. The differences: operations run in the writer thread, because their statements are sent to a
server; other gateways write to the same database, so everything that a batch touches is locked first, in one order; and if the
connection is lost during a COMMIT, nothing continues until a query has shown whether it took effect.

While the database is unavailable, an operation is refused after an attempt to connect that began after it was queued, or after
`RECONNECT_WITHIN_S`. An older attempt that fails refuses only its own batch: the database may have returned since it began.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Final

import psycopg

from taskgate.core.errors import GatewayFault
from taskgate.store.batch_writer import RETRY_S, Batch, BatchWriter
from taskgate.store.postgres.committer import CommitLost, Committer
from taskgate.store.postgres.connection import reason

MAX_BATCH: Final = 128
STOP_WITHIN_S: Final = 10.0
RECONNECT_WITHIN_S: Final = 5.0


class Writer(BatchWriter):
    """The event loop gathers batches; the thread commits them, one at a time."""

    timeout_s = 15.0
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
        await self._drain(STOP_WITHIN_S)
        self._pause.set()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)

    @property
    def _patience_s(self) -> float:
        return self.timeout_s if self._problem is None else RECONNECT_WITHIN_S

    def _run_batch(self) -> None:
        deferred = [self._deferred.popleft() for _ in range(min(len(self._deferred), MAX_BATCH * 4))]
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
        self._batches.put(Batch(waiting, deferred))

    def _work(self) -> None:
        """The body of the thread."""
        while (batch := self._batches.get()) is not None:
            self._call_on_loop(self._finish_batch, batch, self._commit(batch))
        self._committer.close()

    def _commit(self, batch: Batch) -> str | None:
        """Commit a batch. Return why the database failed, or None; then each operation has its own outcome."""
        try:
            self._committer.commit(batch)
        except CommitLost as lost:
            return self._resolve_lost_commit(lost)
        except (psycopg.Error, OSError) as error:
            self._committer.disconnect()
            return reason(error) if isinstance(error, psycopg.Error) else str(error)
        except GatewayFault as fault:
            self._committer.disconnect()
            return fault.message
        return None

    def _resolve_lost_commit(self, lost: CommitLost) -> str | None:
        """Wait until a query shows whether a COMMIT whose result was lost took effect.

        Callers get a timeout meanwhile. If it was committed, the operations whose callers stopped waiting are reverted.
        """
        self._call_on_loop(self._shorten_waits, lost.why)
        while not self._pause.is_set():
            try:
                if self._committer.was_committed(lost.number):
                    return None
                return lost.why
            except (psycopg.Error, OSError, GatewayFault):
                self._committer.disconnect()
                self._pause.wait(RETRY_S)
        return lost.why

    def _shorten_waits(self, why: str) -> None:
        """The database may be unavailable for long: what is queued does not wait as long as for a slow one."""
        self._problem = why
        for waiting in self._waiting:
            self._bind().call_later(RECONNECT_WITHIN_S, waiting.time_out)
