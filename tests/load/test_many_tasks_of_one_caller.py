"""Thousands of tasks of one caller, or of one tenant, run as well as those of twelve callers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from functools import partial
from typing import Any, Final

import pytest
from tests.virtual_time import Call, Caller, Gateway, Upstream, virtual_time
from tests.virtual_time.run import run

FEW: Final = 160
"""More than the 50 that run at once and the 100 that one caller may let wait as plain calls."""
TASKS: Final = 1_100
"""More than the 50 that run at once and the 1,000 that one tenant may let wait as plain calls."""
MOST: Final = 10_000
AT_ONCE: Final = 50
RUNS_S: Final = 8
"""Short enough for all of them to end before a session is idle for too long."""
TWELVE: Final = tuple(("", f"caller-{number}") for number in range(12))
KINDS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "twelve callers": TWELVE,
    "one caller": (("", "ann"),),
    "one tenant": tuple(("acme", name) for _, name in TWELVE),
}


def _secret(name: str) -> str:
    return f"{name}-token-0123456789abcdef"


def _token(tenant: str, name: str) -> dict[str, Any]:
    token = {"id": name, "sha256": hashlib.sha256(_secret(name).encode()).hexdigest()}
    return {**token, "tenant": tenant} if tenant else token


def _config(callers: tuple[tuple[str, str], ...], tasks: int) -> dict[str, Any]:
    return {
        "tokens": [_token(*caller) for caller in callers],
        "limits": {"open_tasks_per_caller": tasks, "runs_per_server": AT_ONCE},
    }


def _server() -> Upstream:
    upstream = Upstream("2025")

    async def work(call: Call) -> str:
        await call.sleep(RUNS_S)
        return "done"

    upstream.tool("work", work)
    return upstream


async def _create(caller: Caller, count: int) -> list[str]:
    ids: list[str] = []
    while count > 0:
        portion = min(count, 20)
        made = [caller.begin_call("s__work", {}, task={"ttl": 36_000_000}) for _ in range(portion)]
        ids += [(await exchange.done()).result["task"]["taskId"] for exchange in made]
        count -= portion
    return ids


async def _states(caller: Caller, ids: list[str]) -> set[str]:
    return {(await caller.request("tasks/get", {"taskId": each})).result["status"] for each in ids[::10]}


async def _run_all(kind: str, tasks: int) -> tuple[float, float]:
    """CPU seconds to create this many tasks, and to run them to their end. Nothing is refused, and each runs once."""
    server = _server()
    names = KINDS[kind]
    async with Gateway(_config(names, tasks), {"s": server}) as gate:
        callers = [await gate.caller("2025", token=_secret(name)) for _, name in names]
        began = time.process_time()
        shares = [len(range(number, tasks, len(callers))) for number in range(len(callers))]
        ids = await asyncio.gather(*(_create(caller, share) for caller, share in zip(callers, shares, strict=True)))
        created = time.process_time()
        await gate.advance(RUNS_S * (tasks // AT_ONCE + 10))
        ended = time.process_time()
        for caller, mine in zip(callers, ids, strict=True):
            assert await _states(caller, mine) == {"completed"}
        assert server.count("work") == tasks
        assert [line for line in gate.log if line.level == "error"] == []
    return created - began, ended - created


@virtual_time
async def test_tasks_of_one_caller_all_run_once() -> None:
    await _run_all("one caller", FEW)


@virtual_time
async def test_tasks_of_one_tenant_all_run_once() -> None:
    await _run_all("one tenant", TASKS)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_ten_thousand_tasks_cost_no_more_than_those_of_twelve_callers() -> None:
    """Prints what is measured: run it with `-s`. The twelve callers are the control, in the same process."""
    tasks = int(os.environ.get("TASKGATE_TEST_TASKS", MOST))
    cost = {kind: run(partial(_run_all, kind, tasks)) for kind in KINDS}
    for kind, (created, ended) in cost.items():
        print(
            f"{kind:<24} {created / tasks * 1e6:7.0f} us to create, {ended / tasks * 1e6:7.0f} us to run, each of {tasks:,}"
        )
    usual = sum(cost["twelve callers"])
    for kind, seconds in cost.items():
        assert sum(seconds) < 1.5 * usual, (kind, cost)
