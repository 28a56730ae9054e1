"""The database file: opens connections to it, brings its schema up to date, and runs the adapter's SQL in a transaction.

Write-ahead log with `synchronous=FULL`: a commit returns after the log has been synced. `NORMAL` would be faster and
would lose acknowledged work in a power cut.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from taskgate.core.errors import GatewayFault
from taskgate.ports.store_answers import Ownership
from taskgate.store.batch import KeptEvents, Transaction, read_migrations, read_queries
from taskgate.store.sealing import KEEPSAKE, Sealing, key_needed, within_json

SQL: Final = read_queries(__package__)

_VALUE: Final = re.compile(r"'[^']*'|--[^\n]*|:(\w+)")


class PositionalStatement(NamedTuple):
    """A statement that takes its values by position: by name, the driver gives the interpreter's lock away for each of them."""

    text: str
    in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Picks them out of the values by name."""


def _by_position(text: str) -> PositionalStatement:
    names: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found[1]
        return found[0] if name is None else f"?{names.setdefault(name, len(names) + 1)}"

    text = _VALUE.sub(numbered, text)
    match list(names):
        case []:
            return PositionalStatement(text, lambda _: ())
        case [only]:
            return PositionalStatement(text, lambda values: (values[only],))
        case _:
            return PositionalStatement(text, itemgetter(*names))


_STATEMENTS: Final = {name: _by_position(text) for name, text in SQL.items()}


def run_named(connection: sqlite3.Connection, name: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
    """Run one of the adapter's statements."""
    text, in_order = _STATEMENTS[name]
    return connection.execute(text, in_order(values))


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)


SYNCHRONOUS = "FULL"
LOG_BYTES = 16 << 20
"""The log is cut back to this when it starts over."""
_CACHE_KIB = 16_384
_OPENING_WAIT_MS = 10_000
_READER_WAIT_MS = 20
_LOG_TRIES = 100
_LOG_TRY_S = 0.05


def connect_writer(path: Path, *, synchronous: str = SYNCHRONOUS) -> sqlite3.Connection:
    """The one connection that writes. Waits for other processes until it is told not to."""
    connection = _connect(path, _OPENING_WAIT_MS)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    # The checkpointer does this in its own time.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    return connection


def never_wait(connection: sqlite3.Connection) -> None:
    """From now on another process's lock is an error at once: this connection is used on the event loop."""
    connection.execute("PRAGMA busy_timeout=0")


def start_log_over(connection: sqlite3.Connection) -> None:
    """Move all of the log into the database and cut it to nothing: what lives that ended hard have left behind."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        # A full disk or a stranger's lock: nothing is lost, and the checkpointer will come to it.
        return


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. It sees every commit at once and never waits for the writer."""
    connection = _connect(path, _READER_WAIT_MS)
    connection.execute("PRAGMA query_only=1")
    return connection


def _connect(path: Path, wait_ms: int) -> sqlite3.Connection:
    # The connection moves between threads, but only ever has one user at a time.
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=wait_ms / 1000
    )
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")
    return connection


def migrate(connection: sqlite3.Connection) -> int:
    """Apply what is missing, all of it or nothing, in one wait for the disk; gives the version reached."""
    known = migrations()
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(known):
        raise GatewayFault(
            "store_unavailable",
            f"The store was written by a newer Taskgate (schema {version}, this one knows {len(known)}). "
            "Start the newer version, or point `store.url` at another file.",
        )
    missing = "".join(f"{text};\n" for _, text in known[version:])
    if missing:
        connection.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version={len(known)}; COMMIT;")
    return len(known)


def rewrite_file(connection: sqlite3.Connection, pause: threading.Event) -> str | None:
    """Write the database anew and cut its log to nothing, so that no deleted row is left in either; the reason if that fails.

    Deleting leaves the bytes in free pages, in gaps of pages and in the log. The copy is made in a temporary file, not in memory.
    """
    try:
        connection.execute("PRAGMA temp_store=FILE")
        connection.execute("VACUUM")
        for _ in range(_LOG_TRIES):
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0:
                return None
            pause.wait(_LOG_TRY_S)
    except sqlite3.Error as error:
        return str(error)
    finally:
        connection.execute("PRAGMA temp_store=MEMORY")
        can_gather(connection)  # what is temporary in a connection goes with each change of where it is kept
    return "somebody else reads the file"


def check_keys(connection: sqlite3.Connection, sealing: Sealing, path: Path) -> None:
    """Raises GatewayFault if rows need a key that was not given. Changes nothing, also where the schema is an older one."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'keepsakes'").fetchone():
        return
    kept = connection.execute("SELECT name FROM keepsakes WHERE instr(name, ?) = 1", (KEEPSAKE,)).fetchall()
    for prefix in sealing.missing(name for (name,) in kept):
        asked = {"prefix": prefix, "length": len(prefix), "within": within_json(prefix)}
        if run_named(connection, "needs_key", asked).fetchone()[0]:
            raise key_needed(str(path))


# Rows that operations insert without looking back are gathered and written with few statements, by the thread that commits: the
# event loop does not spend its time on them. A new task is a row in each of four tables. These are written together, into a view of
# the connection's own whose trigger puts them where they belong: each statement takes the interpreter's lock several times.

_GATHERED: Final = ("insert_task", "insert_call", "insert_audit", "insert_event")
_TOGETHER: Final = "INSERT INTO gathered_rows"
_MOST_ROWS: Final = 16
_MOST_BYTES: Final = 256 * 1024
"""SQLite keeps a copy of all rows of one statement in memory, unless there is only one."""
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
    }
)
"""Statements to which it makes no difference whether gathered rows are written yet."""
_OF_ONE: Final = {
    "find_task": "id",
    "update_task": "id",
    "count_open_of_caller": "limited_as",
    "count_open_of_conversation": "caller",
}
"""To these it does if they are about a gathered task, or about whom it counts for."""


def can_gather(connection: sqlite3.Connection) -> None:
    """Make the view for gathered rows. Only this connection sees it."""
    columns, inserts = list[str](), list[str]()
    for name in _GATHERED:
        # A row that is there already is an error here: then everything is done again, each write by itself.
        table, _, values = SQL[name].partition("ON CONFLICT")[0].partition("VALUES")
        named = [f"{name}_{value}" for value in _VALUE.findall(values)]
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
        kept_events: KeptEvents,
        sealing: Sealing,
    ) -> None:
        super().__init__(now_ms, ownership, kept_events, sealing)
        self._connection = connection
        self._gathers = False
        self._gathered: dict[str, list[tuple[Any, ...]]] = {}
        """By the name of what inserts one of them."""
        self._named: set[str] = set()
        """The gathered tasks, their callers, and whom they count for."""

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        if self._gathered and self._needs_gathered(name, values):
            self.write_gathered()
        text, in_order = _STATEMENTS[name]
        return self._connection.execute(text, in_order(values))

    def _needs_gathered(self, name: str, values: Mapping[str, Any]) -> bool:
        if name in _OF_OTHER_TABLES:
            return False
        if name == "last_audit":
            # Whoever gathers an audit row knows its number.
            return self.audit_head is not None
        one = _OF_ONE.get(name)
        return one is None or values[one] in self._named

    def gather(self) -> None:
        """From now on rows are gathered; `write_gathered` comes before the commit, and fails if one of them cannot be written."""
        self._gathers = True

    def put(self, name: str, /, **values: Any) -> None:
        if not self._gathers:
            self.run(name, **values)
            return
        self._gathered.setdefault(name, []).append(_STATEMENTS[name].in_order(values))

    def changes_one(self, name: str, /, **values: Any) -> bool:
        if not self._gathers or name != "insert_task":
            return self.run(name, **values).rowcount == 1
        self._gathered.setdefault(name, []).append(_STATEMENTS[name].in_order(values))
        self._named.update((values["id"], values["limited_as"], values["caller"]))
        return True

    def write_gathered(self) -> None:
        """Write the gathered rows. On the event loop only where a statement must see them."""
        tables, self._gathered = self._gathered, {}
        self._named.clear()
        if tables.keys() >= set(_GATHERED):
            together = [sum(rows, ()) for rows in zip(*(tables[name] for name in _GATHERED), strict=False)]
            self._write_many(_TOGETHER, together)
            tables = {name: rows[len(together) :] if name in _GATHERED else rows for name, rows in tables.items()}
        for name, rows in tables.items():
            self._write_many(SQL[name].partition("VALUES")[0], rows)

    def _write_many(self, insert: str, rows: list[tuple[Any, ...]]) -> None:
        """In few lengths, so that the statements stay prepared."""
        while rows:
            count = min(1 << (len(rows).bit_length() - 1), _MOST_ROWS)
            if (
                count > 1
                and sum(len(value) for row in rows[:count] for value in row if type(value) is bytes) > _MOST_BYTES
            ):
                count = 1
            part, rows = rows[:count], rows[count:]
            self._connection.execute(_insert_many(insert, len(part[0]), count), sum(part, ()))

    def announce(self, topic: str, name: str) -> None:
        """Nobody else has this store open, and this process hears of its own changes by itself."""


class WaitForLock:
    """A job for the thread: begin a transaction as soon as another process lets go of the database."""


class Rewrite(NamedTuple):
    """A job for the thread: write the whole file anew, so that nothing that was deleted is left in it or in its log."""

    done: asyncio.Future[None]
