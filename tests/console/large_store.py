"""A store as large as the console is measured with: a week of history, open tasks that wait for people, and an audit log.

History and audit rows are written in bulk; open tasks and their approvals go through the store. The names are those of
`tests.store.filled_store`: 40 servers, 30 callers in three tenants.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from tests.benchmarks.store import a_call
from tests.store.filled_store import DAY_MS, Columns, Put, put_postgres, put_sqlite, week_counts, week_row

from taskgate.core.audit.chain import GENESIS, AuditEntry
from taskgate.core.digest import digest_of_bytes
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.workflow import Workflow
from taskgate.core.history.row import numbered
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import Change
from taskgate.store.operations.audit import audit_content
from taskgate.store.operations.history import history_columns
from taskgate.store.operations.tasks import Accept
from taskgate.store.operations.upkeep import Claim

SERVERS, TOOLS_OF_SERVER = 40, 10
TENANTS = ("acme", "globex", "initech")
BATCH = 200
WAITS_MS = 30 * DAY_MS


class Amounts(NamedTuple):
    history: int = 200_000
    open: int = 10_000
    audit: int = 1_000_000


NOTHING = Amounts(0, 0, 0)


def caller(number: int) -> str:
    return f"{TENANTS[number % 3]}/user-{number % 30:06d}"


def open_task(number: int) -> Task:
    """A call of one of 30 callers to one of 40 servers that waits for approval."""
    name, server, tool = caller(number), f"server-{number % SERVERS}", f"get_{number % TOOLS_OF_SERVER}"
    return replace(
        a_call(name),
        server=server,
        tool=tool,
        wire_name=f"{server}__{tool}",
        ttl_ms=WAITS_MS,
        execution_budget_ms=60_000,
    )


def held(task: Task) -> ApprovalRequest:
    bound = Binding(task.principal, task.server, task.tool, task.digest, "", "", 0)
    return ApprovalRequest(
        id="ap_" + secrets.token_hex(13),
        workflow=Workflow("default", timeout_ms=WAITS_MS),
        rule="rules[0]",
        binding=bound,
        caller=task.caller,
        wire_name=task.wire_name,
        arguments=task.arguments,
    )


async def add_open(store: Any, count: int) -> None:
    """Tasks that wait for approval, through the store; it is closed afterwards."""
    await store.do(Claim())
    for start in range(0, count, BATCH):
        calls = [open_task(number) for number in range(start, min(start + BATCH, count))]
        made = await asyncio.gather(*(store.do(Accept(call, approval=held(call))) for call in calls))
        assert all(isinstance(change, Change) for change in made)
    await store.close()


def _history(count: int, now_ms: int) -> Iterator[Columns]:
    for number in reversed(range(count)):
        row = week_row(number, count, now_ms)
        yield history_columns(row, numbered(row.ended_ms, number))


def _audit(count: int, now_ms: int, number: int, previous: str) -> Iterator[Columns]:
    """Rows of a valid chain after this one, with the events of plain and held calls."""
    events = ("call", "task_created", "approval_requested", "task_completed", "denied")
    for place in range(count):
        entry = AuditEntry(
            now_ms - (count - place) * 600,
            events[place % len(events)],
            principal=caller(place),
            scope=f"scope-{place % 5}",
            server=f"server-{place % SERVERS}",
            name=f"tool_{place % 400}_of_server",
            decision="allow" if place % len(events) != 4 else "policy_denied",
            rule="rules[0] *",
            arguments_digest="sha256:" + "d" * 64,
        )
        number += 1
        content = audit_content(number, previous, entry)
        previous = digest_of_bytes(content)
        yield {"number": number, "hash": previous, "content": content}


def _add_history(put: Put, count: int, now_ms: int) -> None:
    put("history", _history(count, now_ms))
    put("history_counts", week_counts(count, now_ms))


async def fill_sqlite(database: Path, amounts: Amounts) -> None:
    from taskgate.store.sqlite.store import open_store

    await add_open(open_store(database), amounts.open)
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        put = put_sqlite(connection)
        connection.execute("BEGIN")
        _add_history(put, amounts.history, now_ms)
        last = connection.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        put("audit", _audit(amounts.audit, now_ms, *(last or (0, GENESIS))))
        connection.execute("COMMIT")


async def fill_postgres(url: str, amounts: Amounts) -> None:
    """The audit rows are those of an earlier gateway."""
    from taskgate.store.postgres.connection import connect
    from taskgate.store.postgres.history_days import maintain_days
    from taskgate.store.postgres.store import open_store

    await add_open(open_store(url), amounts.open)
    now_ms, chain = time.time_ns() // 1_000_000, "gw_earlier"
    with connect(url, "taskgate tests", statement_ms=600_000) as connection:
        for day in range(-8, 1):
            maintain_days(connection, now_ms + day * DAY_MS, 30 * DAY_MS)
        put = put_postgres(connection)
        with connection.transaction():
            _add_history(put, amounts.history, now_ms)
            put("audit_chains", [{"chain": chain, "began_ms": now_ms - DAY_MS}])
            put("audit", ({"chain": chain, **row} for row in _audit(amounts.audit, now_ms, 0, GENESIS)))
        connection.execute("ANALYZE")
