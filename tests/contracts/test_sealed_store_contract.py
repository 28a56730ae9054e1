"""Encryption at rest: what every store must do with a key, with another one, and without. Each test runs on each adapter."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from tests.contracts.store_under_test import PostgresUnderTest, SqliteUnderTest, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import dispatched
from tests.harness.raised import raises_error
from tests.store.call_records import record_calls

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.tasks import transition as h
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Change, KeyTaken, SameCall, TaskFilter, TaskQuestion
from taskgate.store.operations.approvals import FindHeld, HoldCall
from taskgate.store.operations.erasure import erase
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.task_queries import FindTask, FindTasks, QuestionsOf, ResultBytes, TasksPage
from taskgate.store.operations.tasks import Accept, Advance
from taskgate.store.operations.usage import RecordedCalls, forget_recorded_calls
from taskgate.store.sealing import MARK, Sealing

OLD, NEW, WRONG = "old-key-" + "0" * 32, "new-key-" + "1" * 32, "wrong-key-" + "2" * 32
MARKER = "marker" + secrets.token_hex(8)
SERVER_TEXT = b'{"what":"' + MARKER.encode() + b'"}'
LARGE = b'{"text":"' + (MARKER.encode() + b" ") * 100_000 + b'"}'


def opened(adapter: StoreUnderTest, *keys: str) -> Store:
    if isinstance(adapter, SqliteUnderTest):
        from taskgate.store.sqlite.store import open_store as open_file

        return open_file(adapter.path, owner="first", clock=adapter.clock, keys=keys)
    assert isinstance(adapter, PostgresUnderTest)
    from taskgate.store.postgres.store import open_store

    return open_store(adapter.url, owner="first", clock=adapter.clock, keys=keys)


async def everything(store: Store, body: bytes = SERVER_TEXT) -> tuple[str, str]:
    """A task with arguments, a question, an answer and a result, and a held call."""
    task = await dispatched(store, arguments=SERVER_TEXT, params_rest=SERVER_TEXT)
    await store.do(
        Advance(task.id, h.InputRequested(("k",)), questions=[TaskQuestion("k", "reports", "elicit", SERVER_TEXT)])
    )
    await store.do(Advance(task.id, h.InputSettled(("k",)), answers={"k": SERVER_TEXT}))
    assert isinstance(await store.do(Advance(task.id, h.ResultReceived(body))), Change)
    held = await store.do(HoldCall(asking(a_call(arguments=SERVER_TEXT))))
    assert isinstance(held, HeldCall)
    return task.id, held.approval.id


async def check(store: Store, ids: tuple[str, str], body: bytes = SERVER_TEXT) -> None:
    task = await store.ask(FindTask(ids[0]))
    assert task is not None
    assert (task.arguments, task.params_rest) == (SERVER_TEXT, SERVER_TEXT)
    assert await store.ask(ResultBytes(ids[0])) == body
    (question,) = await store.ask(QuestionsOf(ids[0], answered=True))
    assert (question.request, question.answer) == (SERVER_TEXT, SERVER_TEXT)
    held = await store.ask(FindHeld(ids[1]))
    assert held is not None
    assert held.arguments == SERVER_TEXT


def all_bytes(adapter: StoreUnderTest) -> bytes:
    if isinstance(adapter, SqliteUnderTest):
        return b"".join(path.read_bytes() for path in adapter.path.parent.rglob("*") if path.is_file())
    assert isinstance(adapter, PostgresUnderTest)
    import psycopg

    columns = (
        "task_calls",
        "task_outcomes",
        "questions",
        "approvals",
        "events",
        "tasks",
        "audit",
        "result_chunks",
        "recorded_calls",
        "scripts",
    )
    with psycopg.connect(adapter.url) as connection:
        found: list[Any] = [connection.execute(f"SELECT * FROM {name}").fetchall() for name in columns]
    return b"".join(
        value if type(value) is bytes else str(value).encode() for rows in found for row in rows for value in row
    )


async def test_rows_are_sealed_and_read_back(adapter: StoreUnderTest) -> None:
    store = opened(adapter, NEW)
    short, large = await everything(store), await everything(store, LARGE)
    assert MARKER.encode() not in all_bytes(adapter)
    await check(store, short)
    await check(store, large, LARGE)
    listed = (await store.ask(TasksPage("carol", arguments_up_to=10_000))).tasks
    assert {task.arguments for task in listed} == {SERVER_TEXT}
    assert len((await store.ask(FindTasks(TaskFilter(text="reports__build")))).tasks) == 2
    await store.close()
    assert MARKER.encode() not in all_bytes(adapter)
    again = opened(adapter, NEW)
    await check(again, large, LARGE)
    await again.close()


async def write_server_texts_and_calls(store: Store) -> str:
    """A task with status texts of its server, and a recorded call."""
    task = await dispatched(store)
    question = TaskQuestion("k", "reports", "elicit", SERVER_TEXT)
    asked = await store.do(Advance(task.id, h.InputRequested(("k",), f"about {MARKER}"), questions=[question]))
    assert isinstance(asked, Change)
    ended = await dispatched(store)
    assert isinstance(
        await store.do(Advance(ended.id, h.ResultReceived(SERVER_TEXT, message=f"done with {MARKER}"))), Change
    )
    record_calls(store, [RecordedCall(1, principal="acme/ann", server="reports", arguments=SERVER_TEXT.decode())])
    await forget_recorded_calls(store, 10**12)
    return task.id


async def check_server_texts(store: Store, task_id: str) -> None:
    task = await store.ask(FindTask(task_id))
    assert task is not None
    assert task.status_message == f"about {MARKER}"
    received = [event.data.get("message") for event in (await store.ask(EventsAfter("carol", 0))).events]
    assert f"about {MARKER}" in received
    (call,) = (await store.ask(RecordedCalls(0))).calls
    assert (call.principal, call.arguments) == ("acme/ann", SERVER_TEXT.decode())


async def test_server_texts_events_and_recorded_calls_are_sealed(adapter: StoreUnderTest) -> None:
    store = opened(adapter, OLD)
    task_id = await write_server_texts_and_calls(store)
    assert MARKER.encode() not in all_bytes(adapter)
    await check_server_texts(store, task_id)
    await store.close()
    with raises_error("store_unavailable", "store.key"):
        opened(adapter, NEW)
    rotated = opened(adapter, NEW, OLD)
    await check_server_texts(rotated, task_id)
    erased = await erase(rotated, "acme/ann", "", AuditEntry(at_ms=1, event="data_erased"))
    assert (await rotated.ask(RecordedCalls(0))).calls == (), erased
    await rotated.close()


async def test_server_texts_are_plain_without_a_key(adapter: StoreUnderTest) -> None:
    store = opened(adapter)
    task_id = await write_server_texts_and_calls(store)
    assert MARKER.encode() in all_bytes(adapter)
    await check_server_texts(store, task_id)
    await store.close()
    keyed = opened(adapter, NEW)
    await check_server_texts(keyed, task_id)
    await keyed.close()


async def test_earlier_plain_rows_are_read_and_keys_are_rotated(adapter: StoreUnderTest) -> None:
    plain = opened(adapter)
    made = [await everything(plain)]
    assert MARKER.encode() in all_bytes(adapter)
    await plain.close()
    for keys in ((), (OLD,), (NEW, OLD)):
        store = opened(adapter, *keys)
        made.append(await everything(store))
        for ids in made:
            await check(store, ids)
        await store.close()


@pytest.mark.parametrize("keys", [(), (WRONG,)], ids=["none", "wrong"])
async def test_a_store_does_not_open_without_the_key_of_its_rows(
    adapter: StoreUnderTest, keys: tuple[str, ...]
) -> None:
    store = opened(adapter, OLD)
    ids = await everything(store)
    await store.close()
    before = all_bytes(adapter)
    with raises_error("store_unavailable", "store.key"):
        opened(adapter, *keys)
    assert all_bytes(adapter) == before
    again = opened(adapter, OLD)
    await check(again, ids)
    await again.close()


async def test_an_unused_key_may_be_removed(adapter: StoreUnderTest) -> None:
    await opened(adapter, OLD).close()
    store = opened(adapter, NEW)
    await check(store, await everything(store))
    await store.close()


async def test_idempotency_keys_work_on_sealed_calls(adapter: StoreUnderTest) -> None:
    store = opened(adapter, NEW)
    first = await store.do(Accept(a_call(arguments=SERVER_TEXT), key="once"))
    assert isinstance(first, Change)
    again = await store.do(Accept(a_call(arguments=SERVER_TEXT), key="once"))
    assert isinstance(again, SameCall)
    assert again.task.arguments == SERVER_TEXT
    assert isinstance(await store.do(Accept(a_call(arguments=b"{}", digest="sha256:other"), key="once")), KeyTaken)
    await store.close()


def test_a_value_is_bound_to_its_row_and_cannot_be_changed() -> None:
    sealing = Sealing((NEW,))
    sealed = sealing.seal(SERVER_TEXT, "tg_1")
    assert sealed.startswith(MARK)
    assert sealed != sealing.seal(SERVER_TEXT, "tg_1")
    assert sealing.open(sealed, "tg_1") == Sealing((OLD, NEW)).open(sealed, "tg_1") == SERVER_TEXT
    broken: list[Callable[[], bytes]] = [
        lambda: sealing.open(sealed, "tg_2"),
        lambda: sealing.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "tg_1"),
        lambda: sealing.open(sealed[:20], "tg_1"),
        lambda: Sealing((OLD,)).open(sealed, "tg_1"),
        lambda: Sealing(()).open(sealed, "tg_1"),
    ]
    for attempt in broken:
        with pytest.raises(GatewayFault):
            attempt()
