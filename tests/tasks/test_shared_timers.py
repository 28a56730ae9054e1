"""One timer for all waiters with the same timeout: each is called when its own time is up, unless it was removed."""

from __future__ import annotations

import asyncio

import pytest

from taskgate import clock
from taskgate.gateway.tasks.promotion_timers import SharedTimers

pytestmark = pytest.mark.virtual_time


async def test_each_entry_fires_at_its_time_and_removed_ones_do_not() -> None:
    queue, received = SharedTimers().queue(0.1), dict[str, float]()
    loop = asyncio.get_running_loop()
    began: dict[str, float] = {}

    def join(who: str) -> None:
        began[who] = loop.time()
        queue.join(who, clock.monotonic(), lambda: received.update({who: loop.time()}))

    join("first")
    join("gone")
    await asyncio.sleep(0.05)
    join("second")
    queue.leave("gone")
    await asyncio.sleep(0.3)
    assert list(received) == ["first", "second"]
    for who, at in received.items():
        assert 0.095 <= at - began[who] < 0.25


async def test_a_timer_that_was_empty_fires_again() -> None:
    queue, received = SharedTimers().queue(0.05), list[int]()
    queue.join(1, clock.monotonic(), lambda: received.append(1))
    queue.leave(1)
    await asyncio.sleep(0.1)
    queue.join(2, clock.monotonic(), lambda: received.append(2))
    await asyncio.sleep(0.15)
    assert received == [2]


async def test_entries_with_another_delay_have_their_own_timer() -> None:
    timers, received = SharedTimers(), list[str]()
    timers.queue(0.2).join("patient", clock.monotonic(), lambda: received.append("patient"))
    timers.queue(0.02).join("hasty", clock.monotonic(), lambda: received.append("hasty"))
    assert timers.queue(0.2) is timers.queue(0.2)
    await asyncio.sleep(0.1)
    assert received == ["hasty"]
    await asyncio.sleep(0.2)
    assert received == ["hasty", "patient"]


async def test_an_entry_may_be_added_while_others_fire() -> None:
    queue, received = SharedTimers().queue(0.03), list[str]()

    def join_again() -> None:
        received.append("a")
        queue.join("b", clock.monotonic(), lambda: received.append("b"))

    queue.join("a", clock.monotonic(), join_again)
    await asyncio.sleep(0.15)
    assert received == ["a", "b"]
