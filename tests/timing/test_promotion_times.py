"""When a call that does not finish at once is returned to its caller, to a tenth of a second."""

from __future__ import annotations

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time


def slow_server(generation: str = "2025") -> Upstream:
    server = Upstream(generation)

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 60))
        return "slow is done"

    return server


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_caller_without_tasks_is_promoted_after_45_seconds(generation: str) -> None:
    server = slow_server(generation)
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("notes__slow")
        await gate.advance(44.9)
        assert not call.is_done
        await gate.advance(0.2)
        assert "continues as task tg_" in call.reply.text
        (task,) = (await caller.call_json("list_tasks"))["tasks"]
        await gate.advance(20)
        assert "slow is done" in (await caller.call("get_task_result", {"task_id": task["task_id"]})).text
        assert server.count("slow") == 1


@virtual_time
async def test_a_caller_with_tasks_gets_a_handle_after_8_seconds_of_grace() -> None:
    server = slow_server()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        call = caller.begin_call("notes__slow", {"seconds": 30})
        await gate.advance(7.9)
        assert not call.is_done
        handle = (await call.done()).result
        assert (handle["resultType"], handle["status"]) == ("task", "working")
        assert call.took == pytest.approx(8.0, abs=0.05)
        quick = caller.begin_call("notes__slow", {"seconds": 7.5})
        assert (await quick.done()).text == "slow is done"
        await gate.advance(23)
        shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert shown["status"] == "completed"


@virtual_time
async def test_a_call_with_a_progress_token_gets_heartbeats() -> None:
    async with Gateway({}, {"notes": slow_server()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("notes__slow", {"seconds": 44}, _meta={"progressToken": "t"})
        reply = await call.done()
        assert reply.text == "slow is done"
        beats = [note["params"]["progress"] for note in reply.notes]
        # Every 15 seconds while no other progress is sent.
        assert len(beats) == 2
        assert beats == sorted(set(beats))


@virtual_time
async def test_sent_calls_are_promoted_in_time_above_the_limit_of_tasks() -> None:
    server = slow_server()
    async with Gateway({"limits": {"open_tasks_per_caller": 1}}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        calls = [caller.begin_call("notes__slow", {"seconds": 90}) for _ in range(3)]
        await gate.advance(45.1)
        assert all("continues as task tg_" in call.reply.text for call in calls)
        assert len((await caller.call_json("list_tasks"))["tasks"]) == 3
        assert server.count("slow") == 3
