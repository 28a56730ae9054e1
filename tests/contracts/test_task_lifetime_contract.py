"""How long tasks, their keys and the claims of their owners last. Each test runs on each adapter."""

from __future__ import annotations

import asyncio

from tests.contracts.store_under_test import KeepSecret, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import RESULT, accepted, dispatched, finished
from tests.harness.unchecked import just_go

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState
from taskgate.core.tool_class import ToolClass
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    Intended,
    KeyTaken,
    ResultGone,
    SameCall,
    StaleOwner,
    UnknownTask,
)
from taskgate.store.operations.approvals import HoldCall
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.task_queries import FindTask, ResultBytes, TasksPage
from taskgate.store.operations.tasks import Accept, Advance, Intend, NoteProgress
from taskgate.store.operations.upkeep import Claim, ClaimedTasks, FindDue, sweep


async def test_expired_tasks_are_found(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    running = await dispatched(store)
    call = a_call()
    waiting = await store.do(Accept(call, approval=asking(call)))
    hold = await store.do(HoldCall(asking(a_call())))
    assert isinstance(waiting, Change)
    due = await store.ask(FindDue())
    assert (due.approvals, due.executions, due.holds) == ((), (), ())
    adapter.clock.turn(60_000)
    assert (await store.ask(FindDue())).executions == (running.id,)
    adapter.clock.turn(540_000)
    due = await store.ask(FindDue())
    assert due.approvals == (waiting.task.id,)
    assert isinstance(hold, HeldCall)
    assert due.holds == (hold.approval.id,)
    await store.close()


async def test_an_open_task_is_never_deleted_and_a_finished_one_after_its_ttl(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    running = await dispatched(store)
    done = await finished(store)
    adapter.clock.turn(599_999)
    assert (await sweep(store)).tasks == 0
    assert await store.ask(FindTask(done.id)) is not None
    adapter.clock.turn(1)
    assert await store.ask(FindTask(done.id)) is None
    assert await store.ask(ResultBytes(done.id)) is None
    assert (await store.ask(TasksPage("carol"))).tasks[0].id == running.id
    assert (await sweep(store)).tasks == 1
    assert await store.ask(FindTask(running.id)) is not None
    assert await store.do(Advance(done.id, h.Cancelled())) == UnknownTask(done.id)
    await store.close()


async def test_a_key_gives_the_same_task_for_the_same_call(store: Store) -> None:
    first = await store.do(Accept(a_call(), key="k"))
    assert isinstance(first, Change)
    again = await store.do(Accept(a_call(), key="k"))
    assert again == SameCall(first.task)
    assert await store.do(Accept(a_call(digest="sha256:other"), key="k")) == KeyTaken(first.task.id)
    assert await store.do(Accept(a_call(tool="other"), key="k")) == KeyTaken(first.task.id)
    assert isinstance(await store.do(Accept(a_call(principal="dave"), key="k")), Change)
    assert isinstance(await store.do(Accept(a_call())), Change)


async def test_a_hundred_repeats_at_once_make_one_task(store: Store) -> None:
    answers = await asyncio.gather(*(store.do(Accept(a_call(), key="k")) for _ in range(100)))
    assert sum(isinstance(answer, Change) for answer in answers) == 1
    assert sum(isinstance(answer, SameCall) for answer in answers) == 99


async def test_a_key_outlives_its_task_and_states_that_the_tool_ran(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    draft = a_call()
    await store.do(Accept(draft, key="k"))
    await store.do(Intend(draft.id, byte_hash="b", upstream="u", recheck=just_go))
    await store.do(Advance(draft.id, h.ResultReceived(RESULT)))
    adapter.clock.turn(600_000)
    gone = ResultGone(draft.id, Executed.YES)
    assert await store.do(Accept(a_call(), key="k")) == gone
    await sweep(store)
    assert await store.do(Accept(a_call(), key="k")) == gone
    adapter.clock.turn(24 * 3_600_000)
    assert (await sweep(store)).keys == 1
    assert isinstance(await store.do(Accept(a_call(), key="k")), Change)
    await store.close()


async def test_a_key_can_be_reused_after_a_day(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    await store.do(Accept(a_call(), key="k"))
    adapter.clock.turn(24 * 3_600_000)
    assert isinstance(await store.do(Accept(a_call(), key="k")), Change)
    await store.close()


async def test_a_stale_owners_write_changes_nothing(adapter: StoreUnderTest) -> None:
    old = adapter.open()
    task = await dispatched(old)
    new = adapter.open_rival()
    assert new.ownership.fence > old.ownership.fence
    assert len(await new.do(Claim())) == 1
    stale = StaleOwner(old.ownership)
    assert await old.do(Advance(task.id, h.ResultReceived(RESULT))) == stale
    assert await old.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) == stale
    assert await old.do(Accept(a_call())) == stale
    old.defer(NoteProgress(task.id, h.Noted("I am still here")))
    old.defer(RecordAudit(AuditEntry(0, "late")))
    found = await new.ask(FindTask(task.id))
    assert found is not None
    assert (found.state, found.fence) == (TaskState.RUNNING, new.ownership.fence)
    await old.close()
    after = await new.ask(FindTask(task.id))
    assert after == found
    assert all(row.entry.event != "late" for row in await new.ask(AuditRows()))
    await new.close()


async def test_a_task_of_another_fence_cannot_be_changed_before_it_is_claimed(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    task = await accepted(first)
    await first.close()
    second = adapter.open(owner="second")
    assert await second.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)) == StaleOwner(
        second.ownership
    )
    assert len(await second.do(Claim())) == 1
    assert isinstance(await second.do(Intend(task.id, byte_hash="b", upstream="u", recheck=just_go)), Intended)
    await second.close()


async def test_the_next_owner_finds_every_open_task_in_pages(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    tasks = sorted([(await accepted(first)).id for _ in range(5)])
    await finished(first)
    await first.close()
    second = adapter.open()
    assert len(await second.do(Claim())) == 5
    page = await second.ask(ClaimedTasks(limit=3))
    rest = await second.ask(ClaimedTasks(after=page[-1].id, limit=3))
    assert [task.id for task in (*page, *rest)] == tasks
    assert all(task.fence == second.ownership.fence and task.arguments for task in page)
    await second.close()


async def test_every_attempt_keeps_the_fence_it_was_made_under(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    task = await dispatched(first, tool_class=ToolClass.READ)
    await first.close()
    second = adapter.open()
    await second.do(Claim())
    again = await second.do(Intend(task.id, byte_hash="b1", upstream="reports", recheck=just_go))
    assert isinstance(again, Intended)
    assert again.task.last_attempt is not None
    assert (again.task.last_attempt.number, again.task.last_attempt.fence) == (2, second.ownership.fence)
    assert again.task.last_attempt.state is AttemptState.DISPATCHING
    await second.close()


async def test_the_first_writer_of_a_secret_wins(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.do(KeepSecret("sealing", b"one")) == b"one"
    assert await store.do(KeepSecret("sealing", b"two")) == b"one"
    await store.close()
    again = adapter.open()
    assert await again.do(KeepSecret("sealing", b"three")) == b"one"
    await again.close()
