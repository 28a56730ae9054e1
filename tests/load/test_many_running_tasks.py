"""Many long-running tasks on one server: they wait in a queue and do not delay other callers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.virtual_time import Call, Caller, Gateway, Upstream, until, virtual_time

from taskgate.mcp.http.client import HttpClient

HOUR_MS = 3_600_000
ANSWERED_SOON_S = 1.0


def _sleeper(generation: str, *, as_task: bool = False) -> Upstream:
    upstream = Upstream(generation)

    async def sleep(call: Call) -> str:
        await call.sleep(call.arguments["seconds"])
        return call.arguments.get("who", "")

    upstream.tool("sleep", sleep, as_task=as_task)
    return upstream


async def _begin(caller: Caller, count: int, seconds: float, who: str = "") -> list[str]:
    """The ids of this many tasks."""
    arguments = {"seconds": seconds, "who": who}
    made = [caller.begin_call("work__sleep", arguments, task={"ttl": HOUR_MS}) for _ in range(count)]
    replies = [await exchange.done() for exchange in made]
    return [reply.result["task"]["taskId"] for reply in replies]


async def _task(caller: Caller, task_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await caller.request("tasks/get", {"taskId": task_id})).result
    return shown


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_many_hanging_tasks_do_not_delay_another_caller(generation: str) -> None:
    work = _sleeper(generation)
    async with Gateway({"limits": {"runs_per_server": 50}}, {"work": work}) as gate:
        for _ in range(6):
            await _begin(await gate.caller("2025"), 20, 500)
        await gate.advance(1)
        other = await gate.caller("2025")
        call = other.begin_call("work__echo", {"a": 1})
        reply = await call.done()
        assert '"a": 1' in reply.text
        assert call.took < ANSWERED_SOON_S
        # As many as may hold a connection have been sent, and nothing has failed.
        assert work.count("sleep") == 50


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_runs_wait_for_a_slot_report_it_and_complete(generation: str) -> None:
    work = _sleeper(generation)
    async with Gateway({"limits": {"runs_per_server": 4}}, {"work": work}) as gate:
        caller = await gate.caller("2025")
        ids = await _begin(caller, 20, 10)
        await gate.advance(1)
        assert work.count("sleep") == 4
        last = await _task(caller, ids[-1])
        assert last["status"] == "working"
        assert "4 task calls are running" in last["statusMessage"]
        assert "Waiting for a slot" not in (await _task(caller, ids[0])).get("statusMessage", "")
        await gate.advance(55)
        assert {(await _task(caller, each))["status"] for each in ids} == {"completed"}
        assert work.count("sleep") == 20
        assert "Waiting for a slot" not in (await _task(caller, ids[-1])).get("statusMessage", "")


@virtual_time
async def test_run_queue_is_fair_between_callers() -> None:
    work = _sleeper("2025")
    async with Gateway({"limits": {"runs_per_server": 2}}, {"work": work}) as gate:
        busy_caller, quiet_caller = await gate.caller("2025"), await gate.caller("2025")
        await _begin(busy_caller, 50, 10, "greedy")
        (one,) = await _begin(quiet_caller, 1, 10, "polite")
        await gate.advance(21)
        assert (await _task(quiet_caller, one))["status"] == "completed"


@virtual_time
async def test_queued_run_can_be_cancelled_and_is_never_sent() -> None:
    work = _sleeper("2025")
    async with Gateway({"limits": {"runs_per_server": 1}}, {"work": work}) as gate:
        caller = await gate.caller("2025")
        ids = await _begin(caller, 3, 10)
        await caller.request("tasks/cancel", {"taskId": ids[1]})
        await gate.advance(21)
        assert [(await _task(caller, each))["status"] for each in ids] == ["completed", "cancelled", "completed"]
        assert work.count("sleep") == 2


@virtual_time
async def test_queued_runs_execute_once_after_a_crash() -> None:
    work = _sleeper("2025")
    async with Gateway({"limits": {"runs_per_server": 2}}, {"work": work}) as gate:
        caller = await gate.caller("2025")
        ids = await _begin(caller, 6, 10)
        await gate.advance(1)
        gate.crash()
        await gate.start()
        again = await gate.caller("2025")
        await gate.advance(40)
        states = [(await _task(again, each))["status"] for each in ids]
        assert states.count("completed") == 4
        assert work.count("sleep") == 6


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_upstream_tasks_hold_no_connections(generation: str) -> None:
    work = _sleeper(generation, as_task=True)
    async with Gateway({"limits": {"open_tasks_per_caller": 1000}}, {"work": work}) as gate:
        caller = await gate.caller("2025")
        ids = await _begin(caller, 300, 8)
        await gate.advance(5)
        assert work.count("sleep") == 300
        # Some results are waited for, some connections rest between two polls.
        assert work.connections < 250
        call = caller.begin_call("work__echo", {"a": 1})
        assert '"a": 1' in (await call.done()).text
        assert call.took < ANSWERED_SOON_S
        await gate.advance(10)
        assert {(await _task(caller, each))["status"] for each in ids} == {"completed"}


@pytest.fixture
def most_connections(monkeypatch: pytest.MonkeyPatch) -> int:
    """A tenth of what one server gets: the limit does not apply to connections that stay open."""
    defaults = HttpClient.__init__.__kwdefaults__
    maximum = int(defaults["max_connections_per_origin"]) // 10  # type: ignore[index]
    monkeypatch.setitem(defaults, "max_connections_per_origin", maximum)  # type: ignore[arg-type]
    return maximum


@virtual_time
async def test_connection_limit_is_enforced(most_connections: int) -> None:
    work = _sleeper("2025")
    async with Gateway({"limits": {"calls_in_flight": 10_000}}, {"work": work}) as gate:
        caller = await gate.caller("2025")
        for _ in range(most_connections + 10):
            caller.begin_call("work__sleep", {"seconds": 30})
        await gate.advance(20)
        assert most_connections - 5 < work.count("sleep") <= most_connections


@virtual_time
async def test_promoted_calls_free_connections_for_plain_calls(most_connections: int) -> None:
    work = _sleeper("2025")
    async with Gateway({"limits": {"calls_in_flight": 10_000, "open_tasks_per_caller": 2_000}}, {"work": work}) as gate:
        many = most_connections // 2 + 5
        for _ in range(2):
            caller = await gate.caller("2025")
            for _ in range(many):
                caller.begin_call("work__sleep", {"seconds": 500})
        await gate.advance(60)
        assert work.count("sleep") == 2 * many
        other = await gate.caller("2025")
        call = other.begin_call("work__echo", {"a": 1})
        assert '"a": 1' in (await call.done()).text
        assert call.took < ANSWERED_SOON_S


@virtual_time
async def test_listening_streams_free_connections_for_plain_calls(most_connections: int) -> None:
    work = _sleeper("2025")
    async with Gateway({}, {"work": work}) as gate:
        callers = [await gate.caller("2025") for _ in range(most_connections + 10)]
        await asyncio.gather(*(caller.call("work__echo") for caller in callers))
        await until(lambda: work.connections >= len(callers), "the streams are open")
        other = await gate.caller("2025")
        call = other.begin_call("work__echo", {"a": 1})
        assert '"a": 1' in (await call.done()).text
        assert call.took < ANSWERED_SOON_S
