"""How tasks and their questions are found again, and how many there may be. Each test runs on each adapter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.contracts.store_under_test import OpenTasksOf, StoreUnderTest, a_call
from tests.contracts.task_steps import accepted, dispatched, finished

from taskgate.core.errors import Executed
from taskgate.core.ids import creation_ms
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent
from taskgate.ports.store import Store
from taskgate.ports.store_answers import (
    Change,
    LimitHolder,
    TaskFilter,
    TaskQuestion,
    TooManyOpen,
)
from taskgate.store.operations.task_limits import AcceptLimits
from taskgate.store.operations.task_queries import EndedBadly, FindTasks, OpenTasks, QuestionsOf, TasksPage
from taskgate.store.operations.tasks import Accept, Advance
from taskgate.store.operations.upkeep import Claim, ClaimedTasks, sweep


async def test_pages_are_newest_first_and_belong_to_one_caller(store: Store) -> None:
    made = sorted([(await accepted(store)).id for _ in range(5)], reverse=True)
    await accepted(store, caller="dave")
    first = await store.ask(TasksPage("carol", limit=2))
    second = await store.ask(TasksPage("carol", limit=2, after=first.after))
    third = await store.ask(TasksPage("carol", limit=2, after=second.after))
    pages = [*first.tasks, *second.tasks, *third.tasks]
    assert [task.id for task in pages] == made
    assert third.after is None
    assert all(task.arguments == b"" for task in pages)
    assert (await store.ask(TasksPage("erin"))).tasks == ()


async def test_operators_page_through_tasks_of_all_callers(store: Store) -> None:
    made = sorted([(await accepted(store, caller=caller)).id for caller in ("carol", "dave", "erin")], reverse=True)
    first = await store.ask(TasksPage(None, limit=2))
    rest = await store.ask(TasksPage(None, limit=2, after=first.after))
    assert [task.id for task in (*first.tasks, *rest.tasks)] == made
    assert (await store.ask(TasksPage(None, server="elsewhere"))).tasks == ()


async def test_an_undeliverable_cancellation_is_deleted_after_a_day(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    await store.do(Advance(task.id, h.Cancelled()))
    adapter.clock.turn(600_000)
    assert (await sweep(store)).tasks == 0
    adapter.clock.turn(24 * 3_600_000)
    assert (await sweep(store)).tasks == 1
    assert await store.ask(ClaimedTasks()) == ()
    await store.close()


async def test_pages_can_be_filtered_by_server_and_state(store: Store) -> None:
    here = await accepted(store, server="files")
    done = await finished(store)
    await accepted(store)
    assert [task.id for task in (await store.ask(TasksPage("carol", server="files"))).tasks] == [here.id]
    only_done = await store.ask(TasksPage("carol", states=frozenset({TaskState.COMPLETED})))
    assert [task.id for task in only_done.tasks] == [done.id]
    assert len((await store.ask(TasksPage("carol", states=OPEN))).tasks) == 2


async def test_open_tasks_are_counted_and_limited_per_caller(store: Store) -> None:
    limits = AcceptLimits(open_tasks=2)
    await accepted(store)
    await finished(store)
    assert await store.ask(OpenTasksOf("carol")) == 1
    assert isinstance(await store.do(Accept(a_call(), limits=limits)), Change)
    assert await store.do(Accept(a_call(), limits=limits)) == TooManyOpen("open tasks", 2, "open_tasks_per_caller")
    assert isinstance(await store.do(Accept(a_call(caller="dave"), limits=limits)), Change)
    assert await store.ask(OpenTasks()) == 3


def anonymous(session: str, address: str = "10.0.0.1") -> Task:
    return a_call(principal="anonymous", caller=session, limited_as=f"address:{address}")


async def test_open_tasks_of_anonymous_callers_are_limited_by_conversation_and_by_address(store: Store) -> None:
    limits = AcceptLimits(open_tasks=2)
    first = anonymous("session-1")
    assert isinstance(await store.do(Accept(first, limits=limits)), Change)
    assert isinstance(await store.do(Accept(anonymous("session-1"), limits=limits)), Change)
    refused = await store.do(Accept(anonymous("session-1"), limits=limits))
    assert isinstance(refused, TooManyOpen)
    assert (refused.limit, refused.setting, refused.holder) == (2, "open_tasks_per_caller", LimitHolder.CONVERSATION)
    # The same name elsewhere is another caller; a session that ends some may begin others.
    assert isinstance(await store.do(Accept(anonymous("session-1", "10.0.0.2"), limits=limits)), Change)
    assert isinstance(await store.do(Advance(first.id, h.Cancelled("enough"))), Change)
    assert isinstance(await store.do(Accept(anonymous("session-1"), limits=limits)), Change)
    for number in range(2, 11):
        for _ in range(2):
            assert isinstance(await store.do(Accept(anonymous(f"session-{number}"), limits=limits)), Change)
    refused = await store.do(Accept(anonymous("session-11"), limits=limits))
    assert isinstance(refused, TooManyOpen)
    assert (refused.limit, refused.setting, refused.holder) == (20, "open_tasks_per_caller", LimitHolder.ADDRESS)


async def test_anonymous_requests_without_a_conversation_have_the_limit_of_their_address(store: Store) -> None:
    limits = AcceptLimits(open_tasks=1)
    for number in range(10):
        assert isinstance(await store.do(Accept(anonymous(f"request:{number}"), limits=limits)), Change)
    refused = await store.do(Accept(anonymous("request:10"), limits=limits))
    assert isinstance(refused, TooManyOpen)
    assert (refused.limit, refused.holder) == (10, LimitHolder.ADDRESS)


async def test_limit_of_a_conversation_holds_for_concurrent_calls(store: Store) -> None:
    limits = AcceptLimits(open_tasks=3)
    made = await asyncio.gather(
        store.do(Accept(anonymous("session-1"))),
        *(store.do(Accept(anonymous("session-1"), limits=limits)) for _ in range(6)),
        *(store.do(Accept(anonymous("session-2"), limits=limits)) for _ in range(6)),
    )
    assert [type(one) for one in made].count(Change) == 6


async def test_what_was_accepted_without_a_limit_counts_towards_the_next_one_in_the_same_commit(store: Store) -> None:
    limits = AcceptLimits(open_tasks=2)
    made = await asyncio.gather(
        store.do(Accept(a_call(), limits=limits)), store.do(Accept(a_call())), store.do(Accept(a_call(), limits=limits))
    )
    assert [type(one) for one in made] == [Change, Change, TooManyOpen]


async def test_the_limit_holds_for_concurrent_callers(store: Store) -> None:
    limits = AcceptLimits(open_tasks=10)
    answers = await asyncio.gather(*(store.do(Accept(a_call(), limits=limits)) for _ in range(40)))
    assert sum(isinstance(answer, Change) for answer in answers) == 10


async def test_questions_of_a_task_survive_a_restart_with_their_keys(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    task = await dispatched(store)
    asked = [TaskQuestion(key, "reports", "elicitation/create", b'{"message":"who?"}') for key in ("k1", "k2")]
    await store.do(Advance(task.id, h.InputRequested(("k1", "k2"), "Two questions", b'"state"'), questions=asked))
    await store.close()
    again = adapter.open()
    await again.do(Claim())
    assert [question.key for question in await again.ask(QuestionsOf(task.id))] == ["k1", "k2"]
    answer = await again.do(Advance(task.id, h.InputSettled(("k1",)), answers={"k1": b'{"action":"accept"}'}))
    assert isinstance(answer, Change)
    assert (answer.task.state, answer.task.question_keys) == (TaskState.INPUT_REQUIRED, ("k2",))
    answered = await again.ask(QuestionsOf(task.id, answered=True))
    assert [(question.key, question.answer) for question in answered] == [("k1", b'{"action":"accept"}')]
    await again.do(Advance(task.id, h.InputSettled(("k2",))))
    assert await again.ask(QuestionsOf(task.id)) == ()
    await again.close()


async def test_first_answer_to_a_question_is_kept(store: Store) -> None:
    task = await dispatched(store)
    asked = [TaskQuestion(key, "reports", "elicitation/create", b"{}") for key in ("k1", "k2")]
    await store.do(Advance(task.id, h.InputRequested(("k1", "k2")), questions=asked))
    for answer in (b'{"action":"accept"}', b'{"action":"decline"}'):
        await store.do(Advance(task.id, h.InputSettled(("k1",)), answers={"k1": answer}))
    assert [one.answer for one in await store.ask(QuestionsOf(task.id, answered=True))] == [b'{"action":"accept"}']


async def test_a_key_that_is_used_again_after_its_answer_is_a_new_question(store: Store) -> None:
    task = await dispatched(store)
    first = TaskQuestion("k", "reports", "elicitation/create", b'{"n":1}', shown_as="01FIRST")
    await store.do(Advance(task.id, h.InputRequested(("k",)), questions=[first]))
    await store.do(
        Advance(task.id, h.InputRequested(("k",)), questions=[TaskQuestion("k", "reports", "roots/list", b"{}")])
    )
    (still,) = await store.ask(QuestionsOf(task.id))
    assert (still.method, still.request, still.shown_as) == ("elicitation/create", b'{"n":1}', "01FIRST")
    await store.do(Advance(task.id, h.InputSettled(("k",)), answers={"k": b'{"action":"accept"}'}))
    await store.do(
        Advance(task.id, h.InputRequested(("k",)), questions=[TaskQuestion("k", "reports", "roots/list", b"{}")])
    )
    (again,) = await store.ask(QuestionsOf(task.id))
    assert (again.method, again.shown_as, again.answer) == ("roots/list", None, None)
    assert await store.ask(QuestionsOf(task.id, answered=True)) == ()


async def test_the_end_of_a_task_withdraws_its_questions(store: Store) -> None:
    task = await dispatched(store)
    question = TaskQuestion("k1", "reports", "elicitation/create", b"{}")
    await store.do(Advance(task.id, h.InputRequested(("k1",)), questions=[question]))
    await store.do(Advance(task.id, h.Cancelled()))
    assert await store.ask(QuestionsOf(task.id)) == ()


async def test_tasks_are_found_by_caller_tool_server_time_and_text(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    first = await accepted(store, caller="carol")
    second = await dispatched(store, caller="dave")
    third = await finished(store, caller="carol")
    every = sorted((first.id, second.id, third.id), reverse=True)
    created = creation_ms(first.id) or 0

    async def found(**wanted: Any) -> list[str]:
        return [task.id for task in (await store.ask(FindTasks(TaskFilter(**wanted)))).tasks]

    assert await found() == every
    assert set(await found(principal=first.principal)) == {
        task.id for task in (first, second, third) if task.principal == first.principal
    }
    assert await found(principal="nobody") == []
    assert await found(since_ms=created, until_ms=created + 1) == every
    assert await found(since_ms=created + 1) == await found(until_ms=created) == []
    assert await found(states=frozenset({TaskState.RUNNING})) == [second.id]
    assert await found(server=first.server, scope=first.scope, tool=first.wire_name[1:]) == every
    assert await found(scope="elsewhere") == await found(tool="no such") == await found(text="%") == []
    assert await found(text=second.id[8:].lower()) == [second.id]
    page = await store.ask(FindTasks(TaskFilter(), limit=2))
    assert [task.id for task in (await store.ask(FindTasks(TaskFilter(), after=page.after))).tasks] == every[2:]


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("Zahlen/Ärger", True),
        ('"stop"', True),
        ("a\\B", True),
        ("50%_", True),
        ("50_%", False),
        ("日本", True),
        ("ärger", False),
        ("night 日本 ZAHLEN 50%_", True),
        ("night 日本 zahlen elsewhere", False),
        ("night nowhere", False),
        ("night  ", True),
        (" ", False),
        ("!", False),
        ("\0", False),
        ("night " + "n" * 60_000, False),
    ],
)
async def test_every_part_of_a_text_is_found_in_names_as_it_was_written_and_ascii_in_any_case(
    store: Store, text: str, matches: bool
) -> None:
    task = await dispatched(store, principal='zahlen/Ärger "Stop" a\\b 日本 50%_', scope="night")
    await dispatched(store)
    for states in (None, OPEN):
        found = (await store.ask(FindTasks(TaskFilter(text=text, states=states)))).tasks
        assert [one.id for one in found] == ([task.id] if matches else [])


@pytest.mark.parametrize("text", ["principal", "created_ms", "marker4417", "execution_budget"])
async def test_neither_the_names_of_fields_nor_the_text_of_a_server_is_searched(store: Store, text: str) -> None:
    """A server's text may be encrypted at rest; what a search finds must not depend on that."""
    task = await dispatched(store)
    assert isinstance(await store.do(Advance(task.id, h.Noted("marker4417", 1.0, 2.0))), Change)
    assert (await store.ask(FindTasks(TaskFilter(text=text)))).tasks == ()


async def test_what_ended_without_a_result_is_found_by_when_it_ended(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    ended: list[tuple[Task, TransitionEvent]] = [
        (await accepted(store), h.Cancelled()),
        (await dispatched(store, principal="acme/erin"), h.ErrorReceived(b"{}", "broken", Executed.YES)),
        (await dispatched(store), h.ContactLost(b"{}", "silent")),
        (await accepted(store), h.RunRefused(b"{}", "no")),
    ]
    for task, event in ended:
        adapter.clock.turn(1_000)
        assert isinstance(await store.do(Advance(task.id, event)), Change)
    await finished(store)
    await accepted(store)
    last_first = [task.id for task, _ in reversed(ended)]

    async def found(since_ms: int = 0, limit: int = 10, **whose: Any) -> list[str]:
        return [task.id for task in await store.ask(EndedBadly(TaskFilter(**whose), since_ms, limit))]

    assert await found() == last_first
    assert await found(limit=2) == last_first[:2]
    assert await found(adapter.clock.now_ms - 1_000) == last_first[:2]
    assert await found(tenant="acme") == await found(principal="acme/erin") == [ended[1][0].id]
    await store.close()


async def test_tasks_of_a_tenant_are_found_by_the_beginning_of_the_principals_name(store: Store) -> None:
    own = await accepted(store, principal="acme/erin")
    await accepted(store, principal="acmes/erin")
    await accepted(store, principal="https://acme/#erin")

    async def found(**wanted: Any) -> list[str]:
        return [task.id for task in (await store.ask(FindTasks(TaskFilter(**wanted)))).tasks]

    assert await found(tenant="acme") == await found(tenant="acme", principal="acme/erin") == [own.id]
    assert await found(tenant="acm") == await found(tenant="acme", principal="acmes/erin") == []
