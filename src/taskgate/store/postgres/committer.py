"""Carry out one batch as one transaction: locks, operations, announcements, commit. Used by the writer thread only."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from typing import Final

import psycopg

from taskgate.ports.topics import CACHED, MISSED
from taskgate.store.batch_writer import Batch, unavailable
from taskgate.store.locks import Locks
from taskgate.store.postgres.arrays import bigint_array, text_array
from taskgate.store.postgres.connection import Connection, connect, reason
from taskgate.store.postgres.inspection import UNSAFE_COMMIT
from taskgate.store.postgres.presence import CHANNEL, LEASE_MS, Presence
from taskgate.store.postgres.statements import SQL
from taskgate.store.postgres.transaction import PostgresTransaction, waited
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

MAX_REPEATS: Final = 5
_NOTIFY: Final = b"SELECT pg_notify(%s, %s)"
_MAX_PAYLOAD: Final = 7_000
"""Names of this many bytes are announced together."""
_MOST_PAYLOAD: Final = 7_900
"""PostgreSQL refuses 8,000 bytes."""
_UNUSABLE: Final = (
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
)
"""The database does not accept writes any more. No operation caused this, so none is singled out."""
_REFUSED: Final = (psycopg.errors.IntegrityError, psycopg.errors.RaiseException)
"""The database refused a correct statement, by a constraint or a trigger."""
_CLASHES: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class CommitLost(Exception):
    """The connection was lost while the result of a COMMIT was awaited."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


class Committer:
    """Owns the writing connection and reopens it when it is lost."""

    def __init__(
        self,
        url: str,
        state: StoreState,
        presence: Presence,
        clock: Callable[[], int] | None,
        sealing: Sealing,
        *,
        audit_head: tuple[int, str] | None,
    ) -> None:
        """`clock` replaces the clock of the database, for tests."""
        self._url, self._sealing = url, sealing
        self._state, self._presence = state, presence
        self._clock = clock
        self._connection: Connection | None = None
        self._is_committed = False
        """Whether the server has confirmed the current batch."""
        self._number = secrets.randbits(61)
        """Identifies the current transaction among those of this gateway. The first one is random, so that no earlier one had
        it."""
        self._tasks: list[str] = []
        self._callers: set[str] = set()
        self._counted: set[str] = set()
        self.audit_head = audit_head
        """The end of this gateway's audit chain. No other gateway appends to it, so it need not be read."""
        self._audit_head_if_committed: tuple[int, str] | None = None

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = connect(self._url, "taskgate writer")
            found = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
            if found is not None and found[0] in UNSAFE_COMMIT:
                # After a failover this may be another server than the one that was checked when the store was opened.
                connection.close()
                raise psycopg.OperationalError(
                    f"synchronous_commit is {found[0]!r}, so a crash could lose acknowledged work"
                )
            self._connection = connection
        return self._connection

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    close = disconnect

    def was_committed(self, number: int) -> bool:
        """Return whether the transaction took effect, by a query on a new connection. Raises while the server cannot be reached."""
        row = self._connected().execute(SQL["last_write"], {"owner": self._presence.ownership.owner}).fetchone()
        is_there = row is not None and bool(row[0] == number)
        if is_there:
            # Its audit rows exist too; continuing from the old end of the chain would make every further write fail.
            self.audit_head = self._audit_head_if_committed
        return is_there

    def commit(self, batch: Batch) -> None:
        """Raises CommitLost and `psycopg.Error`; the failure of a single operation is stored with it."""
        may_be_outdated = self._connection is not None
        for _ in range(MAX_REPEATS):
            try:
                self._commit_pipelined(batch)
                return
            except (CommitLost, *_UNUSABLE):
                raise
            except psycopg.OperationalError as error:
                if isinstance(error, _CLASHES):
                    self._roll_back()
                elif may_be_outdated and self._is_lost:
                    # It was lost since it was last used, or before the COMMIT: nothing has taken effect.
                    may_be_outdated = False
                    self.disconnect()
                else:
                    raise
            except Exception:  # one operation failed, and the whole transaction with it: find out which
                self._roll_back()
                self._commit_singly(batch)
                return
        raise psycopg.OperationalError("repeated conflicts with other gateways")

    @property
    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _roll_back(self) -> None:
        connection = self._connected()
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("ROLLBACK")

    def _commit_pipelined(self, batch: Batch) -> None:
        connection = self._connected()
        try:
            self._in_pipeline(connection, batch)
        except psycopg.Error:
            if not self._is_committed:
                raise
            # The COMMIT was confirmed before the connection was lost; only the end of the pipeline is missing.
            self.disconnect()

    def _in_pipeline(self, connection: Connection, batch: Batch) -> None:
        with connection.pipeline():
            tx = self._begin(connection, batch)
            self._count_open(connection, tx)
            # All of these are sent before the first result is awaited.
            tx.read_owner()
            tasks = connection.cursor(binary=True)
            if self._tasks:
                tasks.execute(SQL["find_tasks_of"], {"tasks": text_array(self._tasks)})
            found = self._lock_streams(connection, tx)
            if self._tasks:
                tx.prefetched(tasks.fetchall())
            tx.begin_optimistic(found)
            for waiting in batch.waiting:
                waiting.finish(None)
                waiting.run(tx)
            for write in batch.deferred:
                write.write(tx)
            self._announce(connection, tx)
            tx.settle(found)
            self._end(connection, tx)

    def _commit_singly(self, batch: Batch) -> None:
        connection = self._connected()
        tx = self._begin(connection, batch)
        for waiting in batch.waiting:
            waiting.finish(self._in_savepoint(connection, tx, waiting.run))
        for write in batch.deferred:
            self._in_savepoint(connection, tx, write.write)
        self._announce(connection, tx)
        self._end(connection, tx)

    def _in_savepoint(
        self, connection: Connection, tx: PostgresTransaction, write: Callable[[Transaction], None]
    ) -> Exception | None:
        """Return the failure of this write. A lost connection ends the whole transaction; other errors undo only this write."""
        connection.execute("SAVEPOINT one")
        head = tx.audit_head
        try:
            write(tx)
        except (psycopg.OperationalError, *_UNUSABLE):
            raise
        except Exception as error:  # the failure of one write, raised to its caller
            connection.execute("ROLLBACK TO one")
            tx.reset_audit_head(head)
            return unavailable(reason(error)) if isinstance(error, _REFUSED) else error
        connection.execute("RELEASE one")
        return None

    def _begin(self, connection: Connection, batch: Batch) -> PostgresTransaction:
        self._is_committed = False
        connection.execute("BEGIN")
        self._number += 1
        mark = {"owner": self._presence.ownership.owner, "number": self._number}
        begun = connection.execute(SQL["begin_write"], mark)
        self._lock(connection, [waiting.locks for waiting in batch.waiting] + [write.locks for write in batch.deferred])
        row = begun.fetchone()
        assert row is not None
        (database_ms,) = row
        now_ms = self._clock() if self._clock is not None else self._presence.observed(database_ms)
        dead_ms = now_ms - LEASE_MS if self._presence.may_declare_dead else -1
        tx = PostgresTransaction(
            connection, now_ms, self._presence.ownership, self._state, dead_ms=dead_ms, sealing=self._sealing
        )
        tx.reset_audit_head(self.audit_head)
        return tx

    def _lock(self, connection: Connection, needed: list[Locks]) -> None:
        """Lock everything that the batch declared, in one order, so that gateways cannot deadlock."""
        tasks = {name for locks in needed for name in locks.tasks}
        approvals = {name for locks in needed for name in locks.approvals}
        self._tasks = sorted({name for locks in needed for name in locks.reads})
        self._callers = {name for locks in needed for name in locks.callers}
        self._counted = {name for locks in needed for name in locks.limits}
        names = {f"limit {name}" for name in self._counted}
        names |= {f"name {name}" for locks in needed for name in locks.names}
        if tasks or approvals:
            values = {"tasks": text_array(list(tasks)), "approvals": text_array(list(approvals))}
            for guarded, caller in connection.execute(SQL["resolve_locks"], values).fetchall():
                tasks.add(guarded)
                if caller:
                    self._callers.add(caller)
        names |= {f"caller {name}" for name in self._callers}
        numbers = sorted(set(map(lock_number, names | {f"task {name}" for name in tasks | approvals})))
        if numbers:
            connection.execute(SQL["take_locks"], {"numbers": bigint_array(numbers)})

    def _count_open(self, connection: Connection, tx: PostgresTransaction) -> None:
        """Count the open tasks of all callers to whom the batch may add some, with one statement."""
        if self._counted:
            counted = connection.execute(SQL["count_open_of_callers"], {"callers": text_array(sorted(self._counted))})
            found: dict[str, int] = dict(counted.fetchall())
            tx.open_counts.update({name: found.get(name, 0) for name in self._counted})

    def _lock_streams(self, connection: Connection, tx: PostgresTransaction) -> dict[str, int]:
        """Lock the event streams that the batch may append to; return their last numbers."""
        if not self._callers:
            return {}
        values = {"callers": text_array(sorted(self._callers)), "now_ms": tx.now_ms}
        return dict(connection.execute(SQL["hold_streams"], values).fetchall())

    def _announce(self, connection: Connection, tx: PostgresTransaction) -> None:
        if changed := sorted(CACHED & tx.announced.keys()):
            connection.execute(SQL["bump_revisions"], {"topics": changed})
        for topic, names in tx.announced.items():
            for part in _parts(sorted(names)):
                for payload in _payloads(self._presence.ownership.owner, topic, part):
                    connection.execute(_NOTIFY, [CHANNEL, payload])

    def _end(self, connection: Connection, tx: PostgresTransaction) -> None:
        self._audit_head_if_committed = tx.audit_head
        try:
            ended = waited(connection.execute("COMMIT"))
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise CommitLost(self._number, "the connection to the database was lost") from error
            raise
        if ended.statusmessage != "COMMIT":
            raise psycopg.OperationalError("the database did not commit")
        self._is_committed = True
        self.audit_head = tx.audit_head


def lock_number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _payloads(owner: str, topic: str, names: list[str]) -> list[str]:
    """Return the announcement of these names. If a name is too long for one, others are told to read everything: the writes of the
    batch must not fail because of it."""
    payload = json.dumps([owner, topic, names], separators=(",", ":"))
    if len(payload) <= _MOST_PAYLOAD:
        return [payload]
    return [json.dumps([owner, everything, []], separators=(",", ":")) for everything in ("", MISSED)]


def _parts(names: Iterable[str]) -> Iterable[list[str]]:
    """Split names into lists short enough for one notification."""
    part: list[str] = []
    size = 0
    for name in names:
        length = len(json.dumps(name)) + 1
        if size + length > _MAX_PAYLOAD and part:
            yield part
            part, size = [], 0
        part.append(name)
        size += length
    if part:
        yield part
