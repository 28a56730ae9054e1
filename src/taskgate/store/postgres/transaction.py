"""A transaction on the writing connection, inside a pipeline: statements are sent without waiting for their answers, and whoever
looks at an answer waits for everything sent so far. Made by the writer, one per group commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from taskgate.ports.store_answers import Ownership
from taskgate.store.operations.transaction import KeptEvents, Transaction
from taskgate.store.postgres.connection import Connection
from taskgate.store.postgres.statements import SQL
from taskgate.store.sealing import Sealing

_TOGETHER: Final = {
    "insert_task": "insert_tasks",
    "insert_call": "insert_calls",
    "insert_audit": "insert_audit_rows",
    "insert_event": "insert_events",
}
"""What inserts one row, and what inserts many."""


class Mistaken(Exception):
    """Something that was trusted to change one row did not: the batch is done again, each by itself and waiting for answers."""


class Answer:
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
    __slots__ = ("_connection", "_last_numbers", "_rows", "_to_check", "announced", "dead_ms")
    is_shared = True

    def __init__(
        self,
        connection: Connection,
        now_ms: int,
        ownership: Ownership,
        kept_events: KeptEvents,
        dead_ms: int,
        sealing: Sealing,
    ) -> None:
        """`dead_ms`: whose lease was last renewed before this time is dead."""
        super().__init__(now_ms, ownership, kept_events, sealing)
        self._connection = connection
        self.dead_ms = dead_ms
        self.announced: dict[str, set[str]] = {}
        self._last_numbers: dict[str, int] = {}
        self._to_check: list[tuple[psycopg.Cursor[tuple[Any, ...]], int]] | None = None
        """While answers are trusted: statements, and how many rows each must have changed."""
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """Rows that go out together before the next statement, by the name of what inserts one."""

    @property
    def chain(self) -> str:
        """The audit chain of this gateway and start, which has a name of its own at every start."""
        return self.ownership.owner

    def run(self, name: str, /, **values: Any) -> Answer:
        if self._rows:
            self._send_rows()
        values["chain"] = self.chain
        values["dead_ms"] = self.dead_ms
        return Answer(self._connection.cursor(binary=True).execute(SQL[name], values))

    def put(self, name: str, /, **values: Any) -> None:
        if self._to_check is None:
            self.run(name, **values)
        else:
            self._rows.setdefault(name, []).append(values)

    def _send_rows(self) -> None:
        """One statement for all rows of a kind: most of what a statement costs is not its rows."""
        kinds, self._rows = self._rows, {}
        for name, rows in kinds.items():
            columns: dict[str, Any] = {column: [row[column] for row in rows] for column in rows[0]}
            answer = self.run(_TOGETHER[name], **columns)
            if self._to_check is not None:
                self._to_check.append((answer.cursor, len(rows)))

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

    def next_event_number(self, caller: str) -> int:
        last = self._last_numbers.get(caller)
        if last is None:
            return super().next_event_number(caller)
        self._last_numbers[caller] = last + 1
        return last + 1

    def settle(self, found: dict[str, int]) -> None:
        """Write the numbers that were given out; raises Mistaken if what was trusted was not so."""
        if self._rows:
            self._send_rows()
        given = {caller: last for caller, last in self._last_numbers.items() if last != found.get(caller)}
        if given:
            values = {"callers": list(given), "numbers": list(given.values()), "now_ms": self.now_ms}
            self._connection.execute(SQL["numbers_given"], values)
        for cursor, rows in self._to_check or ():
            if waited(cursor).rowcount != rows:
                raise Mistaken

    def announce(self, topic: str, name: str) -> None:
        self.announced.setdefault(topic, set()).add(name)
