"""`auth.anonymous_tasks`: by default the id of an anonymous task opens it for everybody; with `session`, its conversation only."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.access.config_tokens import token
from tests.virtual_time import Call, Caller2025, Gateway, Upstream, virtual_time

TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
HELPERS = {"default_servers": ["*"], "names": "plain", "mode": "both", "scripts": "on"}

TIMES = {"promote_after_ms": 1_000, "default_ttl_ms": 60_000, "keep_result_ms": 60_000}


def config(mode: str) -> dict[str, Any]:
    return {"scopes": {"default": HELPERS}, "auth": {"anonymous_tasks": mode}, "tasks": TIMES}


def server() -> Upstream:
    notes = Upstream("both")

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(600)
        return "the result"

    return notes


async def started(gate: Gateway, generation: str, client: str = "") -> tuple[Any, str]:
    """A caller without a token, and a task that it has started."""
    caller = await gate.caller(generation, capabilities=TASKS if generation == "2025" else None)
    meta = {"_meta": {"taskgate/client": client}} if client else {}
    call = caller.begin_call("slow", **meta)
    await gate.advance(2)
    return caller, str(re.findall(r"tg_\w+", call.reply.text)[0])


async def opened_by(gate: Gateway, caller: Any, task_id: str, client: str = "") -> list[bool]:
    """Whether each way to read or follow the task opens it, without changing it."""
    meta = {"_meta": {"taskgate/client": client}} if client else {}
    found = []
    for tool, arguments in (
        ("get_task", {"task_id": task_id}),
        ("await_activity", {"task_ids": [task_id], "timeout_ms": 1}),
    ):
        call = caller.begin_call(tool, arguments, **meta)
        await gate.advance(1)
        found.append(task_id in call.reply.text and "no task" not in call.reply.text)
    if isinstance(caller, Caller2025):
        found.append("result" in (await caller.request("tasks/get", {"taskId": task_id})).json())
    return found


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_by_default_an_id_opens_and_cancels_an_anonymous_task_from_another_session(generation: str) -> None:
    async with Gateway(config("id"), {"notes": server()}) as gate:
        _, task_id = await started(gate, generation)
        other = await gate.caller("2025", capabilities=TASKS)
        assert all(await opened_by(gate, other, task_id))
        assert not (await other.call("cancel_task", {"task_id": task_id})).result.get("isError")


@virtual_time
async def test_with_session_only_the_session_that_started_a_task_opens_it() -> None:
    async with Gateway(config("session"), {"notes": server()}) as gate:
        own, task_id = await started(gate, "2025")
        assert all(await opened_by(gate, own, task_id))
        for other in (await gate.caller("2025", capabilities=TASKS), await gate.caller("2026")):
            assert not any(await opened_by(gate, other, task_id))
            assert (await other.call("cancel_task", {"task_id": task_id})).result["isError"]
            resumed = await other.call("run_script", {"code": "1", "resume_of": task_id})
            assert "no such task" in json.dumps(resumed.json())
        refused = await (await gate.caller("2025", capabilities=TASKS)).request("tasks/cancel", {"taskId": task_id})
        assert refused.error["data"]["error_type"] == "unknown_task"
        assert not (await own.call("cancel_task", {"task_id": task_id})).result.get("isError")
        await gate.advance(300)
        other = await gate.caller("2025", capabilities=TASKS)
        gone = await other.request("tasks/get", {"taskId": task_id})
        assert gone.error["data"]["error_type"] == "unknown_task", "nor does its outcome show when it is no longer kept"


@virtual_time
async def test_with_session_a_stateless_request_needs_the_name_of_the_client() -> None:
    async with Gateway(config("session"), {"notes": server()}) as gate:
        caller, task_id = await started(gate, "2026", "desk-1")
        assert all(await opened_by(gate, caller, task_id, "desk-1"))
        assert not any(await opened_by(gate, caller, task_id, "desk-2"))
        assert not any(await opened_by(gate, caller, task_id))
        unnamed, hers = await started(gate, "2026")
        assert not any(await opened_by(gate, unnamed, hers))


@virtual_time
async def test_with_session_a_client_without_a_name_still_answers_questions_in_its_reply() -> None:
    """The signed state that it returns proves that the call is its own."""
    async with Gateway(config("session"), {"notes": server()}) as gate:
        caller = await gate.caller("2026", capabilities={"elicitation": {"form": {}}})
        params = {"name": "run_script", "arguments": {"code": "await ask('Which colour?')"}}
        asked = (await caller.request("tools/call", params)).result
        (key,) = asked["inputRequests"]
        given = {key: {"action": "accept", "content": {"answer": "blue"}}}
        state = {"requestState": asked["requestState"], "inputResponses": given}
        reply = await caller.request("tools/call", {**params, **state})
        assert reply.result["structuredContent"]["result"] == "blue", reply.json()


@virtual_time
async def test_the_setting_does_not_affect_callers_with_an_identity() -> None:
    settings = {**config("session"), "tokens": [token("agent")]}
    async with Gateway(settings, {"notes": server()}) as gate:
        caller = await gate.caller("2026", token="agent-token")
        call = caller.begin_call("slow")
        await gate.advance(2)
        task_id = str(re.findall(r"tg_\w+", call.reply.text)[0])
        other = await gate.caller("2025", token="agent-token", capabilities=TASKS)
        assert all(await opened_by(gate, other, task_id))
