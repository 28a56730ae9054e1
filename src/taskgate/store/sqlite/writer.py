"""The one writer. Operations that wait at the same time share one commit, and so one sync of the disk.

An operation is a function of a `Transaction`. Operations run on the event loop, a few tens of microseconds each;
only the COMMIT, which waits for the disk, runs in a thread, and before it one statement with the rows that the
operations insert. (Running the operations there too would hand the interpreter's lock back and forth for every
statement, and a busy loop starves such a thread for seconds.) While one
commit is on its way, the next batch gathers. A batch takes what waits when it begins and nobody who comes later, in
slices of a few milliseconds with a turn of the loop between them: how many share a sync must not depend on how long the
loop may be held, or a slow disk on a busy machine would take less work a second than it is offered. Another process may
hold the database's lock (a backup, a shell): the loop never waits for it; the thread does, for a while, and hands the
begun transaction back to the loop.

Whoever waits is answered after the COMMIT, never before: what was answered is on the disk. If one operation fails,
the batch is done again with each in its own savepoint, so it takes nothing back from its neighbours; operations may
therefore run twice and must not touch anything outside. If the disk refuses, everybody in that commit gets
`store_unavailable`, and the writer keeps trying with a small write until the disk takes it again. A commit that was
refused is buried first, because after a failed sync all of it may stand in the log; one that comes when nobody waits
for it any more is taken back. *Ride-alongs* (progress, cursors, audit of plain calls) wait for nobody: they go with the
next commit, or after a moment with one of their own.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import RIDE_ALONG_DELAY_S, Batch, BatchWriter, KeptEvents, Transaction, unavailable
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.connection import Rewrite, SqliteTransaction, WaitForLock, rewrite_file
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.store_files import StoreFiles

MAX_BATCH: Final = 256
SLICE_S: Final = 0.002
STOP_WITHIN_S: Final = 30.0
LOCK_WAIT_S: Final = 10.0
LOCK_LOOK_S: Final = 0.02


class Writer(BatchWriter):
    """Owns the writing connection. The event loop and the committing thread use it in turns, never both."""

    answer_within_s = 30.0
    medium = "the disk"

    def __init__(
        self,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        *,
        clock: Callable[[], int],
        ownership: Ownership,
        kept_events: KeptEvents,
        last_known: LastKnown,
        files: StoreFiles,
        sealing: Sealing,
    ) -> None:
        super().__init__()
        self._files = files
        self._sealing = sealing
        self._last_known = last_known
        self._present: SqliteTransaction | None = None
        self._connection = connection
        self._checkpointer = checkpointer
        self._clock = clock
        self._ownership = ownership
        self._kept_events = kept_events
        self._rewrites: deque[Rewrite] = deque()
        self._to_commit: queue.SimpleQueue[Batch | WaitForLock | Rewrite | None] = queue.SimpleQueue()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._commit_batches, name="taskgate-store-commits", daemon=True)

    def start(self) -> None:
        super().start()
        self._checkpointer.start()
        self._thread.start()

    async def stop(self) -> None:
        await self._write_the_last(STOP_WITHIN_S)
        self._to_commit.put(None)
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)
        await asyncio.to_thread(self._checkpointer.stop)
        self._connection.close()

    async def rewrite(self) -> None:
        """Write the file anew without what was deleted. Other writes wait meanwhile."""
        if self._is_stopping:
            raise unavailable("the store is being closed")
        job = Rewrite(self._bind().create_future())
        self._rewrites.append(job)
        self._go_on()
        await asyncio.shield(job.done)

    def _run_batch(self) -> None:
        if self._rewrites:
            self._to_commit.put(self._rewrites.popleft())
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if _is_locked(error):
                self._to_commit.put(WaitForLock())
            else:
                self._refuse_all(Batch([], []), error)
        else:
            self._fill_batch()

    def _fill_batch(self) -> None:
        """A transaction is open and nobody else's: run what waits in it."""
        batch = Batch([], list(self._deferred))
        self._deferred.clear()
        self._run_slice(batch, self._together(batch))

    def _run_slice(self, batch: Batch, writes: Iterator[None], *, is_apart: bool = False) -> None:
        """As many writes as fit; the rest of the batch goes on in the next turn of the loop."""
        until = clock.monotonic() + SLICE_S
        try:
            for _ in writes:
                if clock.monotonic() >= until:
                    self._bind().call_soon(partial(self._run_slice, batch, writes, is_apart=is_apart))
                    return
        except Exception as error:
            if is_apart or isinstance(error, sqlite3.OperationalError):
                self._refuse_all(batch, error)
            else:  # one of them failed, and the whole transaction with it: find out which
                self._run_slice(batch, self._each_apart(batch), is_apart=True)
        else:
            self._to_commit.put(batch)

    def _refuse_all(self, batch: Batch, error: Exception) -> None:
        """Nobody is left waiting for a disk that refuses: all get the same answer now."""
        batch.waiting.extend(self._waiting)
        self._waiting.clear()
        self._over(batch, self._roll_back(error))

    def _together(self, batch: Batch) -> Iterator[None]:
        """Without savepoints: one costs as much as a whole operation. Whoever comes between two slices has the next batch."""
        transaction = self._transaction()
        transaction.gather()
        for _ in range(min(len(self._waiting), MAX_BATCH)):
            batch.waiting.append(self._waiting.popleft())
            batch.waiting[-1].run(transaction)
            yield
        for write in batch.deferred:
            write.write(transaction)
            yield

    def _each_apart(self, batch: Batch) -> Iterator[None]:
        """The same batch once more, each write in a savepoint of its own."""
        self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        transaction = self._transaction()
        for waiting in batch.waiting:
            waiting.ended(self._in_savepoint(transaction, waiting.run))
            yield
        for write in batch.deferred:
            self._in_savepoint(transaction, write.write)
            yield

    def _transaction(self) -> SqliteTransaction:
        transaction = SqliteTransaction(
            self._connection, self._clock(), self._ownership, self._kept_events, self._sealing
        )
        if self._trouble is not None:
            transaction.run("touch_owner", owner=self._ownership.owner, now_ms=transaction.now_ms)
        self._present = transaction
        return transaction

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

    def _roll_back(self, error: Exception) -> str:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        return str(error)

    def _commit_batches(self) -> None:
        """The thread: everything that waits for the disk, or for another process."""
        while (job := self._to_commit.get()) is not None:
            if isinstance(job, WaitForLock):
                refused = self._begin_patiently()
                if refused is None:
                    self._tell_loop(self._fill_batch)
                else:
                    self._tell_loop(self._refuse_all, Batch([], []), refused)
            elif isinstance(job, Rewrite):
                self._tell_loop(self._rewritten, job, rewrite_file(self._connection, self._pause))
            elif self._write_gathered(job):
                trouble = self._commit()
                self._tell_loop(self._over, job, trouble)
            del job  # A batch holds what its callers sent; an idle thread must not keep it.

    def _write_gathered(self, batch: Batch) -> bool:
        """Write the rows that the operations of a batch left for the end. If they cannot be written, the loop goes on."""
        try:
            if self._present is not None:
                self._present.write_gathered()
        except Exception as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                self._tell_loop(self._refuse_all, batch, error)
            else:  # one of them failed, and the whole transaction with it: find out which
                self._tell_loop(partial(self._run_slice, batch, self._each_apart(batch), is_apart=True))
            return False
        return True

    def _rewritten(self, job: Rewrite, failure: str | None) -> None:
        if failure is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(not_rewritten(failure))
        self._over(Batch([], []), self._trouble)
        if self._deferred:
            self._look_again_in(RIDE_ALONG_DELAY_S)

    def _begin_patiently(self) -> sqlite3.Error | None:
        """Begin a transaction once the other process lets go; the refusal if it does not in time."""
        refused: sqlite3.Error | None = None
        for _ in range(int(LOCK_WAIT_S / LOCK_LOOK_S)):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    return error
                refused = error
                self._pause.wait(LOCK_LOOK_S)
            else:
                return None
        return refused

    def _commit(self) -> str | None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            trouble = self._roll_back(error)
            self._bury()
            return trouble
        if self._present is not None:
            self._last_known.committed(self._present.audit_number)
        self._checkpointer.committed(self._connection)
        return None

    def _over(self, batch: Batch, trouble: str | None) -> None:
        """A commit in a file that the next process will not find is refused. Checked here and not by the committing thread, which
        on a busy loop would wait for the interpreter's lock after each check."""
        lost = self._files.lost() if trouble is None else None
        if lost is not None:
            # The files may get their names back: the next process must not run what was refused.
            for waiting in batch.waiting:
                if waiting.failure is None:
                    self._take_back(waiting)
            batch = Batch(batch.waiting, [])
        super()._over(batch, trouble or lost)

    def _bury(self) -> None:
        """Write over what was refused, before anybody hears of it.

        If only the sync failed, the whole transaction stands in the log. This process takes it for undone, but the next
        one would find it after a crash, and run what its caller was told had not been accepted.
        """
        refused = self._begin_patiently()
        try:
            if refused is not None:
                raise refused
            transaction = SqliteTransaction(
                self._connection, self._clock(), self._ownership, self._kept_events, self._sealing
            )
            transaction.run("touch_owner", owner=self._ownership.owner, now_ms=transaction.now_ms)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Written over all the same if only the sync failed again; and a disk that takes no bytes has kept none.
            self._roll_back(error)

    def _has_more(self) -> bool:
        return bool(self._waiting or self._rewrites)


def _is_locked(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way, which will pass."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def not_rewritten(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable",
        f"The rows are deleted, but their bytes are still in the store's file, which cannot be written anew: {why}. Erase again.",
    )
