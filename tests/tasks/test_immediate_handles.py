"""A 2026 caller that requests a task handle at once does not wait for the grace period."""

from __future__ import annotations

from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time

NOW = {"taskgate/task": True}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(5)
        return "done"

    return notes


@virtual_time
async def test_a_2026_caller_may_ask_for_a_handle_at_once() -> None:
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        await caller.tools()
        call = caller.begin_call("notes__slow", _meta=NOW)
        handle = (await call.done()).result
        assert (handle["resultType"], handle["status"]) == ("task", "working")
        assert call.took < 1
        await gate.advance(6)
        ended = (await caller.request("tasks/get", {"taskId": handle["taskId"]})).result
        assert ended["result"]["content"][0]["text"] == "done"
        assert notes.count("slow") == 1


@virtual_time
async def test_without_the_tasks_extension_an_immediate_handle_is_refused_before_anything_runs() -> None:
    notes = server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2026")
        refused = await caller.call("notes__slow", _meta=NOW)
        assert refused.error["code"] == -32021
        assert refused.status == 400
        assert notes.count("slow") == 0


@virtual_time
async def test_only_the_value_true_requests_an_immediate_handle() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        assert (await caller.call("notes__slow", _meta={"taskgate/task": "yes"})).text == "done"


@virtual_time
async def test_a_subscription_to_a_finished_task_gets_its_end() -> None:
    """A call may end between its handle and the stream that follows it."""
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        handle = (await caller.call("notes__slow", _meta=NOW)).result
        await gate.advance(10)
        stream = await caller.listen(taskIds=[handle["taskId"]])
        reported = await stream.message(1)
        assert (reported["method"], reported["params"]["status"]) == ("notifications/tasks", "completed")
        await stream.disconnect()
