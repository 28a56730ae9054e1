"""Stores with as many rows as a busy gateway keeps: the same rows for both databases, written in bulk.

The proportions are those of a gateway in use: most tasks have ended, some are open, some are past their time, and a few
thousand callers share them. Documents are real ones, so that statements can be run and not only planned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.generations.generation import Generation
from taskgate.core.governance import approval as approval_rules
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.governance.workflow import Workflow
from taskgate.core.history.counts import ANY_OUTCOME, NO_LATENCY, Counted, Period, counted, step_of
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind, numbered
from taskgate.core.ids import new_task_id, ulid
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Outcome, OutcomeKind, Task
from taskgate.core.tool_class import ToolClass
from taskgate.store.operations import audit
from taskgate.store.operations.approval_rows import approval_columns
from taskgate.store.operations.history import history_columns
from taskgate.store.operations.task_rows import task_columns
from taskgate.store.operations.usage import encode_recorded_call
from taskgate.store.sealing import Sealing

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
OURS, DEAD = "gw_ours", "gw_dead"
FENCE = 7
_PLAIN = Sealing(())
_STATES = (TaskState.FAILED, TaskState.CANCELLED, TaskState.REJECTED, TaskState.EXPIRED, TaskState.OUTCOME_UNKNOWN)

Columns = dict[str, Any]
Put = Callable[[str, Iterable[Columns]], None]
"""Writes rows into a table."""


class Amounts(NamedTuple):
    tasks: int
    audit: int
    events: int

    @property
    def callers(self) -> int:
        return max(10, self.tasks // 10)


class Names(NamedTuple):
    """Names that are in every filled store, for queries."""

    caller: str
    task: str
    open_task: str
    approval: str
    stream: str
    key: str


def caller(number: int) -> str:
    return f"acme/user-{number:06d}"


def fill(put: Put, amounts: Amounts) -> Names:
    """Everything that both databases keep, and a few of its names."""
    tasks = [_task(number, amounts) for number in range(amounts.tasks)]
    put("tasks", (_task_row(number, task) for number, task in enumerate(tasks)))
    put("task_calls", ({"task_id": t.id, "arguments": b'{"year": 2026}', "params_rest": b"{}"} for t in tasks))
    put("attempts", (_attempt(task) for task in tasks if task.state is not TaskState.QUEUED))
    ended = [task for number, task in enumerate(tasks) if task.outcome is not None and _forget_at(number, task) is None]
    put("task_outcomes", (_outcome(number, task) for number, task in enumerate(ended)))
    put("questions", (_question(task) for task in tasks[:: max(1, amounts.tasks // 2_000)]))
    put("scripts", (_script(task) for task in tasks[::4]))
    put("script_calls", (_script_call(task, number) for task in tasks[::4] for number in range(3)))
    put("idempotency_keys", (_key(number, task) for number, task in enumerate(tasks[::2])))
    approvals = [_approval(number, task) for number, task in enumerate(tasks[::2])]
    put("approvals", (approval_columns(_PLAIN, held) for held in approvals))
    held_ids = [held.approval.id for held in approvals]
    receipts = ({"approval_id": name, "place": "slack", "workflow": "ops", "receipt": "{}"} for name in held_ids[::10])
    put("channel_receipts", receipts)
    streams = [caller(number) for number in range(amounts.callers)]
    each = amounts.events // len(streams)
    put("event_streams", (_stream(number, name, each) for number, name in enumerate(streams)))
    put("events", (_event(name, number, each) for name in streams for number in range(1, each + 1)))
    put("recorded_calls", (_recorded(number) for number in range(1, amounts.tasks // 2)))
    put("usage", (_usage(number) for number in range(amounts.tasks // 5)))
    put("history", (_history(number) for number in range(amounts.tasks)))
    put("history_content", (_content(task) for task in tasks[::20]))
    put("history_counts", (_count(number) for number in range(amounts.tasks)))
    put("identity_records", (_identity(number) for number in range(amounts.tasks // 10)))
    open_task = next(task for task in tasks if task.state is TaskState.RUNNING)
    return Names(caller(3), tasks[len(tasks) // 2].id, open_task.id, approvals[0].approval.id, streams[3], "key-000002")


def _script(task: Task) -> Columns:
    return {"task_id": task.id, "step": 3, "doc": b"{}", "snapshot": b"x" * 100}


def _script_call(task: Task, number: int) -> Columns:
    return {"script_id": task.id, "number": number, "line": number, "task_id": task.id, "delivered_step": None}


def _task(number: int, amounts: Amounts) -> Task:
    """Ninety of a hundred have been completed, five have ended otherwise, five are open."""
    created = NOW_MS - DAY_MS + number * DAY_MS // amounts.tasks
    name = caller(number % amounts.callers)
    of_hundred = number % 100
    state = TaskState.COMPLETED
    if of_hundred >= 95:
        state = (TaskState.RUNNING, TaskState.QUEUED, TaskState.AWAITING_APPROVAL, TaskState.RUNNING)[number % 4]
    elif of_hundred >= 90:
        state = _STATES[number % len(_STATES)]
    finished = created + 1_000 if state.is_terminal else None
    return Task(
        id=new_task_id(created, number.to_bytes(10)),
        principal=name,
        caller=name,
        scope=f"scope-{number % 7}",
        server=f"server-{number % 20}",
        tool=f"tool_{number % 300}",
        wire_name=f"server-{number % 20}__tool_{number % 300}",
        arguments=b'{"year": 2026}',
        digest="sha256:" + "d" * 64,
        generation=Generation.STATEFUL,
        tool_class=ToolClass.ONCE if number % 2 else ToolClass.REPEATABLE,
        state=state,
        created_ms=created,
        updated_ms=created + 500,
        finished_ms=finished,
        ttl_ms=DAY_MS - 600_000,
        execution_budget_ms=60_000,
        approval_deadline_ms=created + 600_000,
        execution_deadline_ms=created + DAY_MS - 300_000,
        outcome=Outcome(OutcomeKind.RESULT, size=120) if finished is not None else None,
        owner=DEAD if number % 3 == 0 else OURS,
        fence=FENCE,
        revision=3,
    )


def _forget_at(number: int, task: Task) -> int | None:
    """One in ten has been expired already, of these some are to be forgotten now."""
    if not task.state.is_terminal or number % 10:
        return None
    return NOW_MS + (number % 1000 - 100) * 1_000


def _task_row(number: int, task: Task) -> Columns:
    return {**task_columns(_PLAIN, task), "forget_at_ms": _forget_at(number, task)}


def _attempt(task: Task) -> Columns:
    fields = {"number": 1, "fence": FENCE, "byte_hash": "sha256:b", "upstream": task.server, "state": "answered"}
    return {"task_id": task.id, "sent_at_ms": task.created_ms + 10, **fields, "why": ""}


def _outcome(number: int, task: Task) -> Columns:
    spilled = number % 500 == 0
    return {
        "task_id": task.id,
        "body": None if spilled else b'{"content":[{"type":"text","text":"ok"}]}',
        "spill": f"{task.id}.0123456789abcdef" if spilled else None,
    }


def _question(task: Task) -> Columns:
    return {
        "task_id": task.id,
        "key": "q1",
        "place": 0,
        "server": task.server,
        "method": "elicitation/create",
        "request": b"{}",
        "asked_ms": task.created_ms,
        "expires_ms": None,
        "state": "withdrawn" if task.state.is_terminal else "open",
        "answer": None,
        "shown_as": None,
    }


def _key(number: int, task: Task) -> Columns:
    return {
        "principal": task.principal,
        "key": f"key-{number:06d}",
        "call": f"{task.server}\n{task.tool}\n{task.digest}",
        "task_id": task.id if number % 10 else "tg_gone",
        "created_ms": task.created_ms - 3_600_000,
        "executed": None,
    }


def _approval(number: int, task: Task) -> HeldCall:
    bound = Binding(task.principal, task.server, task.tool, task.digest, "sha256:def", "rev1", 0)
    # Three in four are over a month old, of these some have outlived their tasks.
    asked = task.created_ms - (31 * DAY_MS if number % 4 else 0)
    approval = approval_rules.open_approval(
        f"ap_{ulid(asked, number.to_bytes(10))}", Workflow("ops"), "rules[0]", bound, asked
    )
    state = (
        approval_rules.State.OPEN
        if number % 2 == 0
        else (approval_rules.State.USED, approval_rules.State.DENIED, approval_rules.State.EXPIRED)[number % 3]
    )
    approval = replace(approval, state=state, decided_at_ms=asked + 1000)
    task_id = None if number % 7 == 0 else task.id if number % 4 == 0 else "tg_gone"
    return HeldCall(approval, task.caller, task.wire_name, b"{}", task_id)


def _stream(number: int, name: str, each: int) -> Columns:
    return {"caller": name, "last": each, "delivered": each // 2, "touched_ms": NOW_MS - (number % 40) * 3_600_000}


def _event(name: str, number: int, each: int) -> Columns:
    return {
        "caller": name,
        "number": number,
        "id": f"{name[-6:]}-{number}",
        "kind": "task_completed",
        "server": "server-1",
        "at_ms": NOW_MS - DAY_MS + number * DAY_MS // each,
        "data": b'{"task_id": "tg_1", "status": "completed"}',
    }


def _recorded(number: int) -> Columns:
    at_ms = NOW_MS - 10 * DAY_MS + number * 10_000
    call = RecordedCall(at_ms=at_ms, principal=caller(number % 100), scope="default", server="s", name="t")
    return {"number": number, "at_ms": at_ms, "body": encode_recorded_call(_PLAIN, call)}


def _usage(number: int) -> Columns:
    who = {"principal": caller(number % 500), "server": f"server-{number % 20}", "tool": f"tool_{number // 500}"}
    counts = {"calls": 1, "errors": 0, "seconds": 0.1, "bytes_in": 1, "bytes_out": 1, "cost": 0.0}
    return {"day": f"2027-01-{1 + number % 28:02d}", **who, **counts}


def _history(number: int) -> Columns:
    at_ms = NOW_MS - number * 3_000
    return history_columns(history_row(number, at_ms), numbered(at_ms, number))


def history_row(number: int, at_ms: int) -> HistoryRow:
    """As on a gateway with 40 servers and 30 callers in three tenants; one call in 25 does not end well."""
    bad, is_task = number % 25 == 0, number % 2 == 0
    kind = RowKind.TASK if is_task else RowKind.DENIAL if number % 75 == 0 else RowKind.CALL
    return HistoryRow(
        kind=kind,
        outcome=tuple(CallOutcome)[1 + number // 25 % 7] if bad else CallOutcome.OK,
        task_id=new_task_id(at_ms, number.to_bytes(10, "big")) if is_task else "",
        caller=f"{('acme', 'globex', 'initech')[number % 3]}/user-{number % 30:06d}",
        scope=f"scope-{number % 5}",
        server=f"server-{number % 40}",
        tool=f"tool_{number % 400}_of_server",
        client=("claude-code", "cursor", "agent")[number // 7 % 3],
        generation="stateless",
        accepted_ms=at_ms - 900,
        sent_ms=at_ms - 800,
        ended_ms=at_ms,
        error_type="upstream_timeout" if bad else "",
        executed="yes",
        attempts=1,
        approved_by="ann" if number % 200 == 0 else "",
        size_in=300,
        size_out=4_000,
        digest="sha256:" + "ab" * 32,
    )


WEEK_MS = 7 * DAY_MS


def week_row(number: int, rows: int, now_ms: int) -> HistoryRow:
    """One of the rows of the last week, the newest first."""
    return history_row(number, now_ms - number * WEEK_MS // rows)


def week_calls(rows: int, now_ms: int) -> Iterator[tuple[int, Sequence[Counted]]]:
    """The end of each of these calls, and what the gateway counts of it."""
    for number in range(rows):
        row = week_row(number, rows, now_ms)
        step = step_of(1 + number % 997 * 3)
        yield (
            row.ended_ms,
            counted(row.caller, row.tenant, row.server, row.tool, outcome=row.outcome, step=step, calls=1),
        )


def week_counts(rows: int, now_ms: int) -> Iterator[Columns]:
    """The counts of all these rows, as far as the gateway would still have them."""
    sums: dict[tuple[Any, ...], int] = {}
    for ended_ms, subjects in week_calls(rows, now_ms):
        for period in Period:
            start = ended_ms // period.length_ms * period.length_ms
            if start < now_ms - period.kept_ms - period.length_ms:
                continue
            for one in subjects:
                subject = (period.value, one.dimension.value, one.name, start, one.tenant)
                kinds = [(one.outcome.value, NO_LATENCY), (ANY_OUTCOME, one.step)]
                for kind in kinds if period.has_latencies else kinds[:1]:
                    sums[*subject, *kind] = sums.get((*subject, *kind), 0) + 1
    names = ("period", "dimension", "name", "start_ms", "tenant", "outcome", "step", "calls")
    for key in sorted(sums):
        yield dict(zip(names, (*key, sums[key]), strict=True))


def _content(task: Task) -> Columns:
    return {"task_id": task.id, "at_ms": NOW_MS, "body": b"{}"}


def _count(number: int) -> Columns:
    dimension = ("all", "server", "tool", "caller")[number % 4]
    name = {"all": "", "server": f"server-{number % 40}", "tool": f"server-1/tool_{number % 400}"}.get(
        dimension, caller(3)
    )
    return {
        "period": ("minute", "quarter", "day_sum")[number % 3],
        "dimension": dimension,
        "name": name,
        "start_ms": NOW_MS - number * 3_000,
        "tenant": "acme",
        "outcome": "ok",
        "step": number % 20,
        "calls": 1,
    }


def _identity(number: int) -> Columns:
    return {
        "kind": ("session", "revoked", "subject")[number % 3],
        "name": f"name-{number:06d}",
        "principal": caller(number % 500),
        "expires_ms": NOW_MS + (number - 50) * 60_000,
        "body": b"{}",
    }


def audit_content(number: int) -> bytes:
    entry = AuditEntry(NOW_MS - 40 * DAY_MS + number * 3_000, "task_completed", principal="acme/user-000001")
    return audit.audit_content(number, "sha256:" + "0" * 64, entry)


# Both databases.


def put_sqlite(connection: sqlite3.Connection) -> Put:
    def put(table: str, given: Iterable[Columns]) -> None:
        known = [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
        statement = f"INSERT INTO {table} ({', '.join(known)}) VALUES ({', '.join('?' * len(known))})"
        connection.executemany(statement, ([row.get(name) for name in known] for row in given))

    return put


def fill_sqlite(connection: sqlite3.Connection, amounts: Amounts) -> Names:
    """Into a store whose schema is there. One transaction, as it is never a backup's."""
    put = put_sqlite(connection)
    connection.execute("BEGIN")
    owners = [{"owner": name, "fence": FENCE, "started_ms": 0, "seen_ms": 0, "retired": 0} for name in (OURS, DEAD)]
    put("owners", owners)
    names = fill(put, amounts)
    body = audit_content(1)
    digest = "sha256:" + "a" * 64
    put("audit", ({"number": n, "hash": digest, "content": body} for n in range(1, amounts.audit + 1)))
    connection.execute("COMMIT")
    return names


CHAINS = 20


def put_postgres(connection: Any) -> Put:
    def put(table: str, given: Iterable[Columns]) -> None:
        every = iter(given)
        first = next(every, None)
        if first is None:
            return
        found = connection.execute("SELECT * FROM " + table + " LIMIT 0").description
        columns = [column.name for column in found if column.name in first]
        with connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in _with(first, every):
                copy.write_row([row[name] for name in columns])

    return put


def fill_postgres(connection: Any, amounts: Amounts) -> Names:
    """Into a database whose schema is there, with what several gateways need besides; statistics are current afterwards."""
    put = put_postgres(connection)
    with connection.transaction():
        put("owners", ({"owner": name, "fence": FENCE, "started_ms": 0} for name in (OURS, DEAD)))
        names = fill(put, amounts)
        for chain in range(CHAINS):
            connection.execute("INSERT INTO audit_chains (chain, began_ms) VALUES (%s, %s)", [_chain(chain), chain])
        connection.execute(
            "INSERT INTO audit (chain, number, hash, content) SELECT 'gw_' || lpad((n %% %s)::text, 4, '0'), n / %s + 1,"
            " 'sha256:' || repeat('a', 64), %s FROM generate_series(0, %s - 1) AS n",
            [CHAINS, CHAINS, audit_content(1), amounts.audit],
        )
        connection.execute("SELECT setval(pg_get_serial_sequence('recorded_calls', 'number'), %s)", [amounts.tasks])
        put("sessions", (_session(number) for number in range(amounts.tasks // 5)))
        put("result_chunks", (_chunk(number) for number in range(amounts.tasks // 10)))
        put("open_questions", (_open_question(number) for number in range(amounts.tasks // 10)))
        put("server_accounts", (_account(number) for number in range(amounts.tasks // 10)))
    connection.execute("ANALYZE")
    return names


def _with(first: Columns, others: Iterator[Columns]) -> Iterator[Columns]:
    yield first
    yield from others


def _chain(number: int) -> str:
    return f"gw_{number:04d}"


def _session(number: int) -> Columns:
    return {
        "id": f"session-{number:06d}",
        "tenant": f"tenant-{number % 50}",
        "principal": caller(number % 500),
        "scope": "default",
        "home": (OURS, DEAD, "gw_third")[number % 3],
        "seen_ms": NOW_MS - number * 1_000,
        "body": b"{}",
        "limited_as": caller(number % 500),
    }


def _chunk(number: int) -> Columns:
    return {
        "name": f"tg_{number:06d}.0123456789abcdef",
        "number": 0,
        "created_ms": NOW_MS - number,
        "bytes": b"x" * 200,
    }


def _open_question(number: int) -> Columns:
    where = {"home": (OURS, DEAD, "gw_third")[number % 3], "caller": caller(number % 500)}
    return {"id": f"question-{number:06d}", "expires_ms": NOW_MS + number, "body": b"{}", **where}


def _account(number: int) -> Columns:
    return {"name": f"account/{number:06d}", "value": b"x", "expires_at": None}
