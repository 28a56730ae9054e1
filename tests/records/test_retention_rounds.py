"""When retention works and when it rests, in virtual time; and that a gateway has it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate import clock
from taskgate.gateway import retention
from taskgate.gateway.retention import (
    CPU_SHARE,
    LATE_S,
    LEAST_PART,
    LEFTOVERS_EVERY_S,
    MAX_PORTIONS,
    MAX_RAISES,
    PORTION_EVERY_S,
    RAISED_AFTER_S,
    SHORTEST_PAUSE_S,
    Retention,
)
from taskgate.store.operations.task_queries import FindTask, ResultBytes
from taskgate.store.operations.upkeep import sweep

pytestmark = pytest.mark.virtual_time

EVERY_S = 60.0


class Backlog:
    """So many portions are there; a write takes some time, however many portions it has."""

    def __init__(self, portions: int, takes_s: float = 0.0) -> None:
        self.left = portions
        self.takes_s = takes_s
        self.asked: list[tuple[float, int]] = []

    async def __call__(self, count: int) -> bool:
        self.asked.append((clock.monotonic(), count))
        await clock.sleep(self.takes_s)
        self.left -= count
        return self.left > 0

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.asked]


class Leftovers:
    def __init__(self) -> None:
        self.looked: list[float] = []

    async def __call__(self) -> None:
        self.looked.append(clock.monotonic())


class Costly(Backlog):
    """Each portion takes CPU time."""

    spent_s = 0.0
    COST_S = 0.005

    async def __call__(self, count: int) -> bool:
        Costly.spent_s += count * self.COST_S
        return await super().__call__(count)


async def _run_for(retention: Retention, seconds: float) -> None:
    running = asyncio.create_task(retention.run())
    await clock.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_portions_follow_each_other_until_none_is_left() -> None:
    backlog = Backlog(3_000)
    await _run_for(Retention((backlog,), Leftovers(), lambda: EVERY_S, lambda: 0.0), EVERY_S + 55)
    assert backlog.left == 0


async def test_portions_of_a_fast_store_are_deleted_one_by_one_with_pauses() -> None:
    backlog = Backlog(20, takes_s=0.002)
    await Retention((backlog,), Leftovers(), lambda: EVERY_S, lambda: 0.0).catch_up()
    assert {count for _, count in backlog.asked} == {1}
    assert min(after - before for before, after in pairwise(backlog.times)) > 0.99 * PORTION_EVERY_S


async def test_a_slow_store_deletes_several_portions_at_once() -> None:
    """In 0.15 seconds a quick store would have had nine portions."""
    backlog = Backlog(900, takes_s=0.15)
    began = clock.monotonic()
    await Retention((backlog,), Leftovers(), lambda: EVERY_S, lambda: 0.0).catch_up()
    assert clock.monotonic() - began < 900 * PORTION_EVERY_S * 1.3
    assert max(count for _, count in backlog.asked) <= MAX_PORTIONS
    assert min(after - before for before, after in pairwise(backlog.times)) >= 0.15 + 0.99 * SHORTEST_PAUSE_S


async def test_kinds_do_not_wait_for_each_other() -> None:
    large, small = Backlog(1_000, takes_s=0.3), Backlog(20)
    await Retention((large, small), Leftovers(), lambda: EVERY_S, lambda: 0.0).catch_up()
    assert len(small.asked) == 20
    assert small.times[-1] < large.times[3]


async def test_retention_pauses_when_nothing_is_left_and_continues_after_a_failure() -> None:
    fails, calls = [True], 0

    async def failing(_: int) -> bool:
        nonlocal calls
        calls += 1
        if fails:
            fails.pop()
            raise OSError("no space left on device")
        return False

    backlog = Backlog(1)
    await _run_for(Retention((failing, backlog), Leftovers(), lambda: EVERY_S, lambda: 0.0), 10 * EVERY_S + 1)
    assert len(backlog.asked) == 10
    assert calls == 10


async def test_orphaned_files_are_searched_once_an_hour() -> None:
    leftovers = Leftovers()
    await _run_for(Retention((Backlog(1),), leftovers, lambda: EVERY_S, lambda: 0.0), 3 * LEFTOVERS_EVERY_S)
    assert len(leftovers.looked) == 3
    assert all(after - before >= LEFTOVERS_EVERY_S for before, after in pairwise(leftovers.looked))


@virtual_time
async def test_a_gateway_deletes_more_than_one_portion_in_a_round() -> None:
    async def quick(call: Call) -> str:
        return "done"

    config = {"tasks": {"keep_result_ms": 1_000}}
    async with Gateway(config, {"far": Upstream("2025", tools={"quick": quick})}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        made = [(await caller.call("far__quick", {}, task={"ttl": 1_000})).result["task"]["taskId"] for _ in range(150)]
        store = gate.life.app.store
        await gate.advance(EVERY_S + 5)
        shown = [await store.ask(FindTask(task_id, include_expired=True)) for task_id in made]
        assert all(task is not None and task.state.is_terminal for task in shown)
        assert [await store.ask(ResultBytes(task_id)) for task_id in made] == [None] * 150
        assert not (await sweep(store)).expired


@pytest.mark.parametrize("takes_s", [0.0, 0.1], ids=["fast store", "slow store"])
async def test_all_kinds_together_use_a_bounded_share_of_a_processor(
    takes_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every second of the first minute; more than that only if rows expire faster for longer."""
    monkeypatch.setattr(Costly, "spent_s", 0.0)
    kinds = tuple(Costly(1_000_000, takes_s) for _ in range(4))
    retention = Retention(kinds, Leftovers(), lambda: 1.0, lambda: Costly.spent_s)
    running = asyncio.create_task(retention.run())
    await clock.sleep(1.0)
    one_round_s = len(kinds) * MAX_PORTIONS * Costly.COST_S
    shares = []
    for _ in range(5):
        before = Costly.spent_s
        await clock.sleep(RAISED_AFTER_S - 1)
        shares.append((Costly.spent_s - before) / (RAISED_AFTER_S - 1))
        await clock.sleep(1.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    slack = one_round_s / RAISED_AFTER_S
    for raises, share in enumerate(shares):
        assert share <= CPU_SHARE * 2 ** min(raises, MAX_RAISES) + slack
    assert shares[0] > CPU_SHARE / 2
    assert shares[-1] > CPU_SHARE * 2**MAX_RAISES / 2


@pytest.mark.parametrize(("part", "least", "most"), [(1.0, 0.8, 1.05), (0.5, 0.4, 0.55), (0.0, 0.15, LEAST_PART * 1.1)])
async def test_on_a_busy_machine_deletion_gets_its_share_of_what_the_gateway_gets(
    part: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway gets that part of a processor, and the loop resumes what has waited late. Shares of `CPU_SHARE`."""
    sleep = clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda seconds: sleep(seconds + 10 * LATE_S))
    monkeypatch.setattr(retention, "time", SimpleNamespace(process_time=lambda: part * clock.monotonic()))
    monkeypatch.setattr(Costly, "spent_s", 0.0)
    kinds = tuple(Costly(1_000_000) for _ in range(3))
    running = asyncio.create_task(Retention(kinds, Leftovers(), lambda: 1.0, lambda: Costly.spent_s).run())
    await sleep(RAISED_AFTER_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert least <= Costly.spent_s / RAISED_AFTER_S / CPU_SHARE <= most


async def test_the_share_is_low_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costly, "spent_s", 0.0)
    kind = Costly(10_000)
    retention = Retention((kind,), Leftovers(), lambda: 1.0, lambda: Costly.spent_s)
    running = asyncio.create_task(retention.run())
    await clock.sleep(6 * RAISED_AFTER_S)
    assert kind.left <= 0
    kind.left, before = 10_000, Costly.spent_s
    await clock.sleep(RAISED_AFTER_S / 2)
    assert Costly.spent_s - before < CPU_SHARE * RAISED_AFTER_S / 2 + MAX_PORTIONS * Costly.COST_S
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
