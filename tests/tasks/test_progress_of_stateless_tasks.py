"""The numbers of a task go on after its handle, also for callers of the generation that has no notifications for them."""

from __future__ import annotations

from typing import Any

from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time

from taskgate.client import Progress, connect


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        for step in range(1, 13):
            call.progress(step, 12, f"step {step}")
            await call.sleep(5)
        return "done"

    return notes


@virtual_time
async def test_tasks_get_of_a_running_task_shows_its_progress() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow", {}, _meta={"progressToken": "p"})).result
        seen: list[Any] = []
        for _ in range(5):
            await gate.advance(5)
            shown = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
            seen.append(shown["_meta"]["taskgate/progress"])
        assert [entry["progress"] for entry in seen] == sorted({entry["progress"] for entry in seen})
        assert {entry["total"] for entry in seen} == {12}
        await gate.advance(60)
        ended = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert ended["status"] == "completed"
        assert "taskgate/progress" not in ended.get("_meta", {})


@virtual_time
async def test_a_subscription_to_a_task_gets_its_progress() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow", {}, _meta={"progressToken": "p"})).result
        stream = await caller.listen(taskIds=[handle["taskId"]])
        await gate.advance(70)
        received = [
            message["params"] for message in stream.reply.messages if message.get("method") == "notifications/tasks"
        ]
        numbers = [
            params["_meta"]["taskgate/progress"]["progress"] for params in received if params["status"] == "working"
        ]
        assert numbers[-1] == 12
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= 8


@virtual_time
async def test_the_client_library_reports_every_step_of_a_stateless_task() -> None:
    async with Gateway({"tasks": {"poll_interval_ms": 1000}}, {"notes": server()}) as gate:
        seen: list[Progress] = []
        async with connect(gate.url) as session:
            handle = await session.call_tool_as_task("notes__slow", {}, on_progress=seen.append)
            assert (await handle.result(timeout=300)).text == "done"
        assert [entry.progress for entry in seen] == sorted({entry.progress for entry in seen})
        assert seen[-1].progress == 12
        assert len(seen) >= 10
