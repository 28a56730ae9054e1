"""A write transaction on PostgreSQL, inside a pipeline.

Statements are sent without waiting for their results; reading a result waits for everything sent so far. The committer creates one
transaction per group commit. Rows that several operations write are queued and sent as one statement per kind, because most of the
cost of a statement does not depend on its number of rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from taskgate.ports.store_answers import Ownership
from taskgate.store.postgres.arrays import ENCODERS, bigint_array, text_array
from taskgate.store.postgres.connection import Connection
from taskgate.store.postgres.statements import PREPARED, SQL
from taskgate.store.sealing import Sealing
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

_TOGETHER: Final = {
    "insert_task": "insert_tasks",
    "insert_call": "insert_calls",
    "update_task": "update_tasks",
    "put_attempt": "put_attempts",
    "insert_outcome": "insert_outcomes",
    "insert_audit": "insert_audit_rows",
    "insert_event": "insert_events",
    "insert_history": "insert_history_rows",
    "insert_sums": "insert_sums_rows",
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


class RowCountMismatch(Exception):
    """A statement that was assumed to change one row did not. The batch is repeated, one operation at a time, reading every
    result."""


class PendingRows:
    """The result of a statement, awaited when it is read."""

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
    """Wait for a statement that returns no rows."""
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
        "_last_numbers",
        "_owner_row",
        "_prefetched",
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
        state: StoreState,
        *,
        dead_ms: int,
        sealing: Sealing,
    ) -> None:
        """`dead_ms`: a gateway whose lease was last renewed before this time is dead."""
        super().__init__(now_ms, ownership, state, sealing)
        self._connection, self.dead_ms = connection, dead_ms
        self.announced: dict[str, set[str]] = {}
        self._last_numbers: dict[str, int] = {}
        self._to_check: list[tuple[psycopg.Cursor[tuple[Any, ...]], int]] | None = None
        """In optimistic mode: statements, and how many rows each must have changed."""
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """Rows that are sent together before the next statement, by the name of the statement that writes one."""
        self._changed: set[tuple[str, str]] = set()
        """Statement and task of each queued change of a row."""
        self._owner_row: PendingRows | None = None
        self._after_rows: list[tuple[str, dict[str, Any]]] = []
        """Other statements that were queued; they are sent after the rows."""
        self._prefetched: dict[str, Any] = {}
        """Tasks that were read for the whole batch, as this transaction leaves them."""

    @property
    def chain(self) -> str:
        """The name of this gateway's audit chain; every start of a gateway has its own."""
        return self.ownership.owner

    def run(self, name: str, /, **values: Any) -> PendingRows:
        if (self._rows or self._after_rows) and name not in _READS_NO_QUEUED_ROWS:
            self._send_rows()
        if self._prefetched and name in _CHANGES_TASKS:
            self._drop_prefetched(name, values)
        return self._execute(name, values)

    def _execute(self, name: str, values: dict[str, Any]) -> PendingRows:
        values["chain"] = self.chain
        values["dead_ms"] = self.dead_ms
        return PendingRows(self._connection.cursor(binary=True).execute(SQL[name], values, prepare=PREPARED.get(name)))

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
        read = self._prefetched.get(task_id) if name == "update_task" else None
        if read is not None:
            self._prefetched[task_id] = (values["doc"], values["owner"], values["fence"], *read[3:])

    def _send_rows(self) -> None:
        """Send the queued rows, one statement for each kind."""
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

    def prefetched(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Set the rows of all tasks that the batch reads, fetched with one statement."""
        self._prefetched = {row[0]: row[1:] for row in rows}

    def task_row(self, task_id: str) -> Any:
        row = self._prefetched.get(task_id)
        return row if row is not None else super().task_row(task_id)

    def _drop_prefetched(self, name: str, values: Mapping[str, Any]) -> None:
        changed = values.get(_CHANGES_TASKS[name]) if _CHANGES_TASKS[name] else None
        if changed is None:
            self._prefetched.clear()
            return
        for task_id in [changed] if isinstance(changed, str) else changed:
            self._prefetched.pop(task_id, None)

    def read_owner(self) -> None:
        """Send the statement that `is_stale` needs; its answer is awaited there."""
        self._owner_row = self.run("find_owner", owner=self.ownership.owner)

    def _find_owner(self) -> Any:
        return super()._find_owner() if self._owner_row is None else self._owner_row.fetchone()

    def begin_optimistic(self, last_numbers: dict[str, int]) -> None:
        """Continue without waiting for results that are nearly always the same; `settle` checks all of them at the end.

        `last_numbers`: the last event numbers of the callers whose rows this transaction has locked.
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
        """Write the event numbers that were assigned; raises RowCountMismatch if an assumption did not hold."""
        self._send_rows()
        given = {caller: last for caller, last in self._last_numbers.items() if last != found.get(caller)}
        if given:
            callers, numbers = text_array(list(given)), bigint_array(list(given.values()))
            values = {"callers": callers, "numbers": numbers, "now_ms": self.now_ms}
            self._connection.execute(SQL["numbers_given"], values)
        for cursor, rows in self._to_check or ():
            if waited(cursor).rowcount != rows:
                raise RowCountMismatch

    def announce(self, topic: str, name: str) -> None:
        self.announced.setdefault(topic, set()).add(name)


def _encoded(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {column: encode([row[column] for row in rows]) for column, encode in _COLUMNS[name]}
