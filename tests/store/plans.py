"""What each statement of a store does on a filled one: which tables it reads whole, and how much it reads at all.

Plans alone are not enough: a statement may use an index and still read every row of it. So each statement is run too, in a
transaction that is rolled back, and the database counts what it touched: rows on PostgreSQL, steps of its virtual machine on
SQLite. Neither depends on how busy the machine is.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from psycopg import ClientCursor
from tests.store.filled_store import DAY_MS, DEAD, FENCE, NOW_MS, OURS, Names

from taskgate.core.history.row import numbered
from taskgate.core.identity.conversation import streams_between
from taskgate.store.postgres.statements import PLANNED_EACH_TIME
from taskgate.store.sqlite.statements import SQL as SQLITE
from taskgate.store.sqlite.statements import run_named

STEPS_AT_ONCE = 1_000


class Seen(NamedTuple):
    whole: tuple[str, ...]
    """Tables that are read from one end to the other."""
    read: int
    """Rows (PostgreSQL) or steps (SQLite)."""
    plan: str


class Plans(Protocol):
    """Of one database."""

    @property
    def statements(self) -> Mapping[str, str | bytes]: ...

    def rows_of(self, table: str) -> int: ...

    def seen(self, name: str) -> Seen: ...


def values_for(name: str, names: Names) -> dict[str, Any]:
    """The values that a statement is run with, by their names; `BY_STATEMENT` where one means something of its own."""
    streams = json.dumps([names.stream]) if name == "forget_streams" else [names.caller]
    return {**_common(names), "callers": streams, **BY_STATEMENT.get(name, {})}


def _common(names: Names) -> dict[str, Any]:
    first, beyond = streams_between(names.caller)
    ids = json.dumps([names.task, names.open_task])
    return {
        # Ids.
        "id": names.task,
        "ids": ids,
        "task_id": names.task,
        "script_id": names.task,
        "key": names.key,
        "kind": "session",
        "name": "name-000003",
        "number": 1,
        "place": "slack",
        "approval_id": names.approval,
        "after": "",
        # Principals.
        "caller": names.caller,
        "principal": names.caller,
        "limited_as": names.caller,
        "tenant": "acme",
        "first": first,
        "beyond": beyond,
        "owner": OURS,
        "owners": json.dumps([DEAD]),
        "home": OURS,
        "former": DEAD,
        "fence": FENCE,
        "chain": "gw_0003",
        "of": "gw_0003",
        "other": "gw_0004",
        # Times.
        "now_ms": NOW_MS,
        "dead_ms": NOW_MS - 1_500,
        "since_ms": NOW_MS - 3_600_000,
        "before_ms": NOW_MS - DAY_MS,
        "asked_ms": NOW_MS,
        "created_ms": NOW_MS,
        "listed_ms": NOW_MS,
        "at_ms": NOW_MS,
        "sent_at_ms": NOW_MS,
        "ended_ms": NOW_MS,
        "why": "",
        "started_ms": NOW_MS,
        "expires_ms": NOW_MS,
        "until_ms": NOW_MS,
        "forget_at_ms": NOW_MS,
        "finished_ms": NOW_MS,
        "keep_until_ms": NOW_MS,
        "decided_ms": NOW_MS,
        "due_ms": NOW_MS,
        "approval_due_ms": None,
        "execution_due_ms": None,
        # Limits.
        "limit": 51,
        "maximum": 100,
        "arguments_up_to": 1_000,
        "revision": 4,
        "step": 4,
        "line": 7,
        "needs_owner": 0,
        "revoked": 0,
        "calls": 1,
        "errors": 0,
        "seconds": 1.0,
        "bytes_in": 1,
        "bytes_out": 1,
        "cost": 0.0,
        # Filters that are not set.
        "server": "server-1",
        "states": None,
        "scope": None,
        "tool": "tool_1",
        **dict.fromkeys(("part_1", "part_2", "part_3", "part_4")),
        "before": "~",
        "include_expired": False,
        "finished_only": False,
        # What is written.
        "state": "open",
        "doc": b"{}",
        "body": b"{}",
        "data": b"{}",
        "content": b"{}",
        "value": b"{}",
        "request": b"{}",
        "answer": b"{}",
        "arguments": b"{}",
        "params_rest": b"{}",
        "cut": b"{}",
        "snapshot": b"{}",
        "spill": None,
        "hash": "sha256:a",
        "byte_hash": "sha256:a",
        "call": "c",
        "by": "ann",
        "method": "m",
        "upstream": "server-1",
        "wire_name": "t",
        "fingerprint": "f",
        "receipt": "{}",
        "workflow": "ops",
        "shown_as": None,
        "day": "2027-01-03",
        "last": "2027-01-04",
        "what": "tenant task",
        "address": "",
        "version": "",
        "configuration": "",
        "interpreter": "",
        "internal": "",
        "outcome": "",
        "topics": ["grants"],
        "numbers": [1, 2],
        "part": 0,
        "parts": 1,
        "tasks": [names.task],
        "approvals": [names.approval],
        "prefix": "account/00000",
        "kept": "revoked",
        "up_to": 1_000,
    }


NEW_TASK: dict[str, Any] = {"id": "tg_new", "scope": "default", "state": "queued", "tool": "t"}
NEW_TASKS: dict[str, Any] = {
    **{
        name: name
        for name in ("id", "principal", "caller", "limited_as", "scope", "server", "wire_name", "state", "owner")
    },
    **dict.fromkeys(("fence", "revision", "needs_owner"), 1),
    **dict.fromkeys(("finished_ms", "keep_until_ms", "approval_due_ms", "execution_due_ms")),
    "doc": b"{}",
}
NEW_EVENT: dict[str, Any] = {
    **{name: name for name in ("caller", "id", "kind", "server")},
    "number": 1_000_000_000,
    "at_ms": NOW_MS,
    "data": b"{}",
}
NEW_HISTORY: dict[str, Any] = {
    **{name: name for name in ("kind", "outcome", "caller", "tenant", "scope", "server", "tool", "client")},
    **{name: name for name in ("error_type", "rule", "approved_by")},
    "task_id": "tg_new",
    "number": 1,
    "doc": b"{}",
}
_ANY_NUMBER: dict[str, Any] = {"first": 0, "before": (1 << 63) - 1}
_A_NAME: dict[str, Any] = {"period": "quarter", "dimension": "server", "name": "server-1", "tenant": None}
BY_STATEMENT: dict[str, dict[str, Any]] = {
    "deliver_script_calls": {"numbers": json.dumps(["1", "2"])},
    "put_script": {"task_id": "tg_new"},
    "put_script_call": {"number": 1_000_000_000},
    "insert_history": NEW_HISTORY,
    "insert_history_rows": {name: [value] for name, value in NEW_HISTORY.items()},
    "history_row_of_task": {"task_id": "tg_none"},
    "history_latest": _ANY_NUMBER,
    "history_of_caller": {**_ANY_NUMBER, "caller": "acme/with-few-rows"},
    "forget_history_of": {"caller": "acme/with-few-rows"},
    "history_matching": {
        **_ANY_NUMBER,
        **dict.fromkeys(
            ("tenant", "caller", "scope", "tool", "client", "error_type", "kind", "outcomes", "words", "contained")
        ),
        "match": 'server : "server 1"',
    },
    "forget_old_history": {"before": numbered(NOW_MS - 86_400_000, 0)},
    "forget_history_counts": _A_NAME,
    "history_counts_of": {**_A_NAME, "since_ms": NOW_MS - 3_600_000, "bucket_ms": 60_000},
    "history_totals": {**_A_NAME, "since_ms": NOW_MS - 3_600_000},
    "history_courses": {
        **_A_NAME,
        "names": '["server-1","server-2"]',
        "since_ms": NOW_MS - 3_600_000,
        "bucket_ms": 900_000,
    },
    "history_latencies": {**_A_NAME, "names": '["server-1","server-2"]', "since_ms": NOW_MS - 3_600_000},
    "history_names": {**_A_NAME, "begins": "", "beyond": "~"},
    "add_history_counts": {"rows": '[["day","all","",0,"","ok",3,1]]'},
    "history_needs_key": {"prefix": b"\x00none", "length": 5},
    "insert_task": NEW_TASK,
    "insert_call": {"task_id": "tg_new"},
    "insert_outcome": {"task_id": "tg_new"},
    "put_attempt": {"number": 2},
    "forget_earlier_pins": {"others": 9},
    "put_key": {"key": "new"},
    "insert_event": {"number": 1_000_000_000},
    "insert_audit": {"number": 1_000_000_000},
    "insert_approval": {"id": "ap_new"},
    "find_approval": {"id": "ap_none"},
    "update_approval": {"id": "ap_none"},
    "own_approval": {"id": "ap_none"},
    "page_of_tasks": {"after": None, "server": None},
    "page_of_all_tasks": {"after": None, "server": None},
    "find_tasks": {"first": "tg_", "principal": None, "tenant": None, "server": None, "tool": None},
    "find_open_tasks": {"first": "tg_", "principal": None, "tenant": None, "server": None, "tool": None},
    "tasks_ended_badly": {"principal": None, "tenant": None},
    "usage_between": {"first": "2027-01-03"},
    "page_of_open_approvals": {"asked_ms": -1, "id": "", "begins": None},
    "page_of_approvals": {"asked_ms": -1, "id": "", "begins": None},
    "last_given_approval": {"before": None},
    "audit_after": {"number": 500},
    "audit_of": {"number": 500},
    "forget_audit": {"number": 500},
    "forget_audit_of": {"number": 500},
    "recorded_calls_after": {"number": 500, "since_ms": 0},
    "forget_old_calls": {"before_ms": NOW_MS - 9 * DAY_MS},
    "forget_first_calls": {"number": 1_000},
    "forget_usage": {"before": "2027-01-02"},
    "streams_after": {"limit": 1_000},
    "tasks_of_principal": {"after": ""},
    "erase_recorded_calls": {"after": 0},
    "keep_scope": {"name": "new"},
    "open_session": {"id": "new", "scope": "default"},
    "begin_conversation": {"id": "new", "scope": "default"},
    "find_session": {"id": "session-000003"},
    "forget_sessions": {"before_ms": 0},
    "forget_open_questions": {"before_ms": 0},
    "account": {"name": "account/000003"},
    "needs_key": {"prefix": b"\x00none", "length": 5, "within": b"\x00none"},
    "last_write": {"number": 0},
    "count_open_of_tenant": {"tenant": "acme"},
    "keep_instead": {"before": b"x"},
    "record_call": {"body": b"{}"},
    "insert_sums": {"body": b"[]"},
    "insert_sums_rows": {"at_ms": [NOW_MS], "body": [b"[]"]},
    "drop_sums": {"numbers": "[1]"},
    "grow_history_row": {"number": numbered(NOW_MS, 0), "doc": b"{}"},
    "first_asked": {"keys": '["k"]'},
    "keep_server": {"scope": "default"},
    "insert_tasks": {name: [value] for name, value in NEW_TASKS.items()},
    "insert_outcomes": {"task_id": ["tg_new"], "body": [b"{}"], "spill": [None]},
    "update_tasks": {name: [value] for name, value in NEW_TASKS.items()},
    "put_attempts": {
        **{name: ["tg_new"] for name in ("task_id", "byte_hash", "upstream", "state", "why")},
        **{name: [2] for name in ("number", "fence", "sent_at_ms", "ended_ms")},
    },
    "insert_calls": {"task_id": ["tg_new"], "arguments": [b"{}"], "params_rest": [b"{}"]},
    "insert_audit_rows": {"number": [1_000_000_000], "hash": ["sha256:a"], "content": [b"{}"]},
    "insert_events": {name: [value] for name, value in NEW_EVENT.items()},
}


# SQLite: the plan has SCAN for a whole table or index, and SEARCH for a lookup.

_SCAN = re.compile(r"^SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?")
_OF_ALIAS = re.compile(
    r"\b(?:FROM|JOIN|UPDATE|INTO)\s+(\w+)(?:\s+(?:AS\s+)?(?!ON\b|WHERE\b|SET\b|INDEXED\b|LEFT\b|JOIN\b|ORDER\b)(\w+))?"
)


class SqlitePlans:
    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._partial = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '%WHERE%'")
        }
        self._rows = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        }

    @property
    def statements(self) -> Mapping[str, str]:
        return SQLITE

    def rows_of(self, table: str) -> int:
        return self._rows.get(table, 0)

    def seen(self, name: str) -> Seen:
        text, values = SQLITE[name], values_for(name, self._names)
        given = {word: values[word] for word in re.findall(r":(\w+)", _without_texts(text))}
        plan = [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {text}", given)]
        tables = {alias or table: table for table, alias in _OF_ALIAS.findall(text)}
        scans = [found for line in plan if (found := _SCAN.match(line)) is not None]
        # A partial index holds only the rows that are looked for.
        whole = tuple(tables.get(scan[1], scan[1]) for scan in scans if scan[2] not in self._partial)
        return Seen(whole, self._steps(name, given), "\n".join(plan))  # type: ignore[arg-type]

    def _steps(self, name: str, given: Mapping[str, Any]) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += STEPS_AT_ONCE
            return 0

        with self._rolled_back():
            self._connection.set_progress_handler(step, STEPS_AT_ONCE)
            try:
                run_named(self._connection, name, given).fetchall()
            finally:
                self._connection.set_progress_handler(None, 0)
        return count

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")


def _without_texts(text: str) -> str:
    return re.sub(r"'[^']*'|--[^\n]*", "", text)


# PostgreSQL: both kinds of plan, because the server goes over from plans for the values at hand to one plan for all of them.

_PLACE = re.compile(r"%\((\w+)\)[bs]")


class PostgresPlans:
    def __init__(self, connection: Any, names: Names) -> None:
        from taskgate.store.postgres.statements import SQL

        self.statements: Mapping[str, bytes] = SQL
        self._connection = connection
        self._names = names
        self._rows = dict(
            connection.execute(
                "SELECT relname, reltuples::bigint FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
            ).fetchall()
        )

    def rows_of(self, table: str) -> int:
        return self._rows.get(table, 0)

    def seen(self, name: str) -> Seen:
        text = self.statements[name]
        values = values_for(name, self._names)
        given = {word: values[word] for word in dict.fromkeys(_PLACE.findall(text.decode()))}
        custom = self._explained(b"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + text, given)
        plans = [custom] if name in PLANNED_EACH_TIME else [custom, self._generic(text.decode(), given)]
        whole = tuple(
            node["Relation Name"] for plan in plans for node in _nodes(plan) if node["Node Type"] == "Seq Scan"
        )
        read = max(sum(_read(node) for node in _nodes(plan)) for plan in plans)
        return Seen(whole, read, json.dumps(plans, indent=1))

    def _explained(self, text: bytes, given: Mapping[str, Any]) -> dict[str, Any]:
        with self._connection.transaction(force_rollback=True):
            row = self._connection.execute(text, given, prepare=False).fetchone()
        plan: dict[str, Any] = row[0][0]["Plan"]
        return plan

    def _generic(self, text: str, given: Mapping[str, Any]) -> dict[str, Any]:
        numbered = text.replace("%%", "%")
        for place, word in enumerate(given, 1):
            numbered = re.sub(rf"%\({word}\)[bs]", f"${place}", numbered)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            self._connection.execute(f"PREPARE asked AS {numbered}".encode())
            try:
                places = ", ".join(f"%({word})s" for word in given)
                asked = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE asked" + (f" ({places})" if given else "")
                row = ClientCursor(self._connection).execute(asked.encode(), given).fetchone()
            finally:
                self._connection.execute("DEALLOCATE asked")
        assert row is not None
        plan: dict[str, Any] = row[0][0]["Plan"]
        return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _read(node: dict[str, Any]) -> int:
    """Rows that a scan of a table looked at."""
    if "Relation Name" not in node or node["Node Type"] == "ModifyTable":
        return 0
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node.get("Actual Rows", 0) + removed) * max(1, node.get("Actual Loops", 1)))
