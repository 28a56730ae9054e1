"""Tasks made by the vendor method `tasks/create`: under the id their caller gave, in the form its clients read."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.virtual_time import Call, Failure, Gateway, Upstream, virtual_time

ON: dict[str, Any] = {"compat": {"vendor_methods": True}, "errors": {"profile": "erlmcp"}}
TASKS: dict[str, Any] = {"tasks": {}}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 5))
        return "done"

    return notes


@virtual_time
async def test_the_given_id_is_the_tasks_id_everywhere() -> None:
    async with Gateway(ON, {"notes": server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.request("tasks/create", {"id": "job-1", "action": "notes__slow"})).result
        assert (made["taskId"], made["status"] in ("pending", "working")) == ("job-1", True)
        await gate.advance(1)
        shown = (await caller.request("tasks/get", {"taskId": "job-1"})).result
        assert (shown["taskId"], shown["status"], shown["action"]) == ("job-1", "working", "notes__slow")
        assert (type(shown["createdAt"]), type(shown["updatedAt"]), "result" in shown) == (int, int, False)
        (row,) = (await caller.request("tasks/list", {})).result["tasks"]
        assert (row["taskId"], type(row["createdAt"])) == ("job-1", int)
        await gate.advance(5)
        ended = (await caller.request("tasks/get", {"taskId": "job-1"})).result
        assert (ended["status"], ended["result"]["content"][0]["text"]) == ("completed", "done")
        result = (await caller.request("tasks/result", {"taskId": "job-1"})).result
        assert result["taskId"] == "job-1"
        assert result["result"]["content"] == result["content"]
        assert type(result["completedAt"]) is int


@virtual_time
async def test_a_task_without_a_given_id_gets_one_and_can_be_cancelled_by_it() -> None:
    async with Gateway(ON, {"notes": server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.request("tasks/create", {"action": "notes__slow"})).result
        await gate.advance(1)
        ended = (await caller.request("tasks/cancel", {"taskId": made["taskId"], "reason": "enough"})).result
        assert (ended["taskId"], ended["status"], type(ended["cancelledAt"])) == (made["taskId"], "cancelled", int)
        again = await caller.request("tasks/cancel", {"taskId": made["taskId"]})
        assert again.error["code"] == -32090


@virtual_time
async def test_another_caller_may_use_the_same_id_and_sees_only_its_own() -> None:
    async with Gateway(ON, {"notes": server()}) as gate:
        one = await gate.caller("2025", capabilities=TASKS)
        two = await gate.caller("2025", capabilities=TASKS)
        await one.request("tasks/create", {"id": "job", "action": "notes__slow", "arguments": {"seconds": 50}})
        assert (await two.request("tasks/get", {"taskId": "job"})).error["code"] == -32081
        await two.request("tasks/create", {"id": "job", "action": "notes__slow", "arguments": {"seconds": 1}})
        await gate.advance(10)
        assert (await two.request("tasks/get", {"taskId": "job"})).result["status"] == "completed"
        assert (await one.request("tasks/get", {"taskId": "job"})).result["status"] == "working"


@virtual_time
async def test_mcp_tasks_keep_their_format_beside_vendor_tasks() -> None:
    async with Gateway(ON, {"notes": server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = (await caller.call("notes__slow", {}, task={})).result["task"]
        shown = (await caller.request("tasks/get", {"taskId": made["taskId"]})).result
        assert (shown["taskId"], type(shown["createdAt"])) == (made["taskId"], str)


@virtual_time
async def test_the_given_id_survives_a_crash() -> None:
    token = "agent-token-0123456789abcdef"
    known = {"tokens": [{"id": "agent", "sha256": hashlib.sha256(token.encode()).hexdigest()}]}
    async with Gateway({**ON, **known}, {"notes": server()}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS, token=token)
        await caller.request("tasks/create", {"id": "job-9", "action": "notes__slow", "arguments": {"seconds": 1}})
        await gate.advance(5)
        gate.crash()
        await gate.start()
        again = await gate.caller("2025", capabilities=TASKS, token=token)
        assert (await again.request("tasks/get", {"taskId": "job-9"})).result["status"] == "completed"


@virtual_time
async def test_a_failed_task_contains_its_error() -> None:
    notes = server()

    @notes.tool("broken")
    async def broken(call: Call) -> str:
        raise Failure(-32603, "the disk is on fire")

    async with Gateway(ON, {"notes": notes}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        await caller.request("tasks/create", {"id": "job-2", "action": "notes__broken"})
        await gate.advance(5)
        ended = (await caller.request("tasks/get", {"taskId": "job-2"})).result
        assert (ended["status"], ended["action"], "on fire" in str(ended["error"])) == ("failed", "notes__broken", True)
        assert "result" not in ended
