"""A transaction on the writing connection, inside a pipeline: statements are sent without waiting for their answers, and whoever
looks at an answer waits for everything sent so far. Made by the writer, one per group commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from taskgate.ports.store_answers import Ownership
from taskgate.store.operations.kept_events import KeptEvents
from taskgate.store.operations.transaction import Transaction
from taskgate.store.postgres.connection import Connection
from taskgate.store.postgres.statements import SQL


class Answer:
    """The rows of one statement, waited for when somebody looks at them."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return waited(self._cursor).rowcount

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor.fetchall())


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
    __slots__ = ("_connection", "announced", "dead_ms")
    is_shared = True

    def __init__(
        self,
        connection: Connection,
        now_ms: int,
        ownership: Ownership,
        kept_events: KeptEvents,
        dead_ms: int,
    ) -> None:
        """`dead_ms`: whose lease was last renewed before this time is dead."""
        super().__init__(now_ms, ownership, kept_events)
        self._connection = connection
        self.dead_ms = dead_ms
        self.announced: dict[str, set[str]] = {}

    @property
    def chain(self) -> str:
        """The audit chain of this gateway and start, which has a name of its own at every start."""
        return self.ownership.owner

    def run(self, name: str, /, **values: Any) -> Answer:
        values["chain"] = self.chain
        values["dead_ms"] = self.dead_ms
        return Answer(self._connection.cursor(binary=True).execute(SQL[name], values))

    def announce(self, topic: str, name: str) -> None:
        self.announced.setdefault(topic, set()).add(name)
