"""What every store must keep of tasks. Each test runs on each adapter."""

from __future__ import annotations

import asyncio

import pytest
from store_under_test import START, SqliteUnderTest, a_call, asking

from taskgate.core.audit import Entry
from taskgate.core.errors import Executed
from taskgate.core.generations import Generation
from taskgate.core.tasks import happening as h
from taskgate.core.tasks.birth import AlreadySent
from taskgate.core.tasks.classes import ToolClass
from taskgate.core.tasks.state import OPEN, HappeningKind, TaskState
from taskgate.core.tasks.task import AttemptState, Outcome, OutcomeKind, Task, UpstreamHandle
from taskgate.core.tasks.transition import AlreadyOver, MayNotRepeat, NotPossible
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    IdTaken,
    Intended,
    KeyTaken,
    ResultGone,
    SameCall,
    StaleOwner,
    Stopped,
    TaskQuestion,
    TooManyOpen,
    UnknownTask,
)
from taskgate.ports.task_store import AcceptLimits

RESULT = b'{"content":[{"type":"text","text":"done"}], "n": 1.0}'


async def accepted(store: Store, **changes: object) -> Task:
    answer = await store.accept(a_call(**changes))
    assert isinstance(answer, Change)
    return answer.task


async def dispatched(store: Store, **changes: object) -> Task:
    task = await accepted(store, **changes)
    answer = await store.intend(task.id, byte_hash="b1", upstream="reports")
    assert isinstance(answer, Intended)
    return answer.task


async def finished(store: Store, body: bytes = RESULT, **changes: object) -> Task:
    task = await dispatched(store, **changes)
    answer = await store.advance(task.id, h.ResultCame(body))
    assert isinstance(answer, Change)
    return answer.task


async def test_what_was_accepted_is_read_back_to_the_byte(store: Store) -> None:
    draft = a_call(status_message="Queued", correlation_id="c-1", tool_class=ToolClass.KEYED, scope_revision="3-ab")
    answer = await store.accept(draft)
    assert isinstance(answer, Change)
    assert await store.get(draft.id) == answer.task
    assert answer.task.arguments == draft.arguments
    assert answer.task.params_rest == draft.params_rest
    assert (answer.task.created_ms, answer.task.state) == (START, TaskState.QUEUED)
    assert (answer.task.owner, answer.task.fence) == (store.ownership.owner, store.ownership.fence)


async def test_an_acknowledged_task_is_there_after_a_restart(adapter: SqliteUnderTest) -> None:
    first = adapter.open()
    task = await dispatched(first)
    await first.close()
    second = adapter.open()
    found = await second.get(task.id)
    assert found == task
    await second.close()


async def test_an_unknown_id_is_nobody(store: Store) -> None:
    assert await store.get("tg_nothing") is None
    assert await store.result_bytes("tg_nothing") is None
    assert await store.intend("tg_nothing", byte_hash="b", upstream="u") == UnknownTask("tg_nothing")
    assert await store.advance("tg_nothing", h.Cancelled()) == UnknownTask("tg_nothing")


async def test_an_id_is_given_once(store: Store) -> None:
    task = await accepted(store)
    assert await store.accept(a_call(id=task.id)) == IdTaken(task.id)
    assert await store.accept(a_call(id=task.id), approval=asking(task)) == IdTaken(task.id)
    assert await store.pending_count() == 0


async def test_a_promoted_call_is_accepted_with_its_attempt(store: Store) -> None:
    answer = await store.accept(a_call(), sent=AlreadySent("b1", "reports", START - 45_000))
    assert isinstance(answer, Change)
    assert answer.task.state is TaskState.RUNNING
    assert answer.task.last_attempt is not None
    assert answer.task.last_attempt.sent_at_ms == START - 45_000


async def test_a_call_that_is_out_cannot_ask_first(store: Store) -> None:
    call = a_call()
    with pytest.raises(ValueError, match="already out"):
        await store.accept(call, sent=AlreadySent("b1", "reports", START), approval=asking(call))


async def test_a_result_is_the_same_bytes_on_every_read_and_after_a_restart(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await finished(store)
    assert task.state is TaskState.COMPLETED
    assert [await store.result_bytes(task.id) for _ in range(3)] == [RESULT] * 3
    await store.close()
    again = adapter.open()
    assert await again.result_bytes(task.id) == RESULT
    found = await again.get(task.id)
    assert found is not None
    assert found.outcome == Outcome(OutcomeKind.RESULT, None, size=len(RESULT))
    await again.close()


async def test_a_large_result_is_kept_too_and_forgotten_with_its_task(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    body = b'"' + b"x" * (3 << 20) + b'"'
    task = await finished(store, body)
    assert task.outcome is not None
    assert task.outcome.spill is not None
    assert await store.result_bytes(task.id) == body
    adapter.clock.turn(600_000)
    swept = await store.sweep()
    assert (swept.tasks, swept.files) == (1, 1)
    await store.close()


async def test_a_task_that_is_no_longer_kept_can_still_be_named_until_it_is_swept(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await finished(store)
    adapter.clock.turn(600_000)
    assert await store.get(task.id) is None
    gone = await store.get(task.id, also_gone=True)
    assert gone is not None
    assert gone.id == task.id
    assert await store.result_bytes(task.id) is None
    await store.sweep()
    assert await store.get(task.id, also_gone=True) is None
    await store.close()


async def test_a_large_result_that_comes_too_late_leaves_no_file(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.advance(task.id, h.Cancelled())
    late = await store.advance(task.id, h.ResultCame(b"x" * (2 << 20)))
    assert late == AlreadyOver(TaskState.CANCELLED)
    leftovers = [
        entry for entry in adapter.path.parent.rglob("*") if entry.is_file() and entry.stat().st_size > 1 << 20
    ]
    assert leftovers == []
    await store.close()


async def test_an_error_is_an_outcome_as_well(store: Store) -> None:
    task = await dispatched(store)
    error = b'{"code":-32000,"message":"gone"}'
    answer = await store.advance(task.id, h.ErrorCame(error, "gone", Executed.YES))
    assert isinstance(answer, Change)
    assert answer.task.state is TaskState.FAILED
    assert await store.result_bytes(task.id) == error


async def test_a_once_call_is_intended_once(store: Store) -> None:
    task = await dispatched(store, tool_class=ToolClass.ONCE)
    assert await store.intend(task.id, byte_hash="b1", upstream="reports") == MayNotRepeat(1)
    await store.advance(task.id, h.AttemptVoided())
    again = await store.intend(task.id, byte_hash="b1", upstream="reports")
    assert isinstance(again, Intended)
    assert again.task.attempts == 2


async def test_of_fifty_readers_that_start_the_same_task_one_may_send(store: Store) -> None:
    task = await accepted(store)
    answers = await asyncio.gather(*(store.intend(task.id, byte_hash="b", upstream="u") for _ in range(50)))
    assert sum(isinstance(answer, Intended) for answer in answers) == 1
    assert sum(isinstance(answer, MayNotRepeat) for answer in answers) == 49


async def test_a_cancelled_task_is_never_intended(store: Store) -> None:
    task = await accepted(store)
    await store.advance(task.id, h.Cancelled("enough"))
    assert await store.intend(task.id, byte_hash="b", upstream="u") == AlreadyOver(TaskState.CANCELLED)


async def test_the_last_look_happens_inside_the_intent_and_can_stop_it(store: Store) -> None:
    task = await accepted(store)
    seen: list[tuple[str, int]] = []

    def look(stored: Task, approval: object, now_ms: int) -> h.Happening:
        seen.append((stored.id, now_ms))
        return h.Refused(b'{"code":-32011}', "The policy no longer allows it.")

    answer = await store.intend(task.id, byte_hash="b", upstream="u", look=look)
    assert isinstance(answer, Stopped)
    assert (answer.task.state, answer.task.attempts) == (TaskState.REJECTED, 0)
    assert seen == [(task.id, START)]


async def test_an_illegal_move_is_refused_and_changes_nothing(store: Store) -> None:
    task = await accepted(store)
    refusal = await store.advance(task.id, h.ResultCame(RESULT))
    assert refusal == NotPossible(TaskState.QUEUED, HappeningKind.RESULT_CAME)
    assert await store.get(task.id) == task


async def test_the_end_is_the_end(store: Store) -> None:
    task = await finished(store)
    assert await store.advance(task.id, h.Cancelled()) == AlreadyOver(TaskState.COMPLETED)
    assert await store.result_bytes(task.id) == RESULT


async def test_an_upstreams_task_id_is_kept_with_its_session(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    handle = UpstreamHandle("reports", "up-7", "session-3", Generation.STATEFUL)
    await store.advance(task.id, h.UpstreamTaskKnown(handle))
    await store.close()
    again = adapter.open()
    found = await again.get(task.id)
    assert found is not None
    assert found.upstream_handle == handle
    await again.close()


async def test_progress_is_seen_at_once_and_written_soon(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    store.note(task.id, h.Noted("a third", 1, 3))
    store.note(task.id, h.Noted(progress=2))
    seen = await store.get(task.id)
    assert seen is not None
    assert (seen.status_message, seen.progress, seen.progress_total) == ("a third", 2, 3)
    await store.close()
    again = adapter.open()
    found = await again.get(task.id)
    assert found is not None
    assert (found.status_message, found.progress) == ("a third", 2)
    await again.close()


async def test_progress_of_a_finished_task_is_ignored(store: Store) -> None:
    task = await finished(store)
    store.note(task.id, h.Noted("still here"))
    seen = await store.get(task.id)
    assert seen is not None
    assert seen.status_message is None
    await store.keep("flush", b"1")
    assert await store.get(task.id) == seen


async def test_a_cancel_that_the_upstream_must_hear_of_is_owed_until_told(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.advance(task.id, h.Cancelled(error=b'{"code":1}'))
    await store.close()
    again = adapter.open()
    await again.claim()
    assert [found.id for found in await again.claimed()] == [task.id]
    await again.told_upstream(task.id)
    assert await again.claimed() == ()
    assert await again.result_bytes(task.id) == b'{"code":1}'
    await again.told_upstream("tg_nothing")
    await again.close()


async def test_pages_are_newest_first_and_belong_to_one_caller(store: Store) -> None:
    made = sorted([(await accepted(store)).id for _ in range(5)], reverse=True)
    await accepted(store, caller="dave")
    first = await store.page("carol", limit=2)
    second = await store.page("carol", limit=2, after=first.after)
    third = await store.page("carol", limit=2, after=second.after)
    pages = [*first.tasks, *second.tasks, *third.tasks]
    assert [task.id for task in pages] == made
    assert third.after is None
    assert all(task.arguments == b"" for task in pages)
    assert (await store.page("erin")).tasks == ()


async def test_operators_page_through_everybodys_tasks(store: Store) -> None:
    made = sorted([(await accepted(store, caller=caller)).id for caller in ("carol", "dave", "erin")], reverse=True)
    first = await store.page(None, limit=2)
    rest = await store.page(None, limit=2, after=first.after)
    assert [task.id for task in (*first.tasks, *rest.tasks)] == made
    assert (await store.page(None, server="elsewhere")).tasks == ()


async def test_open_questions_of_a_caller_are_found_across_its_tasks(store: Store) -> None:
    tasks = [await dispatched(store, caller=caller) for caller in ("carol", "carol", "dave")]
    for task in tasks:
        question = TaskQuestion("k", "reports", "elicitation/create", b"{}")
        await store.advance(task.id, h.InputAsked(("k",)), questions=[question])
    found = await store.open_questions("carol")
    assert {task_id for task_id, _ in found} == {tasks[0].id, tasks[1].id}
    assert found[0][1].key == "k"
    assert len(await store.open_questions()) == 3
    await store.advance(tasks[0].id, h.InputSettled(("k",)))
    assert [task_id for task_id, _ in await store.open_questions("carol")] == [tasks[1].id]


async def test_a_cancel_nobody_can_hear_is_forgotten_after_a_day(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.advance(task.id, h.Cancelled())
    adapter.clock.turn(600_000)
    assert (await store.sweep()).tasks == 0
    adapter.clock.turn(24 * 3_600_000)
    assert (await store.sweep()).tasks == 1
    assert await store.claimed() == ()
    await store.close()


async def test_pages_can_be_filtered_by_server_and_state(store: Store) -> None:
    here = await accepted(store, server="files")
    done = await finished(store)
    await accepted(store)
    assert [task.id for task in (await store.page("carol", server="files")).tasks] == [here.id]
    only_done = await store.page("carol", states=frozenset({TaskState.COMPLETED}))
    assert [task.id for task in only_done.tasks] == [done.id]
    assert len((await store.page("carol", states=OPEN)).tasks) == 2


async def test_open_tasks_are_counted_and_limited_per_caller(store: Store) -> None:
    limits = AcceptLimits(open_tasks=2)
    await accepted(store)
    await finished(store)
    assert await store.open_count("carol") == 1
    assert isinstance(await store.accept(a_call(), limits=limits), Change)
    assert await store.accept(a_call(), limits=limits) == TooManyOpen("open tasks", 2)
    assert isinstance(await store.accept(a_call(caller="dave"), limits=limits), Change)
    assert await store.open_count() == 3


async def test_the_limit_holds_for_callers_that_come_all_at_once(store: Store) -> None:
    limits = AcceptLimits(open_tasks=10)
    answers = await asyncio.gather(*(store.accept(a_call(), limits=limits) for _ in range(40)))
    assert sum(isinstance(answer, Change) for answer in answers) == 10


async def test_questions_of_a_task_survive_a_restart_with_their_keys(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    asked = [TaskQuestion(key, "reports", "elicitation/create", b'{"message":"who?"}') for key in ("k1", "k2")]
    await store.advance(task.id, h.InputAsked(("k1", "k2"), "Two questions", b'"state"'), questions=asked)
    await store.close()
    again = adapter.open()
    await again.claim()
    assert [question.key for question in await again.questions(task.id)] == ["k1", "k2"]
    answer = await again.advance(task.id, h.InputSettled(("k1",)), answers={"k1": b'{"action":"accept"}'})
    assert isinstance(answer, Change)
    assert (answer.task.state, answer.task.question_keys) == (TaskState.INPUT_REQUIRED, ("k2",))
    answered = await again.questions(task.id, answered=True)
    assert [(question.key, question.answer) for question in answered] == [("k1", b'{"action":"accept"}')]
    await again.advance(task.id, h.InputSettled(("k2",)))
    assert await again.questions(task.id) == ()
    await again.close()


async def test_a_key_that_is_used_again_after_its_answer_is_a_new_question(store: Store) -> None:
    task = await dispatched(store)
    first = TaskQuestion("k", "reports", "elicitation/create", b'{"n":1}', shown_as="01FIRST")
    await store.advance(task.id, h.InputAsked(("k",)), questions=[first])
    await store.advance(task.id, h.InputAsked(("k",)), questions=[TaskQuestion("k", "reports", "roots/list", b"{}")])
    (still,) = await store.questions(task.id)
    assert (still.method, still.request, still.shown_as) == ("elicitation/create", b'{"n":1}', "01FIRST")
    await store.advance(task.id, h.InputSettled(("k",)), answers={"k": b'{"action":"accept"}'})
    await store.advance(task.id, h.InputAsked(("k",)), questions=[TaskQuestion("k", "reports", "roots/list", b"{}")])
    (again,) = await store.questions(task.id)
    assert (again.method, again.shown_as, again.answer) == ("roots/list", None, None)
    assert await store.questions(task.id, answered=True) == ()


async def test_the_end_of_a_task_withdraws_its_questions(store: Store) -> None:
    task = await dispatched(store)
    question = TaskQuestion("k1", "reports", "elicitation/create", b"{}")
    await store.advance(task.id, h.InputAsked(("k1",)), questions=[question])
    await store.advance(task.id, h.Cancelled())
    assert await store.questions(task.id) == ()


async def test_clocks_that_ran_out_are_found(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    running = await dispatched(store)
    call = a_call()
    waiting = await store.accept(call, approval=asking(call))
    hold = await store.hold(asking(a_call()))
    assert isinstance(waiting, Change)
    due = await store.due()
    assert (due.approvals, due.executions, due.holds) == ((), (), ())
    adapter.clock.turn(60_000)
    assert (await store.due()).executions == (running.id,)
    adapter.clock.turn(540_000)
    due = await store.due()
    assert due.approvals == (waiting.task.id,)
    assert due.holds == (hold.approval.id,)  # type: ignore[union-attr]
    await store.close()


async def test_an_open_task_is_never_swept_and_a_finished_one_when_its_time_is_over(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    running = await dispatched(store)
    done = await finished(store)
    adapter.clock.turn(599_999)
    assert (await store.sweep()).tasks == 0
    assert await store.get(done.id) is not None
    adapter.clock.turn(1)
    assert await store.get(done.id) is None
    assert await store.result_bytes(done.id) is None
    assert (await store.page("carol")).tasks[0].id == running.id
    assert (await store.sweep()).tasks == 1
    assert await store.get(running.id) is not None
    assert await store.advance(done.id, h.Cancelled()) == UnknownTask(done.id)
    await store.close()


async def test_a_key_gives_the_same_task_for_the_same_call(store: Store) -> None:
    first = await store.accept(a_call(), key="k")
    assert isinstance(first, Change)
    again = await store.accept(a_call(), key="k")
    assert again == SameCall(first.task)
    assert await store.accept(a_call(digest="sha256:other"), key="k") == KeyTaken(first.task.id)
    assert await store.accept(a_call(tool="other"), key="k") == KeyTaken(first.task.id)
    assert isinstance(await store.accept(a_call(principal="dave"), key="k"), Change)
    assert isinstance(await store.accept(a_call()), Change)


async def test_a_hundred_repeats_at_once_make_one_task(store: Store) -> None:
    answers = await asyncio.gather(*(store.accept(a_call(), key="k") for _ in range(100)))
    assert sum(isinstance(answer, Change) for answer in answers) == 1
    assert sum(isinstance(answer, SameCall) for answer in answers) == 99


async def test_a_key_outlives_its_task_and_then_says_that_the_tool_ran(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    draft = a_call()
    await store.accept(draft, key="k")
    await store.intend(draft.id, byte_hash="b", upstream="u")
    await store.advance(draft.id, h.ResultCame(RESULT))
    adapter.clock.turn(600_000)
    gone = ResultGone(draft.id, Executed.YES)
    assert await store.accept(a_call(), key="k") == gone
    await store.sweep()
    assert await store.accept(a_call(), key="k") == gone
    adapter.clock.turn(24 * 3_600_000)
    assert (await store.sweep()).keys == 1
    assert isinstance(await store.accept(a_call(), key="k"), Change)
    await store.close()


async def test_a_key_older_than_a_day_is_free_again(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    await store.accept(a_call(), key="k")
    adapter.clock.turn(24 * 3_600_000)
    assert isinstance(await store.accept(a_call(), key="k"), Change)
    await store.close()


async def test_a_stale_owners_write_changes_nothing(adapter: SqliteUnderTest) -> None:
    old = adapter.open()
    task = await dispatched(old)
    new = adapter.open_rival()
    assert new.ownership.fence > old.ownership.fence
    assert await new.claim() == 1
    stale = StaleOwner(old.ownership)
    assert await old.advance(task.id, h.ResultCame(RESULT)) == stale
    assert await old.intend(task.id, byte_hash="b", upstream="u") == stale
    assert await old.accept(a_call()) == stale
    old.note(task.id, h.Noted("I am still here"))
    old.record(Entry(0, "late"))
    found = await new.get(task.id)
    assert found is not None
    assert (found.state, found.fence) == (TaskState.RUNNING, new.ownership.fence)
    await old.close()
    after = await new.get(task.id)
    assert after == found
    assert all(row.entry.event != "late" for row in await new.audit_rows())
    await new.close()


async def test_a_task_of_another_fence_is_out_of_reach_before_it_is_claimed(adapter: SqliteUnderTest) -> None:
    first = adapter.open()
    task = await accepted(first)
    await first.close()
    second = adapter.open(owner="second")
    assert await second.intend(task.id, byte_hash="b", upstream="u") == StaleOwner(second.ownership)
    assert await second.claim() == 1
    assert isinstance(await second.intend(task.id, byte_hash="b", upstream="u"), Intended)
    await second.close()


async def test_the_next_owner_finds_every_open_task_in_pages(adapter: SqliteUnderTest) -> None:
    first = adapter.open()
    tasks = sorted([(await accepted(first)).id for _ in range(5)])
    await finished(first)
    await first.close()
    second = adapter.open()
    assert await second.claim() == 5
    page = await second.claimed(limit=3)
    rest = await second.claimed(after=page[-1].id, limit=3)
    assert [task.id for task in (*page, *rest)] == tasks
    assert all(task.fence == second.ownership.fence and task.arguments for task in page)
    await second.close()


async def test_every_attempt_keeps_the_fence_it_was_made_under(adapter: SqliteUnderTest) -> None:
    first = adapter.open()
    task = await dispatched(first, tool_class=ToolClass.READ)
    await first.close()
    second = adapter.open()
    await second.claim()
    again = await second.intend(task.id, byte_hash="b1", upstream="reports")
    assert isinstance(again, Intended)
    assert again.task.last_attempt is not None
    assert (again.task.last_attempt.number, again.task.last_attempt.fence) == (2, second.ownership.fence)
    assert again.task.last_attempt.state is AttemptState.DISPATCHING
    await second.close()


async def test_a_secret_is_kept_by_whoever_comes_first(adapter: SqliteUnderTest) -> None:
    store = adapter.open()
    assert await store.keep("sealing", b"one") == b"one"
    assert await store.keep("sealing", b"two") == b"one"
    await store.close()
    again = adapter.open()
    assert await again.keep("sealing", b"three") == b"one"
    await again.close()
