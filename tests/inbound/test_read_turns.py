"""The wait of a request counts from when the event loop read requests before, if it has worked since then."""

from __future__ import annotations

import asyncio

import pytest

from taskgate import clock
from taskgate.inbound.http.read_turns import ReadTurns


class Clocks:
    """The time, and the part of it in which the thread worked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 100.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "thread_cpu", lambda: self.cpu)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def pause(self, seconds: float) -> None:
        self.now += seconds


async def test_a_request_read_after_work_may_have_waited_since_the_last_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, turns = Clocks(monkeypatch), ReadTurns()
    assert turns.arrival() == clocks.now == 100.0
    clocks.work(0.4)
    assert turns.arrival() == 100.0, "it is read in the same iteration"
    await asyncio.sleep(0)
    assert turns.arrival() == 100.0
    clocks.work(0.3)
    await asyncio.sleep(0)
    assert turns.arrival() == pytest.approx(100.4)


async def test_a_request_read_after_a_pause_has_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, turns = Clocks(monkeypatch), ReadTurns()
    turns.arrival()
    await asyncio.sleep(0)
    clocks.work(0.1)
    clocks.pause(0.5)
    assert turns.arrival() == clocks.now


async def test_work_before_the_last_read_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU time is not read for reads in quick succession, so some of it was used before the last one."""
    clocks, turns = Clocks(monkeypatch), ReadTurns()
    turns.arrival()
    for _ in range(500):
        await asyncio.sleep(0)
        clocks.work(0.0009)
        turns.arrival()
    await asyncio.sleep(0)
    clocks.pause(1.0)
    assert turns.arrival() == clocks.now
