"""Tasks of anonymous callers are hidden from other callers; limits apply to the actual caller."""

from __future__ import annotations

from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, virtual_time

FACADE: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "mode": "facade"}}}
TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "done"

    return notes


async def promoted(caller: Any, **more: Any) -> str:
    arguments = {"server": "notes", "tool": "slow", "timeout_ms": 1000}
    reply = await caller.call("execute_tool", arguments, **more)
    task_id: str = reply.text.split("Promoted to task ")[1].split(".")[0]
    return task_id


@virtual_time
async def test_anonymous_2026_callers_of_a_scope_do_not_see_each_others_tasks() -> None:
    async with Gateway(FACADE, {"notes": server()}) as gate:
        one, two = await gate.caller("2026"), await gate.caller("2026")
        task_id = await promoted(one)
        for caller in (one, two):
            listed = await caller.call_json("list_tasks")
            assert listed["tasks"] == []
            assert "taskgate/client" in listed["note"]
        seen = await two.call_json("await_activity", timeout_ms=100)
        assert (seen["events"], seen["pending_server"]) == ([], [])
        assert (await two.call_json("get_task", task_id=task_id))["task"]["task_id"] == task_id


@virtual_time
async def test_a_named_client_without_an_identity_has_its_own_list() -> None:
    async with Gateway(FACADE, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        mine, other = {"taskgate/client": "mine"}, {"taskgate/client": "other"}
        task_id = await promoted(caller, _meta=mine)
        for meta, count in ((mine, 1), (other, 0)):
            listed = await caller.call("list_tasks", {}, _meta=meta)
            assert listed.text.count(task_id) == count


@virtual_time
async def test_new_sessions_and_invented_names_do_not_evade_the_limit_of_tasks() -> None:
    """All callers without an identity at one address have ten times what one of their sessions has."""
    async with Gateway({"limits": {"open_tasks_per_caller": 1}}, {"notes": server()}) as gate:
        outcomes = []
        for _ in range(11):
            caller = await gate.caller("2025", capabilities=TASKS)
            outcomes.append((await caller.call("notes__slow", {}, task={})).last)
        assert ["result" in outcome for outcome in outcomes] == [True] * 10 + [False]
        assert outcomes[10]["error"]["data"]["error_type"] == "overloaded"


@virtual_time
async def test_new_sessions_do_not_evade_the_limit_of_approvals() -> None:
    config = {
        "governance": {"rules": [{"match": "slow", "action": "approve"}]},
        "limits": {"pending_approvals_per_caller": 1},
    }
    async with Gateway(config, {"notes": server()}) as gate:
        outcomes = []
        for _ in range(2):
            caller = await gate.caller("2025", capabilities=TASKS)
            outcomes.append((await caller.call("notes__slow", {}, task={})).last)
        assert ["result" in outcome for outcome in outcomes] == [True, False]
