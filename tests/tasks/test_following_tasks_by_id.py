"""Callers with neither an identity nor a name follow their tasks by id; each event reaches each of them once."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.events import EventKind

BOTH = {"scopes": {"default": {"default_servers": ["*"], "names": "plain"}}, "tasks": {"promote_after_ms": 1_000}}
TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {}}}
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def server() -> Upstream:
    notes = Upstream("both")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(20)
        return "done"

    @notes.tool("ask")
    async def ask(call: Call) -> str:
        await call.sleep(5)
        answer = await call.elicit("Which colour?", FORM)
        return f"painted {answer['content']['colour']}"

    return notes


async def begun(gate: Gateway, caller: Any, tool: str = "slow") -> str:
    call = caller.begin_call(tool)
    await gate.advance(2)
    found: str = re.findall(r"tg_\w+", call.reply.text)[0]
    return found


def kinds(reply: dict[str, Any]) -> list[str]:
    return [event["type"] for server in reply["events"] for event in server["events"]]


@virtual_time
async def test_anonymous_caller_without_a_name_follows_tasks_by_their_ids() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        first, second = await begun(gate, caller), await begun(gate, caller)
        started = await caller.call_json("await_activity", task_ids=[first, second])
        assert kinds(started) == ["task_created", "task_created"]
        waiting = caller.begin_call("await_activity", {"task_ids": [first, second]})
        await gate.advance(0.5)
        assert not waiting.is_done
        received = []
        for _ in range(40):
            received += kinds(await caller.call_json("await_activity", task_ids=[first, second]))
        assert received == ["task_completed", "task_completed"]
        over = await caller.call_json("await_activity", task_ids=[first, second])
        assert kinds(over) == []
        assert [task["status"] for task in over["tasks"]] == ["completed", "completed"]


@virtual_time
async def test_server_events_are_not_repeated_for_each_followed_task() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        tasks = [await begun(gate, caller), await begun(gate, caller)]
        await caller.call_json("await_activity", task_ids=tasks)
        activity = gate.life.app.gateway.console.decisions.activity
        activity.publish_to_scopes(EventKind.SERVER_DISCONNECTED, "notes", {}, lambda _scope: True)
        assert kinds(await caller.call_json("await_activity", task_ids=tasks)).count("server_disconnected") <= 1


@virtual_time
async def test_events_of_followed_tasks_are_not_repeated_after_a_restart() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        task_id = await begun(gate, caller)
        assert kinds(await caller.call_json("await_activity", task_ids=[task_id])) == ["task_created"]
        await gate.advance(25)
        await gate.restart()
        again = await gate.caller("2026")
        assert kinds(await again.call_json("await_activity", task_ids=[task_id])) == ["task_completed"]
        assert kinds(await again.call_json("await_activity", task_ids=[task_id])) == []


@virtual_time
async def test_question_of_a_followed_task_is_shown() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        task_id = await begun(gate, caller, "ask")
        await gate.advance(10)
        reply = await caller.call_json("await_activity", task_ids=[task_id])
        (asked,) = reply["pending_client"]["elicitations"]
        assert (asked["message"], asked["taskId"]) == ("Which colour?", task_id)
        answer = {
            "request_id": asked["requestId"],
            "task_id": task_id,
            "action": "accept",
            "content": {"colour": "blue"},
        }
        await caller.call("respond_to_elicitation", answer)
        await gate.advance(5)
        assert (await caller.call("get_task_result", {"task_id": task_id})).text == "painted blue"


async def kinds_of(caller: Any, client: str, tool: str, **arguments: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads((await caller.call(tool, arguments, _meta={"taskgate/client": client})).text)
    return reply


@virtual_time
async def test_named_stateless_client_sees_each_event_once() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        call = caller.begin_call("slow", _meta={"taskgate/client": "one"})
        await gate.advance(2)
        (task_id,) = set(re.findall(r"tg_\w+", call.reply.text))
        await gate.advance(25)
        for client, expected in (("two", []), ("one", ["task_created", "task_completed"]), ("one", []), ("two", [])):
            reply = await kinds_of(caller, client, "await_activity", task_ids=[task_id])
            assert kinds(reply) == expected
            assert reply["tasks"][0]["status"] == "completed"


@virtual_time
async def test_change_of_a_task_of_another_conversation_ends_the_wait() -> None:
    async with Gateway({**BOTH, "tasks": {"promote_after_ms": 40_000}}, {"notes": server()}) as gate:
        session, other = await gate.caller("2025", capabilities=TASKS), await gate.caller("2026")
        made = (await session.call("slow", {}, task={})).result["task"]["taskId"]
        waiting = other.begin_call("await_activity", {"task_ids": [made], "timeout_ms": 40_000})
        await gate.advance(10)
        assert not waiting.is_done
        await gate.advance(15)
        reply = json.loads(waiting.reply.text)
        assert (kinds(reply), reply["tasks"][0]["status"]) == ([], "completed")


@virtual_time
@pytest.mark.parametrize("tool", ["await_activity", "get_elicitations", "get_sampling_requests", "list_tasks"])
async def test_empty_result_states_reason_and_remedy(tool: str) -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        waiting = caller.begin_call(tool)
        await gate.advance(0.5)
        assert waiting.is_done
        assert "taskgate/client" in json.loads(waiting.reply.text)["note"]
        assert "note" not in await kinds_of(caller, "one", tool)


@virtual_time
async def test_ids_open_tasks_of_the_same_principal_only() -> None:
    ann = "ann-token-of-the-test-0123456789"
    config = {
        **BOTH,
        "tokens": [{"id": "ann", "sha256": hashlib.sha256(ann.encode()).hexdigest()}],
        "auth": {"anonymous": "default"},
    }
    async with Gateway(config, {"notes": server()}) as gate:
        anonymous, identified = await gate.caller("2026"), await gate.caller("2026", token=ann)
        theirs, hers = await begun(gate, anonymous), await begun(gate, identified)
        for caller, own, foreign in ((anonymous, theirs, hers), (identified, hers, theirs)):
            assert (await caller.call_json("await_activity", task_ids=[own]))["tasks"][0]["task_id"] == own
            refused = await caller.call("await_activity", {"task_ids": [own, foreign]})
            assert refused.result["isError"]
            assert "There is no task" in refused.text


@virtual_time
async def test_handover_names_the_tool_that_follows_tasks() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        call = (await gate.caller("2026")).begin_call("slow")
        await gate.advance(2)
        assert "await_activity" in call.reply.text
        assert "task_ids" in call.reply.text


@virtual_time
async def test_too_many_ids_are_refused() -> None:
    async with Gateway(BOTH, {"notes": server()}) as gate:
        caller = await gate.caller("2026")
        refused = await caller.call("await_activity", {"task_ids": [f"tg_{number}" for number in range(51)]})
        assert refused.result["isError"]
