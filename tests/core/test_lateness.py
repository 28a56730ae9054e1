"""Which late calls are refused: those in a persistent queue, not those after a single stall."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from taskgate.core.lateness import AGAIN_WITHIN, Lateness

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
    def refuses(self, now: float, waited_s: float) -> bool: ...


def simulate(
    policy: Policy, per_second: float, seconds: float, stalls: tuple[tuple[float, float], ...] = ()
) -> Outcome:
    """Simulate one worker with calls at equal intervals; at each of the given times other work takes the given duration."""
    arrivals = deque(number / per_second for number in range(int(per_second * seconds)))
    waiting_stalls, now, outcome = deque(stalls), 0.0, Outcome()
    while arrivals:
        if waiting_stalls and now >= waiting_stalls[0][0]:
            now += waiting_stalls.popleft()[1]
        now = max(now, arrivals[0])
        waited = now - arrivals.popleft()
        if policy.refuses(now, waited):
            outcome.waits_before = outcome.waits_before or len(outcome.waits)
            outcome.refused += 1
            now += REFUSAL_S
        else:
            outcome.waits.append(waited)
            now += WORK_S
    return outcome


@pytest.mark.parametrize("stall_s", [0.1, 0.51, 0.9, 5.0])
def test_calls_that_one_stall_made_late_are_answered(stall_s: float) -> None:
    """At a tenth of the capacity: calls that arrived during the stall are answered within the interval, and no queue remains."""
    found = simulate(Lateness(TARGET_S), 100, 20, stalls=((5.0, stall_s),))
    assert found.refused == 0
    assert max(found.waits) == pytest.approx(stall_s, abs=0.05)


def test_occasional_stalls_are_no_overload() -> None:
    stalls = tuple((float(second), 0.7) for second in range(3, 60, 6))
    assert simulate(Lateness(TARGET_S), 100, 60, stalls).refused == 0


def test_two_late_calls_with_nothing_between_them_are_two_delays() -> None:
    policy = Lateness(TARGET_S)
    assert not policy.refuses(10.0, 0.6)
    assert not policy.refuses(10.0 + TARGET_S * 3, 0.6)


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
    assert not policy.refuses(0.0, 0.6)
    assert not policy.refuses(TARGET_S * 0.9, 0.6)
    assert policy.refuses(TARGET_S * 1.1, 0.6)
    assert not policy.refuses(1.0, 0.1)
    assert policy.refuses(2.0, 0.6)
    assert not policy.refuses(2.1, 0.0)
    assert not policy.refuses(2.1 + AGAIN_WITHIN * TARGET_S, 0.6)
