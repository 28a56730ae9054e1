"""Writes that share a transaction on PostgreSQL: they are sent as arrays, and each is acknowledged only if it changed its row."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.postgres import migrated_url
from tests.harness.unchecked import just_go

from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState, Task
from taskgate.core.tasks.transition import Noted, ResultReceived
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.locks import Locks
from taskgate.store.operations.task_changes import move_task
from taskgate.store.transaction import Transaction

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from taskgate.store.operations.task_queries import FindTask, ResultBytes
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.postgres.arrays import bigint_array, bytea_array, text_array
from taskgate.store.postgres.connection import connect
from taskgate.store.postgres.store import PostgresStore, open_store


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    opened = open_store(migrated_url())
    yield opened
    await opened.close()


def new_task() -> Task:
    return Task(
        id=new_task_id(1_800_000_000_000, secrets.token_bytes(10)),
        principal="carol",
        caller="carol",
        scope="default",
        server="reports",
        tool="build",
        wire_name="reports__build",
        arguments=b'{"n":1}',
        digest="sha256:d1",
        generation=Generation.STATEFUL,
        ttl_ms=600_000,
        execution_budget_ms=60_000,
    )


async def accepted(store: PostgresStore) -> Task:
    change = await store.do(Accept(new_task()))
    assert isinstance(change, Change)
    return change.task


@pytest.mark.parametrize(
    ("encoded", "element", "values"),
    [
        (text_array, "text", ["", "plain", 'Zürich, {a"b}', None, "日本"]),
        (text_array, "text", []),
        (bytea_array, "bytea", [b"", b"\x00\xff", None]),
        (bigint_array, "bigint", [0, -1, 2**62, -(2**62)]),
        (bigint_array, "bigint", [1, None, 3]),
        (bigint_array, "smallint", [0, 1, 1]),
        (bigint_array, "bigint", []),
    ],
)
def test_server_reads_arrays_as_they_were_given(encoded: Any, element: str, values: Sequence[Any]) -> None:
    with connect(migrated_url()) as connection:
        row = connection.execute(f"SELECT %(given)b::{element}[]".encode(), {"given": encoded(values)}).fetchone()
    assert row is not None
    assert row[0] == values


async def test_several_changes_of_one_task_share_a_commit(store: PostgresStore) -> None:
    task = await accepted(store)
    before = store._engine.committer._number  # type: ignore[attr-defined]

    changes = await asyncio.gather(
        store.do(Advance(task.id, Noted("first"))),
        store.do(Advance(task.id, Noted(progress=0.5))),
        store.do(Advance(task.id, Noted(total=1.0))),
    )

    assert all(isinstance(change, Change) for change in changes)
    assert store._engine.committer._number == before + 1  # type: ignore[attr-defined]
    now = await store.ask(FindTask(task.id))
    assert now is not None
    assert (now.status_message, now.progress, now.progress_total, now.revision) == (
        "first",
        0.5,
        1.0,
        task.revision + 3,
    )
    assert now.arguments == task.arguments


async def test_sends_and_results_of_many_tasks_are_kept_each(store: PostgresStore) -> None:
    tasks = await asyncio.gather(*(accepted(store) for _ in range(5)))
    sent = await asyncio.gather(
        *(
            store.do(Intend(task.id, byte_hash=f"sha256:{task.id}", upstream="reports", recheck=just_go))
            for task in tasks
        )
    )
    assert all(isinstance(one, Intended) for one in sent)
    await asyncio.gather(*(store.do(Advance(task.id, ResultReceived(task.id.encode(), False, None))) for task in tasks))

    for task in tasks:
        ended = await store.ask(FindTask(task.id))
        assert ended is not None
        assert ended.state is TaskState.COMPLETED
        assert ended.last_attempt is not None
        assert ended.last_attempt.byte_hash == f"sha256:{task.id}"
        assert ended.last_attempt.state is AttemptState.ANSWERED
        assert await store.ask(ResultBytes(task.id)) == task.id.encode()


async def test_update_that_changes_no_row_is_not_acknowledged(store: PostgresStore) -> None:
    """Its neighbours in the same commit are."""
    task, other = await accepted(store), await accepted(store)
    outdated = replace(task, revision=task.revision + 7)

    def change(tx: Transaction) -> None:
        move_task(tx, outdated, replace(outdated, status_message="never", revision=outdated.revision + 1), None)

    refused, kept = await asyncio.gather(
        store._engine.write(change, Locks(tasks=(task.id,), reads=(task.id,))),
        store.do(Advance(other.id, Noted("kept"))),
        return_exceptions=True,
    )

    assert isinstance(refused, RuntimeError)
    assert isinstance(kept, Change)
    now = await store.ask(FindTask(task.id))
    assert now is not None
    assert (now.revision, now.status_message) == (task.revision, task.status_message)
