"""Carries out one batch as one transaction: locks, operations, announcements, commit. Used by the writer's thread only."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from taskgate.ports.replicas import CACHED
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import Batch, KeptEvents, Locks, Transaction
from taskgate.store.postgres.arrays import ENCODERS, bigint_array, text_array
from taskgate.store.postgres.connection import NOT_SURE, SQL, Connection, connect
from taskgate.store.postgres.presence import CHANNEL, LEASE_MS, Presence
from taskgate.store.sealing import Sealing

# A transaction on the writing connection, inside a pipeline: statements are sent without waiting for their answers, and
# whoever looks at an answer waits for everything sent so far. Made by the writer, one per group commit.

_TOGETHER: Final = {
    "insert_task": "insert_tasks",
    "insert_call": "insert_calls",
    "update_task": "update_tasks",
    "put_attempt": "put_attempts",
    "insert_outcome": "insert_outcomes",
    "insert_audit": "insert_audit_rows",
    "insert_event": "insert_events",
}
"""Statements that write one row, with the statement that writes many. They are sent in this order: a task is inserted before it is
updated."""
_CHANGES_ONCE: Final = {"update_task": "id", "put_attempt": "task_id"}
"""Of these, one statement can change each row only once; the parameter names the task."""
_READS_NO_QUEUED_ROWS: Final = frozenset({"live_grants", "find_owner", "revisions"})
"""Statements that can run while rows are queued."""
_CHANGES_TASKS: Final = {
    "update_task": "id",
    "update_tasks": "id",
    "own_task": "id",
    "claim_tasks": "",
    "expire_tasks": "",
    "forget_tasks": "",
}
"""Statements that change tasks, and the parameter that names them; empty where any task may be changed."""


def _columns(statement: str) -> tuple[tuple[str, Callable[[Sequence[Any]], bytes]], ...]:
    """The array parameters of a statement that writes many rows, each with the function that encodes its column."""
    found = re.findall(r"%\((\w+)\)b::(\w+)\[\]", SQL[statement].decode())
    return tuple((name, ENCODERS[element]) for name, element in found)


_COLUMNS: Final = {name: _columns(many) for name, many in _TOGETHER.items()}


class Mistaken(Exception):
    """Something that was trusted to change one row did not: the batch is done again, each by itself and waiting for answers."""


class PendingRows:
    """The rows of one statement, waited for when somebody looks at them."""

    __slots__ = ("cursor",)

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self.cursor = cursor

    @property
    def rowcount(self) -> int:
        return waited(self.cursor).rowcount

    def fetchone(self) -> Any:
        return self.cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self.cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.cursor.fetchall())


def waited(cursor: psycopg.Cursor[tuple[Any, ...]]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Wait for the answer to a statement that gives no rows."""
    if cursor.pgresult is None:
        try:
            cursor.fetchone()
        except psycopg.ProgrammingError:
            if cursor.pgresult is None:
                raise
    return cursor


class PostgresTransaction(Transaction):
    __slots__ = (
        "_after_rows",
        "_changed",
        "_connection",
        "_found",
        "_last_numbers",
        "_owner_row",
        "_rows",
        "_to_check",
        "announced",
        "dead_ms",
    )
    is_shared = True

    def __init__(
        self,
        connection: Connection,
        now_ms: int,
        ownership: Ownership,
        kept_events: KeptEvents,
        *,
        dead_ms: int,
        sealing: Sealing,
    ) -> None:
        """`dead_ms`: whose lease was last renewed before this time is dead."""
        super().__init__(now_ms, ownership, kept_events, sealing)
        self._connection, self.dead_ms = connection, dead_ms
        self.announced: dict[str, set[str]] = {}
        self._last_numbers: dict[str, int] = {}
        self._to_check: list[tuple[psycopg.Cursor[tuple[Any, ...]], int]] | None = None
        """While answers are trusted: statements, and how many rows each must have changed."""
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """Rows that are sent together before the next statement, by the name of the statement that writes one."""
        self._changed: set[tuple[str, str]] = set()
        """Statement and task of each queued change of a row."""
        self._owner_row: PendingRows | None = None
        self._after_rows: list[tuple[str, dict[str, Any]]] = []
        """Other statements that were queued; they are sent after the rows."""
        self._found: dict[str, Any] = {}
        """Tasks that were read for the whole batch, as this transaction leaves them."""

    @property
    def chain(self) -> str:
        """The audit chain of this gateway and start, which has a name of its own at every start."""
        return self.ownership.owner

    def run(self, name: str, /, **values: Any) -> PendingRows:
        if (self._rows or self._after_rows) and name not in _READS_NO_QUEUED_ROWS:
            self._send_rows()
        if self._found and name in _CHANGES_TASKS:
            self._forget_found(name, values)
        return self._execute(name, values)

    def _execute(self, name: str, values: dict[str, Any]) -> PendingRows:
        values["chain"] = self.chain
        values["dead_ms"] = self.dead_ms
        return PendingRows(self._connection.cursor(binary=True).execute(SQL[name], values))

    def put(self, name: str, /, **values: Any) -> None:
        if self._to_check is None:
            self.run(name, **values)
            return
        if name in _CHANGES_ONCE:
            self._queue_change(name, values)
        self._rows.setdefault(name, []).append(values)

    def queue(self, name: str, /, **values: Any) -> None:
        if name in _TOGETHER or self._to_check is None:
            self.put(name, **values)
        else:
            self._after_rows.append((name, values))

    def _queue_change(self, name: str, values: Mapping[str, Any]) -> None:
        """Send what is queued if it changes the same row, and keep what the next operation of this batch would read."""
        task_id = values[_CHANGES_ONCE[name]]
        if (name, task_id) in self._changed:
            self._send_rows()
        self._changed.add((name, task_id))
        read = self._found.get(task_id) if name == "update_task" else None
        if read is not None:
            self._found[task_id] = (values["doc"], values["owner"], values["fence"], *read[3:])

    def _send_rows(self) -> None:
        """One statement for all rows of a kind: most of what a statement costs is not its rows."""
        kinds, self._rows = self._rows, {}
        self._changed.clear()
        for name, many in _TOGETHER.items():
            if not (rows := kinds.get(name)):
                continue
            answer = self._execute(many, _encoded(name, rows))
            if self._to_check is not None:
                self._to_check.append((answer.cursor, len(rows)))
        after, self._after_rows = self._after_rows, []
        for name, values in after:
            self._execute(name, values)

    def found(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """These are the tasks that the operations of this batch are about: one question instead of one for each."""
        self._found = {row[0]: row[1:] for row in rows}

    def task_row(self, task_id: str) -> Any:
        row = self._found.get(task_id)
        return row if row is not None else super().task_row(task_id)

    def _forget_found(self, name: str, values: Mapping[str, Any]) -> None:
        changed = values.get(_CHANGES_TASKS[name]) if _CHANGES_TASKS[name] else None
        if changed is None:
            self._found.clear()
            return
        for task_id in [changed] if isinstance(changed, str) else changed:
            self._found.pop(task_id, None)

    def read_owner(self) -> None:
        """Send the statement that `is_stale` needs; its answer is awaited there."""
        self._owner_row = self.run("find_owner", owner=self.ownership.owner)

    def _find_owner(self) -> Any:
        return super()._find_owner() if self._owner_row is None else self._owner_row.fetchone()

    def trust(self, last_numbers: dict[str, int]) -> None:
        """Go on without waiting for answers that are nearly always the same: `settle` looks at all of them at the end.

        `last_numbers`: the last event numbers of the callers whose rows this transaction holds.
        """
        self._last_numbers = dict(last_numbers)
        self._to_check = []

    def changes_one(self, name: str, /, **values: Any) -> bool:
        if self._to_check is None:
            return self.run(name, **values).rowcount == 1
        if name in _TOGETHER:
            self.put(name, **values)
        else:
            self._to_check.append((self.run(name, **values).cursor, 1))
        return True

    def change_each(self, name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
        if self._to_check is not None or name != "update_task" or not rows:
            return super().change_each(name, rows)
        return self.run(_TOGETHER[name], **_encoded(name, rows)).rowcount == len(rows)

    def next_event_number(self, caller: str) -> int:
        last = self._last_numbers.get(caller)
        if last is None:
            return super().next_event_number(caller)
        self._last_numbers[caller] = last + 1
        return last + 1

    def settle(self, found: dict[str, int]) -> None:
        """Write the numbers that were given out; raises Mistaken if what was trusted was not so."""
        self._send_rows()
        given = {caller: last for caller, last in self._last_numbers.items() if last != found.get(caller)}
        if given:
            callers, numbers = text_array(list(given)), bigint_array(list(given.values()))
            values = {"callers": callers, "numbers": numbers, "now_ms": self.now_ms}
            self._connection.execute(SQL["numbers_given"], values)
        for cursor, rows in self._to_check or ():
            if waited(cursor).rowcount != rows:
                raise Mistaken

    def announce(self, topic: str, name: str) -> None:
        self.announced.setdefault(topic, set()).add(name)


def _encoded(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {column: encode([row[column] for row in rows]) for column, encode in _COLUMNS[name]}


MAX_REPEATS: Final = 5
_TELL: Final = b"SELECT pg_notify(%s, %s)"
_MAX_PAYLOAD: Final = 7_000
_UNUSABLE: Final = (
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
)
"""The database has become one that cannot be written to: no fault of any operation, so it is not looked for among them."""
_CLASHES: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class Lost(Exception):
    """The connection went while the answer to a COMMIT was awaited."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


class Committer:
    """Owns the writing connection, and opens a new one when it is gone."""

    def __init__(
        self,
        url: str,
        kept_events: KeptEvents,
        presence: Presence,
        clock: Callable[[], int] | None,
        sealing: Sealing,
        *,
        audit_head: tuple[int, str] | None,
    ) -> None:
        """`clock` takes the place of the database's, for tests."""
        self._url, self._sealing = url, sealing
        self._kept_events, self._presence = kept_events, presence
        self._clock = clock
        self._connection: Connection | None = None
        self._is_committed = False
        """Whether the server has said that the present batch is durable."""
        self._number = secrets.randbits(61)
        """Of the present transaction, among those of this gateway. It begins anywhere: nobody's before us had the same."""
        self._tasks: list[str] = []
        self._callers: set[str] = set()
        self._counted: set[str] = set()
        self.audit_head = audit_head
        """The end of our own chain: nobody else appends to it, so it is known without asking."""
        self._audit_head_if_committed: tuple[int, str] | None = None

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = connect(self._url, "taskgate writer")
            found = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
            if found is not None and found[0] in NOT_SURE:
                # After a fail-over this may be another server than the one that was looked at when the store was opened.
                connection.close()
                raise psycopg.OperationalError(f"synchronous_commit is {found[0]!r}, so a crash could take back work")
            self._connection = connection
        return self._connection

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    close = hang_up

    def was_committed(self, number: int) -> bool:
        """Asked on a new connection. Raises as long as the server cannot tell."""
        row = self._connected().execute(SQL["last_write"], {"owner": self._presence.ownership.owner}).fetchone()
        is_there = row is not None and bool(row[0] == number)
        if is_there:
            # Its rows of the audit chain are there too: whoever went on from the old end would never write again.
            self.audit_head = self._audit_head_if_committed
        return is_there

    def commit(self, batch: Batch) -> None:
        """Raises Lost, `psycopg.Error`; a failure of one operation is kept with it."""
        for _ in range(MAX_REPEATS):
            try:
                self._quickly(batch)
                return
            except (Lost, *_UNUSABLE):
                raise
            except psycopg.OperationalError as error:
                if not isinstance(error, _CLASHES):
                    raise
                self._roll_back()
            except Exception:  # one of them failed, and the whole transaction with it: find out which
                self._roll_back()
                self._one_by_one(batch)
                return
        raise psycopg.OperationalError("other gateways are in the way again and again")

    def _roll_back(self) -> None:
        connection = self._connected()
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("ROLLBACK")

    def _quickly(self, batch: Batch) -> None:
        connection = self._connected()
        try:
            self._in_pipeline(connection, batch)
        except psycopg.Error:
            if not self._is_committed:
                raise
            # The answer to COMMIT came before the connection went: only the end of the pipeline is lost with it.
            self.hang_up()

    def _in_pipeline(self, connection: Connection, batch: Batch) -> None:
        with connection.pipeline():
            tx = self._begin(connection, batch)
            self._count_open(connection, tx)
            # All of these are sent before the first answer is awaited.
            tx.read_owner()
            tasks = connection.cursor(binary=True)
            if self._tasks:
                tasks.execute(SQL["find_tasks_of"], {"tasks": text_array(self._tasks)})
            found = self._streams(connection, tx)
            if self._tasks:
                tx.found(tasks.fetchall())
            tx.trust(found)
            for waiting in batch.waiting:
                waiting.ended(None)
                waiting.run(tx)
            for write in batch.deferred:
                write.write(tx)
            self._announce(connection, tx)
            tx.settle(found)
            self._end(connection, tx)

    def _one_by_one(self, batch: Batch) -> None:
        connection = self._connected()
        tx = self._begin(connection, batch)
        for waiting in batch.waiting:
            waiting.ended(self._in_savepoint(connection, tx, waiting.run))
        for write in batch.deferred:
            self._in_savepoint(connection, tx, write.write)
        self._announce(connection, tx)
        self._end(connection, tx)

    def _in_savepoint(
        self, connection: Connection, tx: PostgresTransaction, write: Callable[[Transaction], None]
    ) -> Exception | None:
        """A lost database ends the whole transaction; anything else takes back only this one write."""
        connection.execute("SAVEPOINT one")
        head = tx.audit_head
        try:
            write(tx)
        except (psycopg.OperationalError, *_UNUSABLE):
            raise
        except Exception as error:  # the failure of one write, answered to whoever waits for it
            connection.execute("ROLLBACK TO one")
            tx.audit_head = head
            return error
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
        dead_ms = now_ms - LEASE_MS if self._presence.may_judge else -1
        tx = PostgresTransaction(
            connection, now_ms, self._presence.ownership, self._kept_events, dead_ms=dead_ms, sealing=self._sealing
        )
        tx.audit_head = self.audit_head
        return tx

    def _lock(self, connection: Connection, wanted: list[Locks]) -> None:
        """Everything that the batch will touch, sorted, so that no two gateways wait for each other in a circle."""
        tasks = {name for locks in wanted for name in locks.tasks}
        approvals = {name for locks in wanted for name in locks.approvals}
        self._tasks = sorted({name for locks in wanted for name in locks.reads})
        self._callers = {name for locks in wanted for name in locks.callers}
        self._counted = {name for locks in wanted for name in locks.limits}
        names = {f"limit {name}" for name in self._counted}
        names |= {f"name {name}" for locks in wanted for name in locks.names}
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
        """The open tasks of everybody to whom this batch may add some, instead of one question for each."""
        if self._counted:
            counted = connection.execute(SQL["count_open_of_callers"], {"callers": text_array(sorted(self._counted))})
            found: dict[str, int] = dict(counted.fetchall())
            tx.most_open = {name: found.get(name, 0) for name in self._counted}

    def _streams(self, connection: Connection, tx: PostgresTransaction) -> dict[str, int]:
        """The last event numbers of everybody whom this batch may tell something."""
        if not self._callers:
            return {}
        values = {"callers": text_array(sorted(self._callers)), "now_ms": tx.now_ms}
        return dict(connection.execute(SQL["hold_streams"], values).fetchall())

    def _announce(self, connection: Connection, tx: PostgresTransaction) -> None:
        if changed := sorted(CACHED & tx.announced.keys()):
            connection.execute(SQL["bump_revisions"], {"topics": changed})
        for topic, names in tx.announced.items():
            for part in _parts(sorted(names)):
                payload = json.dumps([self._presence.ownership.owner, topic, part], separators=(",", ":"))
                connection.execute(_TELL, [CHANNEL, payload])

    def _end(self, connection: Connection, tx: PostgresTransaction) -> None:
        self._audit_head_if_committed = tx.audit_head
        try:
            ended = waited(connection.execute("COMMIT"))
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise Lost(self._number, "the connection to the database was lost") from error
            raise
        if ended.statusmessage != "COMMIT":
            raise psycopg.OperationalError("the database did not commit")
        self._is_committed = True
        self.audit_head = tx.audit_head


def lock_number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _parts(names: Iterable[str]) -> Iterable[list[str]]:
    """Lists short enough for one notification."""
    part: list[str] = []
    size = 0
    for name in names:
        if size + len(name) + 3 > _MAX_PAYLOAD and part:
            yield part
            part, size = [], 0
        part.append(name)
        size += len(name.encode()) + 3
    if part:
        yield part
