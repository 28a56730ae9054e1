"""Calls that may outlast the gateway run as the server's own tasks if it supports them, so that a crash of the gateway loses
nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.console.test_console_pages import operator
from tests.virtual_time import Call, Caller, Gateway, Upstream, virtual_time

FACADE: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "mode": "facade"}}}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow", as_task=True)
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "done"

    @notes.tool("quick", as_task=True)
    async def quick(call: Call) -> str:
        return "at once"

    return notes


async def result_of(gate: Gateway, caller: Caller, task_id: str) -> str:
    await gate.advance(200)
    return (await caller.call("get_task_result", {"task_id": task_id})).text


@virtual_time
async def test_a_call_by_execute_tool_is_found_again_after_a_crash() -> None:
    notes = server()
    async with Gateway(FACADE, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("execute_tool", {"server": "notes", "tool": "slow", "timeout_ms": 1000})
        task_id = reply.text.split("Promoted to task ")[1].split(".")[0]
        gate.crash()
        await gate.start()
        again = await gate.caller("2025")
        assert "done" in await result_of(gate, again, task_id)
        assert notes.count("slow") == 1


@virtual_time
async def test_a_quick_call_by_execute_tool_answers_with_its_result() -> None:
    async with Gateway(FACADE, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("execute_tool", {"server": "notes", "tool": "quick", "timeout_ms": 5000})
        assert reply.result["content"][0]["text"] == "at once"


@virtual_time
async def test_a_tool_that_took_long_once_runs_as_the_servers_task_afterwards() -> None:
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        first = await caller.call("notes__slow", {})
        assert "continues as task" in first.text
        await gate.advance(100)
        second = await caller.call("notes__slow", {})
        task_id = second.result["structuredContent"]["taskgate_notice"]["task_id"]
        shown = (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).json()
        assert shown["upstream_task"]
        assert shown["upstream_task"] in [step["detail"] for step in shown["timeline"]]
        assert shown["upstream_task"] in await (await operator(gate)).text(f"/tasks/{task_id}")
        gate.crash()
        await gate.start()
        again = await gate.caller("2025")
        assert "done" in await result_of(gate, again, task_id)
        assert notes.count("slow") == 2


@pytest.mark.parametrize("mode", ["direct", "facade"])
@virtual_time
async def test_a_question_keeps_its_id_when_its_call_becomes_a_task(mode: str) -> None:
    notes = Upstream("2025")

    @notes.tool("ask")
    async def ask(call: Call) -> str:
        answer = await call.elicit("Your name?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer["content"]["name"])

    async with Gateway({"scopes": {"default": {"default_servers": ["*"], "mode": mode}}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        if mode == "facade":
            call = caller.begin_call("execute_tool", {"server": "notes", "tool": "ask", "timeout_ms": 20_000})
        else:
            call = caller.begin_call("notes__ask", {})
        await gate.advance(1)
        (before,) = (await caller.call_json("get_elicitations"))["elicitations"]
        await gate.advance(60)
        assert call.is_done
        (after,) = (await caller.call_json("get_elicitations"))["elicitations"]
        assert after["request_id"] == before["request_id"]
        assert after["task_id"]
        answer = {"request_id": before["request_id"], "action": "accept", "content": {"name": "Ann"}}
        await caller.call_json("respond_to_elicitation", **answer)
        assert "Ann" in (await caller.call("get_task_result", {"task_id": after["task_id"]})).text
