"""Slots of a server are shared fairly, however many calls wait."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.errors import CallerError
from taskgate.core.fair_queue import FairQueue, QueuePlace


def test_slots_go_to_callers_with_the_fewest() -> None:
    queue = FairQueue(slots=2)
    assert [queue.enter("greedy", f"g{i}") for i in range(4)] == [
        QueuePlace.RUNS,
        QueuePlace.RUNS,
        QueuePlace.WAITS,
        QueuePlace.WAITS,
    ]
    assert queue.enter("modest", "m0") is QueuePlace.WAITS
    assert queue.leave("greedy") == ["m0"]
    assert (queue.running, queue.waiting) == (2, 2)
    assert queue.leave("greedy") == ["g2"]
    assert queue.leave("modest") == ["g3"]
    assert queue.leave("greedy") == []
    assert queue.leave("greedy") == []
    assert queue.running == 0


def test_callers_with_equal_load_alternate() -> None:
    queue = FairQueue(slots=1)
    queue.enter("x", "x0")
    for name in ("a", "b"):
        for i in range(2):
            queue.enter(name, f"{name}{i}")
    order = [queue.leave("x")[0]]
    for _ in range(3):
        order += queue.leave(str(order[-1])[0])
    assert order == ["a0", "b0", "a1", "b1"]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("others", [["greedy"] * 1_000, [f"greedy/{n}" for n in range(1_000)]])
@pytest.mark.parametrize("modest", ["modest", "modest/a"])
def test_first_call_of_a_caller_waits_for_at_most_one_call_of_others(
    slots: int, others: list[str], modest: str
) -> None:
    """However many others wait, of one caller or of one tenant, and however often they come back."""
    queue = FairQueue(slots=slots, max_waiting=10_000)
    calls = [(name, number) for number, name in enumerate(others)]
    running = [call for call in calls if queue.enter(call[0], call, limited=False) is QueuePlace.RUNS]
    for _ in range(50):
        name, number = running.pop(0)
        admitted = queue.leave(name)
        running += [call for call in calls if call in admitted]
        queue.enter(name, (name, number), limited=False)
    assert queue.enter(modest, "first", limited=False) is QueuePlace.WAITS
    assert queue.leave(running[0][0]) == ["first"]


def test_the_queue_is_limited_and_a_refusal_states_executed_no() -> None:
    queue = FairQueue(slots=1, max_waiting=3, max_waiting_per_caller=2)
    queue.enter("a", 0)
    queue.enter("a", 1)
    queue.enter("a", 2)
    with pytest.raises(CallerError) as caught:
        queue.enter("a", 3)
    assert (caught.value.error_type, caught.value.executed) == ("overloaded", "no")
    queue.enter("b", 4)
    with pytest.raises(CallerError):
        queue.enter("c", 5)


def test_a_waiting_call_may_leave_the_queue_once() -> None:
    queue = FairQueue(slots=1)
    queue.enter("a", 0)
    queue.enter("b", 1)
    queue.enter("b", 2)
    assert queue.abandon("b", 1)
    assert not queue.abandon("b", 1)
    assert queue.abandon("b", 2)
    assert not queue.abandon("nobody", 1)
    assert queue.waiting == 0


def test_more_slots_admit_waiting_calls_and_fewer_stop_none() -> None:
    queue = FairQueue(slots=1)
    queue.enter("a", 0)
    queue.enter("a", 1)
    assert queue.resize(2) == [1]
    assert queue.resize(1) == []
    assert queue.running == 2
    queue.enter("b", 2)
    assert queue.leave("a") == []
    assert queue.leave("a") == [2]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "abandon"])), max_size=60))
def test_any_order_of_events_keeps_the_limit_and_loses_no_ticket(steps: list[tuple[str, str]]) -> None:
    queue = FairQueue(slots=2)
    running: list[tuple[str, int]] = []
    waiting: dict[int, str] = {}
    for number, (caller, step) in enumerate(steps):
        mine = [entry for entry in running if entry[0] == caller]
        if step == "enter":
            if queue.enter(caller, number) is QueuePlace.RUNS:
                running.append((caller, number))
            else:
                waiting[number] = caller
        elif step == "leave" and mine:
            running.remove(mine[0])
            running.extend((waiting.pop(ticket), ticket) for ticket in queue.leave(caller))  # type: ignore
        elif step == "abandon" and caller in waiting.values():
            ticket = next(t for t, c in waiting.items() if c == caller)
            assert queue.abandon(caller, ticket)
            del waiting[ticket]
        assert queue.running == len(running) <= 2
        assert queue.waiting == len(waiting)
        assert not waiting or len(running) == 2


def test_a_queue_reports_beforehand_whether_it_is_full() -> None:
    queue = FairQueue(slots=1, max_waiting=1)
    assert not queue.is_full_for("a")
    queue.enter("a", 0)
    assert not queue.is_full_for("b")
    queue.enter("b", 1)
    assert queue.is_full_for("c")


def test_leaving_without_a_slot_frees_no_slot() -> None:
    queue = FairQueue(1)
    assert queue.enter("ann", 1) is QueuePlace.RUNS
    assert queue.enter("bob", 2) is QueuePlace.WAITS
    assert queue.leave("carol") == []
    assert (queue.running, queue.waiting) == (1, 1)
    assert queue.leave("ann") == [2]
    assert (queue.running, queue.waiting) == (1, 0)


def test_other_limits_on_waiting_hold_at_once() -> None:
    queue = FairQueue(1)
    queue.enter("ann", 1)
    queue.enter("ann", 2)
    assert not queue.is_full_for("bob")
    queue.limit_waiting(1, 1, 1)
    assert queue.is_full_for("bob")


def test_a_free_slot_goes_to_the_tenant_with_the_fewest_running() -> None:
    queue = FairQueue(slots=3)
    for number, caller in enumerate(("big/a", "big/b", "small/c")):
        assert queue.enter(caller, number) is QueuePlace.RUNS
    # A caller of the large tenant without a running call is first in the queue; the small tenant has fewer calls.
    assert queue.enter("big/d", "d") is QueuePlace.WAITS
    assert queue.enter("small/c", "c") is QueuePlace.WAITS
    assert queue.leave("big/a") == ["d"]
    assert queue.leave("big/b") == ["c"]
    assert queue.enter("big/e", "e") is QueuePlace.WAITS
    assert queue.enter("https://issuer.example#ann", "ann") is QueuePlace.WAITS
    assert queue.leave("small/c") == ["ann"]


def test_more_callers_get_a_tenant_no_more_slots() -> None:
    queue = FairQueue(slots=2)
    assert queue.enter("big/a", "a") is QueuePlace.RUNS
    assert queue.enter("small/x", "x0") is QueuePlace.RUNS
    for caller in ("big/b", "big/c", "big/d"):
        assert queue.enter(caller, caller) is QueuePlace.WAITS
    for ticket in ("x1", "x2", "x3"):
        assert queue.enter("small/x", ticket) is QueuePlace.WAITS
    # The callers of the large tenant have waited longer, and none of them has a running call.
    assert queue.leave("small/x") == ["x1"]
    assert queue.leave("big/a") == ["big/b"]
    assert queue.leave("small/x") == ["x2"]
    assert queue.leave("big/b") == ["big/c"]


def test_one_tenant_does_not_fill_the_queue() -> None:
    queue = FairQueue(slots=1, max_waiting=10, max_waiting_per_caller=10, max_waiting_per_tenant=2)
    queue.enter("big/a", 0)
    for caller in ("big/a", "big/b"):
        queue.enter(caller, caller)
    assert queue.is_full_for("big/c")
    assert not queue.is_full_for("small/c")
    assert queue.abandon("big/b", "big/b")
    assert not queue.is_full_for("big/c")


def test_a_call_that_runs_already_takes_a_slot_even_beyond_the_limit() -> None:
    queue = FairQueue(slots=1)
    assert queue.enter("ann", "first") is QueuePlace.RUNS
    queue.run_at_once("bob")
    assert queue.running == 2
    assert queue.enter("ann", "second") is QueuePlace.WAITS
    assert queue.leave("bob") == []
    assert queue.leave("ann") == ["second"]


def _reference_choice(running: list[str], waiting: list[tuple[str, int, int]]) -> tuple[str, int, int]:
    """The reference, by examining all waiting calls: (caller, when it was served last or began to wait, ticket)."""

    def rank(entry: tuple[str, int, int]) -> tuple[int, int, int, int]:
        caller, since, ticket = entry
        tenant = caller.partition("/")[0]
        of_tenant = sum(one.partition("/")[0] == tenant for one in running)
        return of_tenant, running.count(caller), since, ticket

    return min(waiting, key=rank)


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.sampled_from(["a/x", "a/y", "a/z", "b/x", "b/y", "carol", "dan"]),
            st.sampled_from(["enter", "enter", "leave", "abandon", "at once"]),
        ),
        max_size=120,
    ),
)
def test_slots_are_assigned_by_the_rules(slots: int, steps: list[tuple[str, str]]) -> None:
    queue = FairQueue(slots=slots)
    running: list[str] = []
    tickets: dict[str, list[int]] = {}
    since: dict[str, int] = {}
    now = 0
    for number, (caller, step) in enumerate(steps):
        admitted: list[object] = []
        if step == "enter":
            if queue.enter(caller, number, limited=False) is QueuePlace.RUNS:
                running.append(caller)
            else:
                if caller not in tickets:
                    since[caller], now = now, now + 1
                tickets.setdefault(caller, []).append(number)
        elif step == "leave" and caller in running:
            running.remove(caller)
            admitted = list(queue.leave(caller))
        elif step == "at once":
            queue.run_at_once(caller)
            running.append(caller)
        elif step == "abandon" and caller in tickets:
            assert queue.abandon(caller, tickets[caller].pop())
        expected: list[object] = []
        tickets = {caller: mine for caller, mine in tickets.items() if mine}
        while step == "leave" and tickets and len(running) < slots:
            waiting = [(caller, since[caller], mine[0]) for caller, mine in tickets.items()]
            who, _, ticket = _reference_choice(running, waiting)
            expected.append(ticket)
            running.append(who)
            tickets[who].pop(0)
            since[who], now = now, now + 1
            tickets = {caller: mine for caller, mine in tickets.items() if mine}
        assert admitted == expected
        assert (queue.running, queue.waiting) == (len(running), sum(map(len, tickets.values())))


def _served(callers: list[str], calls: int) -> float:
    """CPU seconds to queue this many calls, and to serve half of them while the others are cancelled."""
    began = time.process_time()
    queue = FairQueue(slots=50)
    waiting: dict[object, str] = {}
    running: list[str] = []
    for number in range(calls):
        caller = callers[number % len(callers)]
        if queue.enter(caller, number, limited=False) is QueuePlace.WAITS:
            waiting[number] = caller
        else:
            running.append(caller)
    for number in list(waiting)[calls // 2 :]:  # type: ignore[assignment]
        assert queue.abandon(waiting.pop(number), number)
    while running:
        running += [waiting.pop(ticket) for ticket in queue.leave(running.pop(0))]
    assert (queue.running, queue.waiting, waiting) == (0, 0, {})
    return time.process_time() - began


@pytest.mark.parametrize("callers", [1, 3, 300])
def test_five_hundred_waiting_calls_are_served_or_give_up(callers: int) -> None:
    _served([f"acme/caller-{number}" for number in range(callers)], 500)


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    "callers",
    [["ann"], ["acme/ann"], [f"caller-{i}" for i in range(10_000)], [f"acme/caller-{i}" for i in range(10_000)]],
    ids=["one caller", "one caller of a tenant", "10,000 callers", "10,000 callers of one tenant"],
)
def test_ten_thousand_calls_take_no_longer_than_those_of_twelve_callers(callers: list[str]) -> None:
    """Examining all waiting calls at every step takes hundreds of times as long."""
    twelve = [f"caller-{i}" for i in range(12)]
    usual = min(_served(twelve, 10_000) for _ in range(3))
    assert min(_served(callers, 10_000) for _ in range(3)) < 4 * usual


def test_call_that_was_accepted_before_waits_beyond_every_limit() -> None:
    queue = FairQueue(slots=1, max_waiting=1, max_waiting_per_caller=1, max_waiting_per_tenant=1)
    for ticket in range(10):
        queue.enter("acme/ann", ticket, limited=False)
    assert (queue.running, queue.waiting) == (1, 9)
