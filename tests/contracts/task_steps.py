"""Tasks on their way: accepted, sent and finished, for the tests of stores."""

from __future__ import annotations

from tests.contracts.store_under_test import a_call
from tests.harness.unchecked import just_go

from taskgate.core.tasks import transition as h
from taskgate.core.tasks.task import Task
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    Intended,
)
from taskgate.store.operations.tasks import Accept, Advance, Intend

RESULT = b'{"content":[{"type":"text","text":"done"}], "n": 1.0}'


async def accepted(store: Store, **changes: object) -> Task:
    answer = await store.do(Accept(a_call(**changes)))
    assert isinstance(answer, Change)
    return answer.task


async def dispatched(store: Store, **changes: object) -> Task:
    task = await accepted(store, **changes)
    answer = await store.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(answer, Intended)
    return answer.task


async def finished(store: Store, body: bytes = RESULT, **changes: object) -> Task:
    task = await dispatched(store, **changes)
    answer = await store.do(Advance(task.id, h.ResultReceived(body)))
    assert isinstance(answer, Change)
    return answer.task
