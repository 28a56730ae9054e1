"""One timer for all waiters with the same timeout: each is called when its own time is up, unless it was removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from taskgate import clock
from taskgate.gateway.tasks.promotion_timers import SharedTimers

pytestmark = pytest.mark.virtual_time


class Entry:
    """An entry whose function is called when it is due."""

    def __init__(self, when_due: Callable[[], object]) -> None:
        self._when_due = when_due

    def due(self) -> None:
        self._when_due()


async def test_each_entry_fires_at_its_time_and_removed_ones_do_not() -> None:
    queue, received = SharedTimers().queue(0.1), dict[str, float]()
    loop = asyncio.get_running_loop()
    began: dict[str, float] = {}

    def join(name: str) -> Entry:
        began[name] = loop.time()
        entry = Entry(lambda: received.update({name: loop.time()}))
        queue.join(entry, clock.monotonic())
        return entry

    join("first")
    removed = join("gone")
    await asyncio.sleep(0.05)
    join("second")
    queue.leave(removed)
    await asyncio.sleep(0.3)
    assert list(received) == ["first", "second"]
    for name, at in received.items():
        assert 0.095 <= at - began[name] < 0.25


async def test_a_timer_that_was_empty_fires_again() -> None:
    queue, received = SharedTimers().queue(0.05), list[int]()
    first = Entry(lambda: received.append(1))
    queue.join(first, clock.monotonic())
    queue.leave(first)
    await asyncio.sleep(0.1)
    queue.join(Entry(lambda: received.append(2)), clock.monotonic())
    await asyncio.sleep(0.15)
    assert received == [2]


async def test_entries_with_another_delay_have_their_own_timer() -> None:
    timers, received = SharedTimers(), list[str]()
    timers.queue(0.2).join(Entry(lambda: received.append("patient")), clock.monotonic())
    timers.queue(0.02).join(Entry(lambda: received.append("hasty")), clock.monotonic())
    assert timers.queue(0.2) is timers.queue(0.2)
    await asyncio.sleep(0.1)
    assert received == ["hasty"]
    await asyncio.sleep(0.2)
    assert received == ["hasty", "patient"]


async def test_an_entry_may_be_added_while_others_fire() -> None:
    queue, received = SharedTimers().queue(0.03), list[str]()

    def join_again() -> None:
        received.append("a")
        queue.join(Entry(lambda: received.append("b")), clock.monotonic())

    queue.join(Entry(join_again), clock.monotonic())
    await asyncio.sleep(0.15)
    assert received == ["a", "b"]


async def test_no_entry_is_due_in_the_context_of_the_first_request() -> None:
    """A call that becomes a task would get the trace of another caller."""
    queue, trace, seen = SharedTimers().queue(0.01), ContextVar[str]("trace", default="none"), list[str]()

    async def request(name: str) -> None:
        trace.set(name)
        queue.join(Entry(lambda: seen.append(trace.get())), clock.monotonic())

    await asyncio.create_task(request("first"))
    await asyncio.sleep(0.005)
    await asyncio.create_task(request("second"))
    await asyncio.sleep(0.05)
    assert seen == ["none", "none"]
