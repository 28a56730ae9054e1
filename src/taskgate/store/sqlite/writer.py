"""The writer of a SQLite store. Operations that wait at the same time share one commit, and so one sync of the disk.

An operation is a function of a `Transaction`. Operations run on the event loop and take a few tens of microseconds each. A thread
runs only what blocks: the COMMIT, and before it one statement with the rows that the operations insert. (Running the operations
there would pass the interpreter lock back and forth for every statement, and a busy loop starves such a thread for seconds.)

During one commit, the next batch is collected. A batch takes the operations that are queued when it begins, in slices of a few
milliseconds with an iteration of the loop between them. The size of a batch must not depend on how long the loop may be blocked,
or a slow disk on a busy machine could not keep up. If another process holds the lock of the database (a backup, a shell), the
thread waits for it, never the loop.

Callers are answered after the COMMIT, never before. If one operation fails, the batch is repeated with each in its own savepoint,
so operations may run twice and must have no side effects. If the disk fails, all operations of that commit raise
`store_unavailable`, and the writer retries with a small write until the disk recovers. After a failed sync the whole transaction
may still be in the log, so it is overwritten before callers are answered. A commit that becomes durable after its caller stopped
waiting is reverted. Deferred writes (progress, cursors, the audit of plain calls) join the next commit, or get one of their own
after a moment.

Free pages are given back to the file system in portions, each between two batches and only while nothing is written.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch_writer import DEFERRED_DELAY_S, Batch, BatchWriter, unavailable
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.checkpointer import Checkpointer
from taskgate.store.sqlite.connection import free_pages, give_back_pages, gives_back_pages, rewrite_file
from taskgate.store.sqlite.last_known import LastKnown
from taskgate.store.sqlite.store_files import StoreFiles
from taskgate.store.sqlite.transaction import SqliteTransaction
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

MAX_BATCH: Final = 256
SLICE_S: Final = 0.002
STOP_WITHIN_S: Final = 30.0
GIVE_BACK_EVERY_S: Final = 0.1
KEPT_FREE_PAGES: Final = 1_024
"""Four megabytes stay for the next rows, which would take them again."""
LOCK_WAIT_S: Final = 10.0
LOCK_RETRY_S: Final = 0.02


class WaitForLock:
    """A job for the thread: begin a transaction when another process releases the database."""


class Rewrite(NamedTuple):
    """A job for the thread: rewrite the file, so that no deleted row is left in it or in its log."""

    done: asyncio.Future[None]


class GiveBack:
    """A job for the thread: give free pages back to the file system."""


class Writer(BatchWriter):
    """Owns the writing connection. The event loop and the committing thread use it alternately, never at the same time."""

    timeout_s = 30.0
    medium = "the disk"

    def __init__(
        self,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        *,
        clock: Callable[[], int],
        ownership: Ownership,
        state: StoreState,
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
        self._state = state
        self._rewrites: deque[Rewrite] = deque()
        self._gives_back = gives_back_pages(connection)
        self._give_back_timer: asyncio.TimerHandle | None = None
        self._to_commit: queue.SimpleQueue[Batch | WaitForLock | Rewrite | GiveBack | None] = queue.SimpleQueue()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._commit_batches, name="taskgate-store-commits", daemon=True)

    def start(self) -> None:
        super().start()
        self._checkpointer.start()
        self._thread.start()

    async def stop(self) -> None:
        await self._drain(STOP_WITHIN_S)
        if self._give_back_timer is not None:
            self._give_back_timer.cancel()
        self._to_commit.put(None)
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)
        await asyncio.to_thread(self._checkpointer.stop)
        self._connection.close()

    async def rewrite(self) -> None:
        """Rewrite the file without deleted rows. Other writes wait meanwhile."""
        if self._is_stopping:
            raise unavailable("the store is being closed")
        job = Rewrite(self._bind().create_future())
        self._rewrites.append(job)
        self._start_batch()
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
                self._fail_all(Batch([], []), error)
        else:
            self._fill_batch()

    def _when_idle(self) -> None:
        """Schedule the next portion of free pages. A batch that begins before is not delayed, and schedules it again."""
        if self._gives_back and self._give_back_timer is None and not self._is_stopping:
            self._give_back_timer = self._bind().call_later(GIVE_BACK_EVERY_S, self._give_back)

    def _give_back(self) -> None:
        self._give_back_timer = None
        if self._is_busy or self._is_stopping or self._problem is not None:
            return
        try:
            free = free_pages(self._connection)
        except sqlite3.Error:
            return  # Another process holds a lock, or the disk fails: the next batch notices that.
        if free > KEPT_FREE_PAGES:
            self._is_busy = True
            self._to_commit.put(GiveBack())

    def _fill_batch(self) -> None:
        """Run the queued operations in the transaction that was begun."""
        batch = Batch([], list(self._deferred))
        self._deferred.clear()
        self._run_slice(batch, self._run_together(batch))

    def _run_slice(self, batch: Batch, writes: Iterator[None], *, is_apart: bool = False) -> None:
        """Run as many writes as fit into a slice; the rest of the batch continues in the next iteration of the event loop."""
        until = clock.monotonic() + SLICE_S
        try:
            for _ in writes:
                if clock.monotonic() >= until:
                    self._bind().call_soon(partial(self._run_slice, batch, writes, is_apart=is_apart))
                    return
        except Exception as error:
            if is_apart or isinstance(error, sqlite3.OperationalError):
                self._fail_all(batch, error)
            else:  # one of them failed, and the whole transaction with it: find out which
                self._run_slice(batch, self._run_in_savepoints(batch), is_apart=True)
        else:
            self._to_commit.put(batch)

    def _fail_all(self, batch: Batch, error: Exception) -> None:
        """Fail the batch and everything queued behind it at once."""
        batch.waiting.extend(self._waiting)
        self._waiting.clear()
        self._finish_batch(batch, self._roll_back(error))

    def _run_together(self, batch: Batch) -> Iterator[None]:
        """Run without savepoints, which cost as much as a whole operation. Operations queued between two slices join the next
        batch."""
        transaction = self._transaction()
        transaction.gather()
        for _ in range(min(len(self._waiting), MAX_BATCH)):
            batch.waiting.append(self._waiting.popleft())
            batch.waiting[-1].run(transaction)
            yield
        for write in batch.deferred:
            write.write(transaction)
            yield

    def _run_in_savepoints(self, batch: Batch) -> Iterator[None]:
        """Repeat the batch with each write in its own savepoint. SQLite has rolled back already after some errors."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        transaction = self._transaction()
        for waiting in batch.waiting:
            waiting.finish(self._in_savepoint(transaction, waiting.run))
            yield
        for write in batch.deferred:
            self._in_savepoint(transaction, write.write)
            yield

    def _transaction(self) -> SqliteTransaction:
        transaction = SqliteTransaction(self._connection, self._clock(), self._ownership, self._state, self._sealing)
        if self._problem is not None:
            transaction.run("touch_owner", owner=self._ownership.owner, now_ms=transaction.now_ms)
        self._present = transaction
        return transaction

    def _in_savepoint(self, transaction: Transaction, write: Callable[[Transaction], None]) -> Exception | None:
        """Return the failure of this write. A failing disk ends the whole transaction; other errors undo only this write."""
        self._connection.execute("SAVEPOINT one")
        failure: Exception | None = None
        try:
            write(transaction)
        except sqlite3.OperationalError:
            raise
        except Exception as error:  # the failure of one write, raised to its caller
            failure = unavailable(str(error)) if is_refused(error) else error
            self._connection.execute("ROLLBACK TO one")
            transaction.reset_audit_head(None)
        self._connection.execute("RELEASE one")
        return failure

    def _roll_back(self, error: Exception) -> str:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        return str(error)

    def _commit_batches(self) -> None:
        """The body of the thread: everything that waits for the disk or for another process."""
        while (job := self._to_commit.get()) is not None:
            if isinstance(job, WaitForLock):
                refused = self._begin_after_lock()
                if refused is None:
                    self._call_on_loop(self._fill_batch)
                else:
                    self._call_on_loop(self._fail_all, Batch([], []), refused)
            elif isinstance(job, GiveBack):
                self._call_on_loop(self._finish_batch, Batch([], []), self._give_back_portion())
            elif isinstance(job, Rewrite):
                self._call_on_loop(self._rewritten, job, rewrite_file(self._connection, self._pause))
            elif self._write_gathered(job):
                problem = self._commit()
                self._call_on_loop(self._finish_batch, job, problem)
            del job  # A batch references the data of its callers; an idle thread must not keep it alive.

    def _write_gathered(self, batch: Batch) -> bool:
        """Write the rows that the operations of a batch queued. Return False if that failed; the loop then continues with the
        batch."""
        try:
            if self._present is not None:
                self._present.write_gathered()
        except Exception as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                self._call_on_loop(self._fail_all, batch, error)
            else:  # one of them failed, and the whole transaction with it: find out which
                self._call_on_loop(partial(self._run_slice, batch, self._run_in_savepoints(batch), is_apart=True))
            return False
        return True

    def _give_back_portion(self) -> str | None:
        """Failing to give space back is no problem of the store: what is written is committed as before."""
        try:
            give_back_pages(self._connection)
        except sqlite3.Error:
            self._gives_back = False  # until the next start
        else:
            self._checkpointer.committed(self._connection)
        return None

    def _rewritten(self, job: Rewrite, failure: str | None) -> None:
        if failure is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(not_rewritten(failure))
        self._finish_batch(Batch([], []), self._problem)
        if self._deferred:
            self._start_in(DEFERRED_DELAY_S)

    def _begin_after_lock(self) -> sqlite3.Error | None:
        """Begin a transaction when the other process releases the lock; return the error if it does not in time."""
        refused: sqlite3.Error | None = None
        for _ in range(int(LOCK_WAIT_S / LOCK_RETRY_S)):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    return error
                refused = error
                self._pause.wait(LOCK_RETRY_S)
            else:
                return None
        return refused

    def _commit(self) -> str | None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            problem = self._roll_back(error)
            self._overwrite_refused()
            return problem
        if self._present is not None:
            self._last_known.committed(self._present.audit_number)
        self._checkpointer.committed(self._connection)
        return None

    def _finish_batch(self, batch: Batch, problem: str | None) -> None:
        """Fail a commit to a file that was removed or replaced. Checked here and not in the committing thread, which would wait
        for the interpreter lock of a busy loop after each check."""
        lost = self._files.lost() if problem is None else None
        if lost is not None:
            # The files may be restored: the next process must not run what was refused.
            for waiting in batch.waiting:
                if waiting.failure is None:
                    self._revert(waiting)
            batch = Batch(batch.waiting, [])
        super()._finish_batch(batch, problem or lost)
        if not self._is_busy:
            self._when_idle()

    def _overwrite_refused(self) -> None:
        """Overwrite a refused commit before its callers are answered.

        If only the sync failed, the whole transaction is in the log. This process treats it as undone, but after a crash the
        next one would find it and run what was reported as not accepted.
        """
        refused = self._begin_after_lock()
        try:
            if refused is not None:
                raise refused
            transaction = SqliteTransaction(
                self._connection, self._clock(), self._ownership, self._state, self._sealing
            )
            transaction.run("touch_owner", owner=self._ownership.owner, now_ms=transaction.now_ms)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            # If only the sync failed again, it is overwritten all the same; a disk that accepts no bytes has stored none.
            self._roll_back(error)

    def _has_more(self) -> bool:
        return bool(self._waiting or self._rewrites)


def is_refused(error: Exception) -> bool:
    """Return whether the database refused a correct statement, for example by a constraint or a trigger."""
    return isinstance(error, sqlite3.IntegrityError)


def _is_locked(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def not_rewritten(why: str) -> GatewayFault:
    return GatewayFault(
        "store_unavailable",
        f"The rows are deleted, but their bytes are still in the store's file, which could not be rewritten: {why}. "
        "Run the erasure again.",
    )
