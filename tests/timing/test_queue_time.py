"""What a call waits in line for its server does not count against `budgets.tool_timeout_ms`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time


def slow_server() -> Upstream:
    server = Upstream("2025")

    @server.tool("work")
    async def work(call: Call) -> str:
        await call.sleep(call.arguments["seconds"])
        return "done"

    return server


def budgets(timeout_ms: int) -> dict[str, Any]:
    return {"servers": {"s": {"budgets": {"tool_timeout_ms": timeout_ms, "max_concurrency": 1}}}}


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_call_that_waited_longer_than_the_timeout_still_runs(generation: str) -> None:
    server = slow_server()
    async with Gateway(budgets(5_000), {"s": server}) as gate:
        caller = await gate.caller(generation)
        calls = [caller.begin_call("s__work", {"seconds": 4}) for _ in range(4)]
        await gate.advance(20)
        assert [(await call.done()).text for call in calls] == ["done"] * 4


@virtual_time
async def test_promoted_call_has_its_whole_time_from_when_it_was_sent() -> None:
    server = slow_server()
    async with Gateway(budgets(60_000), {"s": server}) as gate:
        caller = await gate.caller("2025")
        first = caller.begin_call("s__work", {"seconds": 40})
        await gate.advance(0.1)
        second = caller.begin_call("s__work", {"seconds": 55})
        await gate.advance(50)
        assert (await first.done()).text == "done"
        task_id = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"][0]["id"]
        assert task_id in (await second.done()).text
        await gate.advance(60)
        shown = (await gate.operator("GET", f"/api/v1/tasks/{task_id}/result")).json()
        assert (shown["state"], shown.get("result", {}).get("content", [{}])[0].get("text")) == ("completed", "done")


@virtual_time
async def test_call_that_runs_too_long_is_ended() -> None:
    async with Gateway(budgets(5_000), {"s": slow_server()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("s__work", {"seconds": 6})
        await gate.advance(10)
        assert (await call.done()).result["isError"] is True
