"""A write transaction on SQLite.

Rows that operations insert without reading them back are gathered and written with few statements by the thread that commits, so
that the event loop does not spend time on them. A new task is a row in each of four tables; these are inserted together, through
a temporary view whose trigger distributes them, because each statement acquires the interpreter lock several times.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from taskgate.ports.store_answers import Ownership
from taskgate.store.history_state import Loss
from taskgate.store.sealing import Sealing
from taskgate.store.sqlite.statements import PARAMETER, SQL, STATEMENTS
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

_GATHERED: Final = ("insert_task", "insert_call", "insert_audit", "insert_event")
_TOGETHER: Final = "INSERT INTO gathered_rows"
_MAX_ROWS: Final = 16
_MAX_BYTES: Final = 256 * 1024
"""SQLite copies all rows of a statement in memory unless there is only one."""
_OF_OTHER_TABLES: Final = frozenset(
    {
        "find_owner",
        "touch_owner",
        "next_event_number",
        "move_cursor",
        "find_key",
        "put_key",
        "put_attempt",
        "insert_outcome",
        "withdraw_questions",
        "find_approval",
        "put_first_pin",
        "find_pin",
        "first_asked",
        "record_call",
    }
)
"""Statements that do not depend on gathered rows."""
_DISK_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
    }
)
"""Errors that concern the whole file and not one row."""
_OF_ONE: Final = {
    "find_task": "id",
    "update_task": "id",
    "count_open_of_caller": "limited_as",
    "count_open_of_conversation": "caller",
}
"""Statements that depend on gathered rows only if this parameter names a gathered task or its limit key."""


class HistoryNotWritten(Exception):
    """Rows of history could not be inserted. The batch is repeated without them."""


def create_gathering_view(connection: sqlite3.Connection) -> None:
    """Create the temporary view for gathered rows, which only this connection sees."""
    columns, inserts = list[str](), list[str]()
    for name in _GATHERED:
        # A duplicate row is an error here: the batch is then repeated with each write by itself.
        table, _, values = SQL[name].partition("ON CONFLICT")[0].partition("VALUES")
        named = [f"{name}_{value}" for value in PARAMETER.findall(values)]
        inserts.append(f"{table} VALUES ({', '.join(f'NEW.{column}' for column in named)});")
        columns += [f"NULL AS {column}" for column in named]
    connection.executescript(
        f"CREATE TEMP VIEW IF NOT EXISTS gathered_rows AS SELECT {', '.join(columns)};"
        f"CREATE TEMP TRIGGER IF NOT EXISTS gathered_row INSTEAD OF INSERT ON gathered_rows BEGIN {' '.join(inserts)} END;"
    )


@cache
def _insert_many(insert: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"{insert} VALUES {', '.join([row] * rows)}"


class SqliteTransaction(Transaction):
    __slots__ = ("_connection", "_gathered", "_gathers", "_named")
    is_shared = False

    def __init__(
        self,
        connection: sqlite3.Connection,
        now_ms: int,
        ownership: Ownership,
        state: StoreState,
        sealing: Sealing,
    ) -> None:
        super().__init__(now_ms, ownership, state, sealing)
        self._connection = connection
        self._gathers = False
        self._gathered: dict[str, list[tuple[Any, ...]]] = {}
        """Rows by the name of the statement that inserts one."""
        self._named: set[str] = set()
        """The gathered tasks, their callers and their limit keys."""

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        if self._gathered and self._needs_gathered(name, values):
            self.write_gathered()
        text, in_order = STATEMENTS[name]
        return self._connection.execute(text, in_order(values))

    def _needs_gathered(self, name: str, values: Mapping[str, Any]) -> bool:
        if name in _OF_OTHER_TABLES:
            return False
        if name == "last_audit":
            # If an audit row was gathered, its number is known.
            return self.audit_head is not None
        one = _OF_ONE.get(name)
        return one is None or values[one] in self._named

    def gather(self) -> None:
        """Gather rows from now on. `write_gathered` must run before the commit; it fails if a row cannot be written."""
        self._gathers = True

    def put(self, name: str, /, **values: Any) -> None:
        if not self._gathers:
            self.run(name, **values)
            return
        self._gathered.setdefault(name, []).append(STATEMENTS[name].in_order(values))

    def put_history(self, loss: Loss, **values: Any) -> None:
        """While rows are gathered, a failure repeats the batch (`write_gathered`), and the rows are left out of the repetition. An
        error such as a damaged index ends the whole transaction, so it could not continue without them.
        """
        history = self.state.history
        if history.is_failing:
            history.lose(loss)
            return
        try:
            self.put("insert_history", **values)
        except sqlite3.Error as error:
            self._history_failed(error)
            if not self._connection.in_transaction:
                raise HistoryNotWritten from error
            history.lose(loss)

    def _history_failed(self, error: sqlite3.Error) -> None:
        """Raise an error that concerns the whole file; after any other one, no more rows of history are tried."""
        if error.sqlite_errorcode & 0xFF in _DISK_ERRORS:
            raise error
        self.state.history.fail()

    def changes_one(self, name: str, /, **values: Any) -> bool:
        if not self._gathers or name != "insert_task":
            return self.run(name, **values).rowcount == 1
        self._gathered.setdefault(name, []).append(STATEMENTS[name].in_order(values))
        self._named.update((values["id"], values["limited_as"], values["caller"]))
        return True

    def write_gathered(self) -> None:
        """Write the gathered rows. Runs on the event loop only if a statement depends on them."""
        tables, self._gathered = self._gathered, {}
        self._named.clear()
        if tables.keys() >= set(_GATHERED):
            together = [sum(rows, ()) for rows in zip(*(tables[name] for name in _GATHERED), strict=False)]
            self._write_many(_TOGETHER, together)
            tables = {name: rows[len(together) :] if name in _GATHERED else rows for name, rows in tables.items()}
        history = tables.pop("insert_history", [])
        for name, rows in tables.items():
            self._write_many(SQL[name].partition("VALUES")[0], rows)
        try:
            self._write_many(SQL["insert_history"].partition("VALUES")[0], history)
        except sqlite3.Error as error:
            self._history_failed(error)
            raise HistoryNotWritten from error

    def _write_many(self, insert: str, rows: list[tuple[Any, ...]]) -> None:
        """Use few different numbers of rows, so that the statements stay prepared."""
        while rows:
            count = min(1 << (len(rows).bit_length() - 1), _MAX_ROWS)
            if (
                count > 1
                and sum(len(value) for row in rows[:count] for value in row if type(value) is bytes) > _MAX_BYTES
            ):
                count = 1
            part, rows = rows[:count], rows[count:]
            self._connection.execute(_insert_many(insert, len(part[0]), count), sum(part, ()))

    def announce(self, topic: str, name: str) -> None:
        """No other gateway has this store open."""
