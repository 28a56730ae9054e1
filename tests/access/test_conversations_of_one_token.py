"""Two windows of one person use one token: each gets events of its own work, and of what a closed one left behind."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace
from tests.virtual_time import Call, Caller, Gateway, Upstream, virtual_time

from taskgate.store.operations.task_queries import FindTask

TOKEN = "agent-token-0123456789abcdef"
CONFIG: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
    "tokens": [{"id": "agent", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}],
}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "done"

    @notes.tool("ask")
    async def ask(call: Call) -> str:
        answer = await call.elicit("Your name?", FORM)
        return str(answer["content"]["name"])

    return notes


async def promoted(caller: Caller, tool: str = "slow", **more: Any) -> str:
    arguments = {"server": "notes", "tool": tool, "timeout_ms": 1000}
    reply = await caller.call("execute_tool", arguments, **more)
    task_id: str = reply.text.split("Promoted to task ")[1].split(".")[0]
    return task_id


def kinds(seen: dict[str, Any]) -> list[str]:
    return [event["type"] for group in seen["events"] for event in group["events"]]


async def news(caller: Caller, **more: Any) -> list[str]:
    return kinds(await caller.call_json("await_activity", timeout_ms=10, **more))


@virtual_time
async def test_each_session_gets_only_events_of_its_own_task() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        one, two = [await gate.caller("2025", token=TOKEN) for _ in range(2)]
        await one.call_json("list_tasks"), await two.call_json("list_tasks")
        mine, others = await promoted(one), await promoted(two)
        assert mine != others
        await gate.advance(120)
        for caller, task_id in ((two, others), (one, mine)):
            seen = await caller.call_json("await_activity", timeout_ms=10)
            done = [event for group in seen["events"] for event in group["events"] if event["type"] == "task_completed"]
            assert [event["data"]["task_id"] for event in done] == [task_id]
            assert await news(caller) == []


@virtual_time
async def test_each_session_lists_its_own_tasks_and_finds_others_by_id() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        one, two = [await gate.caller("2025", token=TOKEN) for _ in range(2)]
        task_id = await promoted(one)
        assert (await two.call_json("list_tasks"))["tasks"] == []
        assert (await two.call_json("await_activity", timeout_ms=10))["pending_server"] == []
        assert [task["task_id"] for task in (await one.call_json("list_tasks"))["tasks"]] == [task_id]
        assert (await two.call_json("get_task", task_id=task_id))["task"]["task_id"] == task_id
        native = [(await caller.request("tasks/list")).result["tasks"] for caller in (one, two)]
        assert [[row["taskId"] for row in rows] for rows in native] == [[task_id], []]


@virtual_time
async def test_events_of_a_closed_session_go_to_every_other_session_once() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        one, two, three = [await gate.caller("2025", token=TOKEN) for _ in range(3)]
        await two.call_json("list_tasks"), await three.call_json("list_tasks")
        task_id = await promoted(one)
        await one.close()
        assert (await two.call_json("await_activity", timeout_ms=10))["pending_server"][0]["working_tasks"]
        assert [task["task_id"] for task in (await two.call_json("list_tasks"))["tasks"]] == [task_id]
        await gate.advance(120)
        for caller in (two, three):
            assert (await news(caller)).count("task_completed") == 1
            assert await news(caller) == []
        late = await gate.caller("2025", token=TOKEN)
        assert await news(late) == []


@virtual_time
async def test_events_delivered_before_a_session_closed_are_not_repeated_after_a_restart() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        one, two = [await gate.caller("2025", token=TOKEN) for _ in range(2)]
        await one.call_json("list_tasks"), await two.call_json("list_tasks")
        await promoted(one), await promoted(two)
        await gate.advance(120)
        assert "task_completed" in await news(one)
        await gate.restart()
        again = await gate.caller("2025", token=TOKEN)
        assert (await news(again)).count("task_completed") == 1


@virtual_time
async def test_a_question_waits_for_its_session_and_then_for_the_others() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        one, two = [await gate.caller("2025", token=TOKEN) for _ in range(2)]
        await two.call_json("list_tasks")
        task_id = await promoted(one, "ask")
        assert [row["task_id"] for row in (await one.call_json("get_elicitations"))["elicitations"]] == [task_id]
        assert (await two.call_json("get_elicitations"))["elicitations"] == []
        assert "elicitation_request" not in await news(two)
        await one.close()
        asked = (await two.call_json("get_elicitations"))["elicitations"]
        assert [row["task_id"] for row in asked] == [task_id]
        assert "elicitation_request" in await news(two)
        answer = {"request_id": asked[0]["request_id"], "action": "accept", "content": {"name": "Ann"}}
        await two.call_json("respond_to_elicitation", **answer)
        assert "Ann" in (await two.call("get_task_result", {"task_id": task_id})).text


@virtual_time
async def test_stateless_clients_of_one_token_are_distinguished_by_their_name() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        caller = await gate.caller("2026", token=TOKEN)
        mine, other = {"taskgate/client": "mine"}, {"taskgate/client": "other"}
        task_id = await promoted(caller, _meta=mine)
        for meta, count in ((other, 0), ({}, 0), (mine, 1)):
            assert (await caller.call("list_tasks", {}, _meta=meta)).text.count(task_id) == count
        await gate.advance(120)
        for meta, count in ((other, 0), ({}, 0), (mine, 1), (mine, 0)):
            reply = await caller.call("await_activity", {"timeout_ms": 10}, _meta=meta)
            assert reply.text.count("task_completed") == count, meta


@virtual_time
async def test_an_idle_stateless_client_counts_as_ended() -> None:
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        caller = await gate.caller("2026", token=TOKEN)
        mine, other = {"taskgate/client": "mine"}, {"taskgate/client": "other"}
        task_id = await promoted(caller, _meta=mine)
        await gate.advance(45 * 60)
        reply = await caller.call("list_tasks", {"status": "expired"}, _meta=other)
        assert task_id in reply.text


@virtual_time
async def test_a_stateless_client_that_has_just_created_a_task_at_another_gateway_is_active() -> None:
    """Another gateway announces the task, which has moved on when it is read here; this one does not know the client."""
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        caller = await gate.caller("2026", token=TOKEN)
        task_id = await promoted(caller, _meta={"taskgate/client": "mine"})
        console = gate.life.app.gateway.console
        task = await console.calls.tasks.store.ask(FindTask(task_id))
        assert task is not None
        just_now, before = (
            replace(
                task,
                conversation=f"{task.conversation}-{age_ms}",
                created_ms=console.calls.tasks.store.now_ms() - age_ms,
            )
            for age_ms in (900, 60_000)
        )
        for one in (just_now, before):
            assert not console.decisions.activity.conversations.is_open(one.conversation_key)
            console.calls.tasks.records.changes.changed(replace(one, updated_ms=one.created_ms + 800))
        assert console.decisions.activity.conversations.is_open(just_now.conversation_key)
        assert not console.decisions.activity.conversations.is_open(before.conversation_key)


@virtual_time
async def test_events_lost_with_a_connection_are_repeated_with_the_same_id() -> None:
    """A client that was killed while it waited, and goes on in its session: the event is neither lost nor delivered twice."""
    async with Gateway(CONFIG, {"notes": server()}) as gate:
        caller = await gate.caller("2025", token=TOKEN)
        await caller.call_json("list_tools")
        await news(caller)
        await caller.call_json("set_timer", duration_ms=2000, message="tea")
        waiting = caller.begin_call("await_activity", {"timeout_ms": 4000})
        await gate.advance(1)
        assert not waiting.is_done
        await waiting.disconnect()
        await gate.advance(2)
        seen = await caller.call_json("await_activity", timeout_ms=10)
        fired = [event for group in seen["events"] for event in group["events"]]
        assert [(event["type"], event["data"]["message"]) for event in fired] == [("timer_expired", "tea")]
        again = await caller.call_json(
            "await_activity", timeout_ms=10, after=min(event["id"] for event in fired)[:-1] + "0"
        )
        assert [event["id"] for group in again["events"] for event in group["events"]] == [fired[0]["id"]]
        assert await news(caller) == []
