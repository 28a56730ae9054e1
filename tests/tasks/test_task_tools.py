"""Replies to an agent that only has tools, about its calls: how long it may wait, why a task waits or ended, and for how long
that can be read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.virtual_time import Call, Caller, Failure, Gateway, Upstream, virtual_time

BOTH: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
HELD: dict[str, Any] = {
    **BOTH,
    "approval": {"ops": {}},
    "governance": {"rules": [{"match": "slow", "action": "approve", "approval": "ops"}]},
}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 3600))
        return "done"

    @notes.tool("broken")
    async def broken(call: Call) -> str:
        await call.sleep(2)
        raise Failure(-32603, "the disk is on fire")

    return notes


def execute(tool: str, **more: Any) -> dict[str, Any]:
    return {"server": "notes", "tool": tool, "args": {}, **more}


async def begun(caller: Caller, tool: str, **more: Any) -> tuple[str, str]:
    """Of a call by `execute_tool` that takes longer than its caller waits: the text of the reply, and the id of its task."""
    reply = await caller.call("execute_tool", execute(tool, **more), _meta={"progressToken": "mine"})
    result = reply.result["content"]
    return result[0]["text"], json.loads(result[1]["text"])["proxy_task"]["task_id"]


@virtual_time
async def test_execute_tool_returns_within_a_minute() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("execute_tool", execute("slow"))
        await call.done()
        assert call.took < 60
        (row,) = (await caller.call_json("list_tasks"))["tasks"]
        assert row["status"] == "working"


@virtual_time
async def test_a_task_that_waits_for_a_person_states_it() -> None:
    async with Gateway(HELD, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        text, task_id = await begun(caller, "slow", timeout_ms=800)
        assert "the approval of a person" in text
        assert "exceeded" not in text
        shown = (await caller.call_json("get_task", task_id=task_id))["task"]
        assert (shown["waiting_for"], shown["status_message"]) == ("approval", "Awaiting approval")


@virtual_time
async def test_the_error_of_a_failed_task_is_in_every_tool_that_shows_it() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        _, task_id = await begun(caller, "broken", timeout_ms=1000)
        await gate.advance(10)
        one = (await caller.call_json("get_task", task_id=task_id))["task"]
        (listed,) = (await caller.call_json("list_tasks", include_completed=True))["tasks"]
        result = (await caller.call_json("get_task_result", task_id=task_id))["task"]
        for shown in (one, listed, result):
            assert (shown["status"], "on fire" in str(shown["error"])) == ("failed", True)


@virtual_time
async def test_a_task_whose_result_is_no_longer_kept_is_expired_in_every_tool_that_shows_it() -> None:
    config = {**BOTH, "tasks": {"keep_result_ms": 300_000}}
    async with Gateway(config, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        _, task_id = await begun(caller, "slow", args={"seconds": 331}, timeout_ms=1000)
        await gate.advance(331 + 290)
        result = await caller.call("get_task_result", {"task_id": task_id})
        assert result.result["content"][0]["text"] == "done"
        await gate.advance(60)
        assert (await caller.call_json("get_task", task_id=task_id))["task"]["status"] == "expired"
        (row,) = (await caller.call_json("list_tasks", status="expired"))["tasks"]
        assert row["task_id"] == task_id


@pytest.mark.parametrize("tool", ["await_activity", "get_task_result", "execute_tool"])
def test_the_maximum_of_a_wait_is_in_its_schema(tool: str) -> None:
    @virtual_time
    async def scenario() -> None:
        async with Gateway(BOTH, {"notes": server()}) as gate:
            caller = await gate.caller("2025")
            (listed,) = [one for one in await caller.tools() if one["name"] == tool]
            assert "usually 45 s" in listed["inputSchema"]["properties"]["timeout_ms"]["description"]
            _, task_id = await begun(caller, "slow", timeout_ms=1)
            await caller.call("await_activity", {"timeout_ms": 1})
            arguments = {"get_task_result": {"task_id": task_id}, "execute_tool": execute("slow"), "await_activity": {}}
            call = caller.begin_call(tool, {**arguments[tool], "timeout_ms": 180_000})
            await call.done()
            assert 44 < call.took < 46

    scenario()


@virtual_time
async def test_promoted_calls_count_against_the_limit_of_open_tasks() -> None:
    config = {**BOTH, "limits": {"open_tasks_per_caller": 3}}
    async with Gateway(config, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        calls = [caller.begin_call("execute_tool", execute("slow", timeout_ms=1000)) for _ in range(5)]
        await gate.advance(30)
        # What was sent is handed over above the limit as well; then nothing more is sent.
        assert sum(call.is_done for call in calls) == 5
        assert len((await caller.call_json("list_tasks"))["tasks"]) == 5
        refused = await caller.call("execute_tool", execute("slow", timeout_ms=1000))
        assert "open_tasks_per_caller" in json.dumps(refused.messages)
        assert len((await caller.call_json("list_tasks"))["tasks"]) == 5


@virtual_time
async def test_arguments_progress_and_tool_errors_look_alike_in_every_tool_that_shows_a_task() -> None:
    notes = server()

    @notes.tool("count")
    async def count(call: Call) -> dict[str, Any]:
        call.progress(1, 2, "half")
        await call.sleep(10)
        return {"content": [{"type": "text", "text": "miscounted"}], "isError": True}

    async with Gateway(BOTH, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        _, task_id = await begun(caller, "count", args={"from": 7}, timeout_ms=2000)
        await gate.advance(2)
        running = [
            (await caller.call_json("get_task", task_id=task_id))["task"],
            *(await caller.call_json("list_tasks"))["tasks"],
        ]
        for shown in running:
            assert (shown["args"], shown["progress"], shown["status_message"]) == (
                {"from": 7},
                1,
                "half",
            )
        await gate.advance(20)
        ended = [
            (await caller.call_json("get_task", task_id=task_id))["task"],
            *(await caller.call_json("list_tasks", include_completed=True))["tasks"],
        ]
        assert [(shown["args"], shown["is_error"]) for shown in ended] == [({"from": 7}, True)] * 2
        assert (await caller.call("get_task_result", {"task_id": task_id})).result["isError"] is True


@virtual_time
async def test_the_text_of_a_question_is_removed_with_its_answer() -> None:
    notes = server()

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        await call.elicit("Which colour?")
        await call.sleep(60)
        return "painted"

    async with Gateway(BOTH, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        _, task_id = await begun(caller, "paint", timeout_ms=1000)
        asking = (await caller.call_json("get_task", task_id=task_id))["task"]
        assert (asking["waiting_for"], "Which colour?" in asking["status_message"]) == ("input", True)
        (question,) = (await caller.call_json("get_elicitations"))["elicitations"]
        await caller.call_json("respond_to_elicitation", request_id=question["request_id"], action="accept", content={})
        await gate.advance(1)
        working = (await caller.call_json("get_task", task_id=task_id))["task"]
        assert "waiting_for" not in working
        assert "Which colour?" not in str(working)


@virtual_time
async def test_an_approved_task_waits_for_an_unavailable_server_until_its_deadline() -> None:
    notes = server()
    async with Gateway({**HELD, "tasks": {"execute_on": "approval"}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        request_body = {"ttl": 3_600_000}
        task_id = (await caller.call("notes__slow", {"seconds": 1}, task=request_body)).result["task"]["taskId"]
        await notes.stop()
        (approval,) = (await gate.operator("GET", "/api/approvals")).json()
        reply = await gate.operator("POST", f"/api/approvals/{approval['id']}/approve", {})
        assert reply.status == 200
        await gate.advance(120)
        assert (await caller.request("tasks/get", {"taskId": task_id})).result["status"] == "working"
        await notes.start()
        await gate.advance(120)
        assert (await caller.request("tasks/get", {"taskId": task_id})).result["status"] == "completed"
        assert notes.count("slow") == 1


@virtual_time
async def test_an_approval_runs_the_call_while_its_caller_is_present() -> None:
    notes = server()
    async with Gateway(HELD, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        live = caller.begin_call("notes__slow", {"seconds": 1})
        await gate.advance(1)
        (approval,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.operator("POST", f"/api/approvals/{approval['id']}/approve", {})
        assert (await live.done()).result["content"][0]["text"] == "done"
        assert notes.count("slow") == 1


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("hints", [{}, {"readOnlyHint": True, "idempotentHint": True}], ids=["once", "repeatable"])
def test_a_result_that_is_too_large_ends_a_task_as_executed_without_retry(
    generation: str, hints: dict[str, bool]
) -> None:
    notes = Upstream(generation)

    @notes.tool("huge", annotations=hints)
    async def huge(_call: Call) -> str:
        return "x" * (17 * 1024 * 1024)

    @virtual_time
    async def scenario() -> None:
        async with Gateway({"servers": {"notes": {"trust_annotations": True}}}, {"notes": notes}) as gate:
            caller = await gate.caller("2025", capabilities={"tasks": {}})
            task_id = (await caller.call("notes__huge", task={})).result["task"]["taskId"]
            await gate.advance(60)
            error = (await caller.request("tasks/result", {"taskId": task_id})).error
            assert (error["data"]["error_type"], error["data"]["executed"]) == ("result_too_large", "yes")
            assert notes.count("huge") == 1

    scenario()
