"""The tasks of a dead owner are ended many at a time, with everything that the end of one task means, on each adapter."""

from __future__ import annotations

from functools import partial

from tests.contracts.store_under_test import StoreUnderTest
from tests.contracts.task_steps import accepted, dispatched, finished
from tests.harness.unchecked import just_go

from taskgate.core.errors import Executed
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.recovery import ends_at_once
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tool_class import ToolClass
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.events import EventsAfter
from taskgate.store.operations.task_queries import FindTask, OpenTasks, ResultBytes
from taskgate.store.operations.tasks import Advance, Intend
from taskgate.store.operations.upkeep import Claim, Recover, recover


async def test_calls_that_may_have_run_are_ended_and_others_left(adapter: StoreUnderTest) -> None:
    dead = adapter.open()
    sent = [await dispatched(dead) for _ in range(3)]
    repeatable = await dispatched(dead, tool_class=ToolClass.READ)
    waiting = await accepted(dead)
    over = await finished(dead)
    await dead.close()
    store = adapter.open(owner="next")
    await store.do(Claim())
    ended: list[Task] = []
    left: list[Task] = []
    after = ""
    while (page := await recover(store, ends_at_once, after, 2)).last:
        ended += page.ended
        left += page.left
        after = page.last
    assert {task.id for task in ended} == {task.id for task in sent}
    assert {task.id for task in left} == {repeatable.id, waiting.id}
    for task in ended:
        found = await store.ask(FindTask(task.id))
        assert found is not None
        assert task.outcome is not None
        assert (found.state, found.executed) == (TaskState.OUTCOME_UNKNOWN, Executed.MAYBE)
        assert await store.ask(ResultBytes(task.id)) == task.outcome.body
    untouched = await store.ask(FindTask(over.id))
    assert untouched is not None
    assert untouched.state is TaskState.COMPLETED
    assert await store.ask(OpenTasks()) == 2
    rows = [row.entry for row in await store.ask(AuditRows()) if row.entry.task_id in {task.id for task in sent}]
    assert sum(entry.event == "task_outcome_unknown" for entry in rows) == len(sent)
    await store.close()


async def test_ending_one_task_equals_ending_many(adapter: StoreUnderTest) -> None:
    """What `advance` writes for one task and `recover` for many: the same state, audit row and event."""
    store = adapter.open()
    alone, together = await dispatched(store), await dispatched(store)
    event = ends_at_once(alone, store.now_ms())
    assert event is not None
    assert isinstance(await store.do(Advance(alone.id, event)), Change)
    await store.do(Recover(ends_at_once, [together.id]))
    one, other = await store.ask(FindTask(alone.id)), await store.ask(FindTask(together.id))
    assert one is not None
    assert other is not None
    assert (one.state, one.executed, one.revision) == (other.state, other.executed, other.revision)
    rows = await store.ask(AuditRows())
    assert [r.entry.event for r in rows if r.entry.task_id == alone.id] == [
        r.entry.event for r in rows if r.entry.task_id == together.id
    ]
    events = (await store.ask(EventsAfter(alone.caller, 0))).events
    kinds = [[event.kind for event in events if task.id in str(event.data)] for task in (alone, together)]
    assert kinds[0] == kinds[1] != []
    await store.close()


async def test_tasks_of_another_owner_are_not_ended(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    task = await dispatched(first)
    await first.close()
    second = adapter.open(owner="second")
    page = await second.do(Recover(ends_at_once, [task.id]))
    assert (page.ended, page.left) == ((), ())
    found = await second.ask(FindTask(task.id))
    assert found is not None
    assert found.state is TaskState.RUNNING
    await second.close()


async def test_restored_store_ends_calls_that_were_never_sent(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    once, read = await accepted(store), await accepted(store, tool_class=ToolClass.READ)
    page = await store.do(Recover(partial(ends_at_once, restored=True), [once.id, read.id]))
    assert [task.id for task in page.ended] == [once.id]
    assert [task.id for task in page.left] == [read.id]
    assert isinstance(await store.do(Intend(read.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)
    assert not isinstance(await store.do(Advance(once.id, h.ResultReceived(b"{}"))), Change)
    await store.close()
