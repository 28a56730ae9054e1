"""Which late calls are refused: those in a persistent queue, not those after a single stall or while others use the CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pytest

from taskgate.core.lateness import AGAIN_WITHIN, BUSY_SHARE, LONG_QUEUE, Lateness, TimeAndCpu

TARGET_S = 0.5
WORK_S, REFUSAL_S = 0.001, 0.0001
"""What answering and refusing a call costs in the model."""


@dataclass
class Outcome:
    waits: list[float] = field(default_factory=list)
    """Of the calls that were answered."""
    refused: int = 0
    waits_before: int = 0
    """How many were answered before the first was refused."""


class Policy(Protocol):
    def refuses(self, now: TimeAndCpu, waited_s: float) -> bool: ...


class Stall(NamedTuple):
    """From a point in time, the worker does something else, or is stopped because other programs use the CPU."""

    at: float
    seconds: float
    is_own: bool = True


def simulate(policy: Policy, per_second: float, seconds: float, stalls: Iterable[Stall] = ()) -> Outcome:
    """Simulate one worker with calls at equal intervals, and with stalls."""
    arrivals = deque(number / per_second for number in range(int(per_second * seconds)))
    waiting_stalls, now, used, outcome = deque(stalls), 0.0, 0.0, Outcome()
    while arrivals:
        if waiting_stalls and now >= waiting_stalls[0].at:
            stall = waiting_stalls.popleft()
            now += stall.seconds
            used += stall.seconds if stall.is_own else 0.0
        now = max(now, arrivals[0])
        waited = now - arrivals.popleft()
        if policy.refuses(TimeAndCpu(now, used), waited):
            outcome.waits_before = outcome.waits_before or len(outcome.waits)
            outcome.refused += 1
            work = REFUSAL_S
        else:
            outcome.waits.append(waited)
            work = WORK_S
        now, used = now + work, used + work
    return outcome


def stopped(share: float, seconds: int) -> Iterator[Stall]:
    """Stalls that leave the worker this share of the CPU after 1.5 seconds without any, so that some calls always wait."""
    yield Stall(0.0, 1.5, is_own=False)
    for half in range(3, 2 * seconds):
        yield Stall((half + share) / 2, (1 - share) / 2, is_own=False)


def late_calls(policy: Policy, share: float, calls: int, step_s: float, waited_s: float = TARGET_S * 2) -> list[bool]:
    """The decisions about calls at equal intervals, none of them on time, by a process that uses this share of a core."""
    return [
        policy.refuses(TimeAndCpu(number * step_s, number * step_s * share), waited_s + number * step_s)
        for number in range(calls)
    ]


@pytest.mark.parametrize("stall_s", [0.1, 0.51, 0.9, 5.0])
def test_calls_that_one_stall_made_late_are_answered(stall_s: float) -> None:
    """At a tenth of the capacity: calls that arrived during the stall are answered within the interval, and no queue remains."""
    found = simulate(Lateness(TARGET_S), 100, 20, stalls=[Stall(5.0, stall_s)])
    assert found.refused == 0
    assert max(found.waits) == pytest.approx(stall_s, abs=0.05)


def test_occasional_stalls_are_no_overload() -> None:
    stalls = [Stall(float(second), 0.7) for second in range(3, 60, 6)]
    assert simulate(Lateness(TARGET_S), 100, 60, stalls).refused == 0


def test_two_late_calls_with_nothing_between_them_are_two_delays() -> None:
    policy = Lateness(TARGET_S)
    assert not policy.refuses(TimeAndCpu(10.0, 10.0), 0.6)
    assert not policy.refuses(TimeAndCpu(10.0 + TARGET_S * 3, 10.0 + TARGET_S * 3), 0.6)


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0, 8.0])
def test_a_queue_that_stands_is_refused_and_the_others_wait_no_longer_than_the_target(factor: float) -> None:
    seconds, offered = 30.0, factor / WORK_S
    found = simulate(Lateness(TARGET_S), offered, seconds)
    assert max(found.waits[found.waits_before :]) <= TARGET_S
    # Before the overload is detected, no request waits longer than target and interval either.
    assert max(found.waits) <= 2 * TARGET_S
    # It continues to serve what it can; the rest of its time is spent on refusals.
    possible = (1 - offered * REFUSAL_S) / (WORK_S - REFUSAL_S)
    assert len(found.waits) == pytest.approx(possible * seconds, rel=0.1)


def test_load_below_the_capacity_is_never_refused() -> None:
    assert simulate(Lateness(TARGET_S), 0.95 / WORK_S, 30).refused == 0


def test_an_overload_that_comes_back_soon_is_refused_at_once_and_a_later_one_is_given_an_interval() -> None:
    policy = Lateness(TARGET_S)

    def refuses(at: float, waited_s: float) -> bool:
        return policy.refuses(TimeAndCpu(at, at), waited_s)

    assert not refuses(0.0, 0.6)
    assert not refuses(TARGET_S * 0.9, 0.6)
    assert refuses(TARGET_S * 1.1, 0.6)
    assert not refuses(1.0, 0.1)
    assert refuses(2.0, 0.6)
    assert not refuses(2.1, 0.0)
    assert not refuses(2.1 + AGAIN_WITHIN * TARGET_S, 0.6)


def test_an_overload_after_idle_time_is_given_an_interval() -> None:
    policy = Lateness(TARGET_S)
    assert late_calls(policy, 1.0, 20, 0.1)[-1]
    assert not policy.refuses(TimeAndCpu(2.0, 2.0), 0.0)
    # In the three seconds since then the process used half a second.
    assert not policy.refuses(TimeAndCpu(5.0, 2.5), 0.6)


@pytest.mark.parametrize("share", [0.0, 0.05, BUSY_SHARE - 0.01])
def test_late_calls_are_answered_while_other_programs_use_the_cpu(share: float) -> None:
    assert not any(late_calls(Lateness(TARGET_S), share, 100, 0.1))


@pytest.mark.parametrize("share", [BUSY_SHARE + 0.01, 1.0, 1.7])
def test_late_calls_are_refused_after_an_interval_in_which_the_process_used_the_cpu(share: float) -> None:
    assert late_calls(Lateness(TARGET_S), share, 10, 0.1) == [False] * 5 + [True] * 5


def test_refusing_ends_when_other_programs_use_the_cpu() -> None:
    policy = Lateness(TARGET_S)
    assert late_calls(policy, 1.0, 10, 0.1)[-1]
    later = [
        policy.refuses(TimeAndCpu(0.9 + number / 10, 0.9 + number / 1000), 2.0 + number / 10) for number in range(1, 12)
    ]
    assert later[-1] is False


def test_a_long_queue_is_refused_without_cpu_of_its_own() -> None:
    step_s = TARGET_S / LONG_QUEUE
    assert not any(late_calls(Lateness(TARGET_S), 0.05, LONG_QUEUE, step_s))
    decisions = late_calls(Lateness(TARGET_S), 0.05, 2 * LONG_QUEUE, step_s)
    assert decisions[-1]


def test_a_long_queue_that_was_counted_is_refused_when_the_next_one_begins() -> None:
    policy, step_s = Lateness(TARGET_S), TARGET_S / LONG_QUEUE / 2
    assert not any(late_calls(policy, 0.05, LONG_QUEUE + 1, step_s))
    # It arrived after the first of them was processed.
    assert policy.refuses(TimeAndCpu(TARGET_S * 1.1, TARGET_S / 20), TARGET_S * 1.05)


def test_calls_that_arrive_one_after_the_other_are_no_queue() -> None:
    """Each arrives before the one before it is processed, so all are late, but only a few wait at the same time."""
    policy = Lateness(TARGET_S)
    assert not any(policy.refuses(TimeAndCpu(number * 0.1, number * 0.005), 0.7) for number in range(4 * LONG_QUEUE))


def test_with_a_twentieth_of_the_cpu_no_call_is_refused_within_its_capacity() -> None:
    found = simulate(Lateness(TARGET_S), 0.05 / WORK_S, 60, stopped(0.05, 120))
    assert max(found.waits) > TARGET_S
    assert found.refused == 0


def test_with_a_twentieth_of_the_cpu_a_long_queue_is_still_refused() -> None:
    found = simulate(Lateness(TARGET_S), 0.2 / WORK_S, 60, stopped(0.05, 200))
    assert found.refused > 0
    assert max(found.waits) < 2 * LONG_QUEUE * WORK_S / 0.05
