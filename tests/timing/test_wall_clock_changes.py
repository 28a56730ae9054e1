"""The machine's clock is set an hour forward or back while the gateway runs.

Runs end by the monotonic clock. Approvals, grants and credentials end by whichever clock is first.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, the_loop, until, virtual_time

from taskgate.store.operations.usage import UsageBetween

HOUR = 3600.0
BOTH_WAYS = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
APPROVING: dict[str, Any] = {"governance": {"rules": [{"match": "*", "action": "approve"}]}}


def set_clock(jump: float) -> None:
    the_loop().set_wall(the_loop().wall() + jump)


def server_that_takes(seconds: float, *, as_task: bool = False) -> Upstream:
    server = Upstream("2025")

    @server.tool("slow", as_task=as_task)
    async def slow(call: Call) -> str:
        await call.sleep(seconds)
        return "done"

    return server


async def begun(gate: Gateway, tool: str = "notes__slow", ttl: int = 600_000) -> tuple[Any, str]:
    caller = await gate.caller("2025", capabilities={"tasks": {}})
    handle = (await caller.call(tool, {}, task={"ttl": ttl})).result
    return caller, handle["taskId"]


async def status(caller: Any, task_id: str) -> str:
    found: str = (await caller.request("tasks/get", {"taskId": task_id})).result["status"]
    return found


@BOTH_WAYS
@pytest.mark.parametrize("as_task", [False, True], ids=["call", "server's own task"])
@virtual_time
async def test_running_task_is_not_ended_by_clock_that_is_set(jump: float, as_task: bool) -> None:
    server = server_that_takes(300, as_task=as_task)
    async with Gateway({}, {"notes": server}) as gate:
        caller, task_id = await begun(gate)
        await until(lambda: server.count("slow") == 1)
        await gate.advance(10)
        set_clock(jump)
        await gate.advance(60)
        assert await status(caller, task_id) == "working"
        result = (await caller.request("tasks/result", {"taskId": task_id})).result
        assert result["content"][0]["text"] == "done"
        assert server.count("slow") == 1


@BOTH_WAYS
@virtual_time
async def test_run_has_exactly_its_timeout_regardless_of_the_wall_clock(jump: float) -> None:
    server = server_that_takes(100_000)
    budget = {"servers": {"notes": {"budgets": {"tool_timeout_ms": 600_000}}}}
    async with Gateway(budget, {"notes": server}) as gate:
        caller, task_id = await begun(gate)
        await until(lambda: server.count("slow") == 1)
        await gate.advance(100)
        set_clock(jump)
        await gate.advance(490)
        assert await status(caller, task_id) == "working"
        await gate.advance(15)
        shown = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert (shown["data"]["error_type"], shown["data"]["executed"]) == ("upstream_timeout", "maybe")


@BOTH_WAYS
@virtual_time
async def test_promoted_call_is_not_ended_by_clock_that_is_set(jump: float) -> None:
    server = server_that_takes(300)
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow")).result
        set_clock(jump)
        await gate.advance(100)
        assert (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result["status"] == "working"
        await gate.advance(300)
        assert (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result["status"] == "completed"


@BOTH_WAYS
@virtual_time
async def test_unsent_task_is_tried_until_its_ttl_has_really_passed(jump: float) -> None:
    """Its server cannot be reached. A clock set an hour forward would end the attempts,
    set back an hour it would prolong them."""
    server = Upstream("2025")
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.call("notes__echo")
        await server.stop()
        first = (await caller.call("notes__echo", {"n": 1}, task={"ttl": 600_000})).result["taskId"]
        await gate.advance(30)
        set_clock(jump)
        await gate.advance(60)
        assert await status(caller, first) == "working"
        second = (await caller.call("notes__echo", {"n": 2}, task={"ttl": 10_000_000})).result["taskId"]
        await gate.advance(600)
        assert await status(caller, first) == "failed"
        await server.start()
        await gate.advance(60)
        assert await status(caller, second) == "completed"
        assert [ran.arguments for ran in server.ran] == [{}, {"n": 2}]


@BOTH_WAYS
@virtual_time
async def test_task_of_an_earlier_process_has_the_remaining_time_of_its_record(jump: float) -> None:
    """The server's own task outlives the crash. After the restart its time is counted from what the record leaves."""
    server = server_that_takes(400, as_task=True)
    async with Gateway({}, {"notes": server}) as gate:
        _caller, task_id = await begun(gate)
        await until(lambda: server.count("slow") == 1)
        await gate.advance(100)
        gate.crash()
        await gate.start()
        await gate.advance(5)
        set_clock(jump)
        await gate.advance(100)
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        assert await status(caller, task_id) == "working"
        await gate.advance(250)
        assert await status(caller, task_id) == "completed"


@virtual_time
async def test_open_approval_ends_at_once_where_clock_is_set_forward() -> None:
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        caller, task_id = await begun(gate, "notes__echo")
        await gate.advance(10)
        set_clock(HOUR)
        await gate.advance(5)
        error = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("approval_expired", "no")
        assert server.count() == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["same life", "next life"])
@virtual_time
async def test_open_approval_ends_in_time_where_clock_is_set_back(restarted: bool) -> None:
    """`next life`: it was asked for before the last start."""
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        _, task_id = await begun(gate, "notes__echo")
        if restarted:
            await gate.advance(10)
            await gate.restart()
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.advance(10)
        set_clock(-HOUR)
        await gate.advance(570 if restarted else 580)
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        assert await status(caller, task_id) in ("working", "input_required")
        await gate.advance(15)
        assert (await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})).status == 409
        error = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert error["data"]["error_type"] == "approval_expired"
        assert server.count() == 0


@virtual_time
async def test_vote_in_last_moment_does_not_count_where_clock_is_set_back() -> None:
    """Before the next comparison of the clocks, which happens once a second."""
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        await begun(gate, "notes__echo")
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        set_clock(-HOUR)
        asked_at = the_loop().time()
        gate.life.app.gateway.console.calls.tasks.deadlines.approvals_over = lambda: ()
        await gate.advance(601)
        assert the_loop().time() - asked_at > 600
        assert (await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})).status == 410
        await gate.advance(5)
        assert server.count() == 0


@BOTH_WAYS
@virtual_time
async def test_unused_approval_ends_in_time(jump: float) -> None:
    """A decision is valid for 15 minutes. Its caller returns later."""
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        caller, task_id = await begun(gate, "notes__echo")
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        assert (await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})).status == 200
        await gate.advance(10)
        set_clock(jump)
        await gate.advance(5 if jump > 0 else 895)
        error = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert error["data"]["error_type"] == "approval_expired"
        assert server.count() == 0


@virtual_time
async def test_unused_approval_is_not_sent_after_its_end() -> None:
    """The check before the first byte compares both clocks, also before the next comparison."""
    server = Upstream()
    async with Gateway(APPROVING, {"notes": server}) as gate:
        caller, task_id = await begun(gate, "notes__echo")
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})
        gate.life.app.gateway.console.calls.tasks.deadlines.approvals_over = lambda: ()
        set_clock(-HOUR)
        await gate.advance(901)
        error = (await caller.request("tasks/result", {"taskId": task_id})).error
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("approval_expired", "no")
        assert server.count() == 0


@virtual_time
async def test_clock_set_forward_approves_nothing_by_timeout() -> None:
    """`unsafe_on_timeout: approve`: people have the whole time to deny the call."""
    config = {
        "governance": {"rules": [{"match": "*", "action": "approve", "approval": "quiet"}]},
        "approval": {"quiet": {"timeout": "10m", "unsafe_on_timeout": "approve"}},
        "tasks": {"execute_on": "approval"},
    }
    server = Upstream()
    async with Gateway(config, {"notes": server}) as gate:
        await begun(gate, "notes__echo")
        await gate.advance(10)
        set_clock(12 * 60)
        await gate.advance(580)
        assert server.count() == 0
        await gate.advance(15)
        assert server.count("echo") == 1


@BOTH_WAYS
@virtual_time
async def test_grant_ends_in_time(jump: float) -> None:
    server = Upstream()
    async with Gateway({**APPROVING, "tasks": {"execute_on": "approval"}}, {"notes": server}) as gate:
        caller, _ = await begun(gate, "notes__echo")
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        given = {"grant": {"minutes": 60}}
        assert (await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", given)).status == 200
        await gate.advance(10)
        assert server.count("echo") == 1
        await caller.call("notes__echo", {}, task={"ttl": 600_000})
        await gate.advance(1)
        assert server.count("echo") == 2
        set_clock(jump)
        await gate.advance(5 if jump > 0 else 3660)
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.call("notes__echo", {}, task={"ttl": 600_000})
        await gate.advance(5)
        assert server.count("echo") == 2, "it was called without an approval"
        assert len((await gate.operator("GET", "/api/approvals")).json()) == 1


@BOTH_WAYS
@virtual_time
async def test_temporary_scope_ends_in_time(jump: float) -> None:
    async with Gateway({}, {"notes": Upstream()}) as gate:
        config = {"mcp.enabled": "true", "mcp.default_server_ids": '["notes"]'}
        made = (await gate.operator("POST", "/api/v1/scopes", {"config": config, "lifetime_ms": 600_000})).json()
        caller = await gate.caller("2026", token=made["token"])
        assert (await caller.call("notes__echo")).status == 200
        set_clock(jump)
        await gate.advance(5 if jump > 0 else 605)
        assert (await caller.call("notes__echo")).status == 401


@BOTH_WAYS
@virtual_time
async def test_usage_and_drawings_measure_what_call_really_took(jump: float) -> None:
    server = server_that_takes(20)
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("notes__slow")
        await gate.advance(10)
        set_clock(jump)
        await call.done()
        await gate.advance(15)
        usage = await gate.life.app.gateway.console.calls.tasks.store.ask(UsageBetween("2000-01-01", "2999-01-01"))
        assert sum(row.seconds for row in usage) == pytest.approx(20, abs=1)
        spans = [span for span in gate.life.app.gateway.console.calls.waterfall.latest() if span.name == "notes__slow"]
        assert [round(span.end - span.start) for span in spans] == [20]


@BOTH_WAYS
@virtual_time
async def test_second_round_is_valid_by_the_stores_clock(jump: float) -> None:
    """Within its hour, also where the clock was set back. A store in one file has the machine's clock."""
    server = Upstream("2026")

    @server.tool("ask")
    async def ask(call: Call) -> str:
        return "done" if await call.elicit("Who?") else "nobody"

    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities={"elicitation": {"form": {}}})
        asked = (await caller.call("notes__ask")).result
        set_clock(jump / 2)
        answers = {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]}
        reply = await caller.call("notes__ask", {}, inputResponses=answers, requestState=asked["requestState"])
        assert reply.text == "done"
