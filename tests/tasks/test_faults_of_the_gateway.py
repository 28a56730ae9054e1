"""A call that fails for a reason that is not its server's: its caller gets an error, and it does not become a task later."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.gateway.calls import call_tool


def slow_server() -> Upstream:
    server = Upstream("2025")

    @server.tool("work")
    async def work(call: Call) -> str:
        await call.sleep(call.arguments["seconds"])
        return "done"

    return server


async def states(gate: Gateway) -> list[str]:
    return [task["state"] for task in (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]]


@pytest.fixture
def _broken_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(call_tool, "may_name_uris", lambda _members: True)
    monkeypatch.setattr(call_tool.ToolCalls, "_check_result", broken)


@pytest.mark.usefixtures("_broken_check")
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_failed_call_does_not_become_a_task(generation: str) -> None:
    async with Gateway({}, {"s": slow_server()}) as gate:
        caller = await gate.caller(generation)
        call = caller.begin_call("s__work", {"seconds": 1})
        await gate.advance(2)
        assert "Internal error" in (await call.done()).last["error"]["message"]
        await gate.advance(300)
        assert await states(gate) == []
        assert [line.event for line in gate.log if line.level == "error"] == ["request failed"]


@pytest.mark.usefixtures("_broken_check")
@virtual_time
async def test_a_task_ends_if_the_call_that_it_was_fails() -> None:
    async with Gateway({}, {"s": slow_server()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("s__work", {"seconds": 100})
        await gate.advance(90)
        assert await states(gate) == ["running"]
        assert "tg_" in (await call.done()).text
        await gate.advance(30)
        assert await states(gate) == ["failed"]
        assert [line.event for line in gate.log if line.level == "error"] == ["promoted call failed"]


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_calls_that_wait_for_a_server_that_is_removed_get_an_error(generation: str) -> None:
    server = slow_server()
    config = {"servers": {"s": {"budgets": {"max_concurrency": 1}}}}
    async with Gateway(config, {"s": server, "other": Upstream("2025")}) as gate:
        caller = await gate.caller(generation)
        calls = [caller.begin_call("s__work", {"seconds": 20, "n": n}) for n in range(2)]
        await gate.advance(5)
        del gate.upstreams["s"]
        await gate.reload({})
        await gate.advance(30)
        waiting = await calls[1].done()
        assert "not configured any more" in waiting.text
        assert "not executed" in waiting.text
        assert server.count("work") == 1
        await gate.advance(300)
        assert await states(gate) == []
        assert [line for line in gate.log if line.level == "error"] == []
