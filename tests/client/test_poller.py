"""The scheduler: objects are polled in time, regardless of their number."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.client import TaskStatus
from taskgate.client.poll_delays import GREATEST_INTERVAL, MIN_INTERVAL, back_off, next_delay
from taskgate.client.poller import Poller

TIMEOUT = 120.0


class Counter:
    """Accepts a number of polls, then stops."""

    def __init__(self, turns: int = 1, delay: float = 0.0) -> None:
        self.left, self.delay, self.taken, self.done = turns, delay, 0, asyncio.Event()

    async def tick(self) -> float | None:
        self.taken += 1
        self.left -= 1
        if self.left > 0:
            return self.delay
        self.done.set()
        return None


async def test_a_watched_key_is_polled_until_it_is_done() -> None:
    poller = Poller()
    thing = Counter(turns=3)
    poller.watch(thing, 0.0)
    await asyncio.wait_for(thing.done.wait(), TIMEOUT)
    await asyncio.sleep(0)
    assert thing.taken == 3
    assert len(poller) == 0
    await poller.close()


async def test_an_unwatched_key_is_not_polled() -> None:
    poller = Poller()
    forgotten, kept = Counter(), Counter()
    poller.watch(forgotten, 0.01)
    poller.watch(kept, 0.02)
    poller.forget(forgotten)
    await asyncio.wait_for(kept.done.wait(), TIMEOUT)
    assert forgotten.taken == 0
    await poller.close()


async def test_an_earlier_poll_time_replaces_a_later_one() -> None:
    poller = Poller()
    thing = Counter()
    poller.watch(thing, 3600)
    poller.watch(thing, 0.0)
    await asyncio.wait_for(thing.done.wait(), TIMEOUT)
    assert thing.taken == 1
    await poller.close()


async def test_a_failing_poll_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def tick(self) -> float | None:
            raise RuntimeError("oops")

    poller = Poller(concurrency=1)
    thing = Counter()
    poller.watch(Broken(), 0.0)
    poller.watch(thing, 0.0)
    await asyncio.wait_for(thing.done.wait(), TIMEOUT)
    await poller.close()


async def test_the_number_of_concurrent_polls_is_limited() -> None:
    running, maximum = 0, 0

    class Slow(Counter):
        async def tick(self) -> float | None:
            nonlocal running, maximum
            running += 1
            maximum = max(maximum, running)
            await asyncio.sleep(0)
            running -= 1
            return await super().tick()

    poller = Poller(concurrency=4)
    things = [Slow() for _ in range(50)]
    for thing in things:
        poller.watch(thing, 0.0)
    await asyncio.wait_for(asyncio.gather(*(thing.done.wait() for thing in things)), TIMEOUT)
    assert maximum <= 4
    await poller.close()


async def test_repeated_rescheduling_does_not_grow_the_heap() -> None:
    poller = Poller()
    thing = Counter()
    for _ in range(10_000):
        poller.watch(thing, 3600)
    assert len(poller._heap) < 200
    await poller.close()


@given(st.one_of(st.none(), st.integers(-(10**6), 10**9)), st.booleans())
def test_a_poll_interval_is_within_bounds_and_never_shorter_than_requested(interval: int | None, pushed: bool) -> None:
    delay = next_delay(interval, 5.0, pushed=pushed)
    assert MIN_INTERVAL <= delay <= GREATEST_INTERVAL * 1.1
    if interval is not None and 250 <= interval <= 60_000:
        assert delay >= interval / 1000


@given(st.floats(0.25, 60), st.integers(1, 1000), st.one_of(st.none(), st.floats(0, 3600)))
def test_backing_off_is_bounded_and_obeys_retry_after(interval: float, failures: int, retry: float | None) -> None:
    delay = back_off(interval, failures, retry)
    assert delay <= max(GREATEST_INTERVAL * 1.2, retry or 0)
    assert delay >= (retry or 0)


@pytest.mark.parametrize("status", list(TaskStatus))
def test_exactly_three_statuses_are_terminal(status: TaskStatus) -> None:
    assert status.is_terminal is (status in ("completed", "failed", "cancelled"))
