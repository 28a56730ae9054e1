"""Scripts of clients without tasks: helper tools, the facade, answers in the inbox; and scripts that misbehave."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, ended, shop, started, structured
from tests.seam import Caller, Gateway, seam


def scope(**more: Any) -> dict[str, Any]:
    """With a token: callers of the stateless generation have no session in which their tasks and questions could be found."""
    tokens = [{"id": "ann", "sha256": hashlib.sha256(b"ann").hexdigest()}]
    return {"tokens": tokens, "scopes": {"default": {"default_servers": ["*"], "scripts": "on", **more}}}


async def asked(gate: Gateway, caller: Caller) -> str:
    """The id of the question that waits in the inbox of the caller."""
    for _ in range(100):
        found = (await caller.call_json("get_elicitations"))["elicitations"]
        if found:
            return str(found[0]["request_id"])
        await gate.advance(1)
    raise AssertionError("nothing was asked")


@seam
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("mode", ["facade", "both"])
async def test_client_that_can_only_call_tools_runs_a_script(generation: str, mode: str) -> None:
    store = shop()
    async with Gateway(scope(mode=mode), {"shop": store}) as gate:
        caller = await gate.caller(generation, token="ann")
        assert {"run_script", "describe_tools"} <= {tool["name"] for tool in await caller.tools()}
        reply = await caller.call("run_script", {"code": "[await shop.read(n=1), await shop.buy(n=2)]"})
        assert structured(reply.result)["result"] == ["read 1", "bought 2"]


@seam
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_client_with_helper_tools_gets_the_result_of_a_long_script(generation: str) -> None:
    store = shop()
    async with Gateway(scope(helper_tools="always"), {"shop": store}) as gate:
        caller = await gate.caller(generation, token="ann")
        begun = caller.begin_call("run_script", {"code": "await sleep(900)\nawait shop.read(n=1)"})
        await gate.advance(600)
        assert begun.is_done, "the reply is not held for so long"
        [task] = (await caller.call_json("list_tasks"))["tasks"]
        await gate.advance(310)
        found = await caller.call("get_task_result", {"task_id": task["task_id"]})
        assert "read 1" in json.dumps(found.result)
        assert store.count("read") == 1


@seam
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_second_answer_to_one_question_is_refused(generation: str) -> None:
    async with Gateway(scope(mode="facade"), {"shop": shop()}) as gate:
        caller = await gate.caller(generation, token="ann")
        begun = caller.begin_call("run_script", {"code": "[await ask('Which colour?'), await ask('And which size?')]"})
        first = await asked(gate, caller)
        answer = {"request_id": first, "action": "accept", "content": {"answer": "blue"}}
        assert (await caller.call_json("respond_to_elicitation", **answer))["success"] is True
        again = await caller.call("respond_to_elicitation", {**answer, "content": {"answer": "red"}})
        assert '"success":true' not in again.text.replace(" ", "")
        second = await asked(gate, caller)
        assert second != first
        await caller.call_json("respond_to_elicitation", request_id=second, action="accept", content={"answer": "xl"})
        reply = await begun.done()
        assert structured(reply.result)["result"] == ["blue", "xl"]


@seam
async def test_script_that_catches_everything_ends_at_the_limit_of_calls() -> None:
    store = shop()
    async with Gateway({**ON, "limits": {"script_calls": 20}}, {"shop": store}) as gate:
        code = "while True:\n    try:\n        await shop.buy(n=1)\n    except BaseException:\n        pass"
        reply = await (await gate.caller("2025")).call("run_script", {"code": code})
        assert structured(reply.result)["error"]["error_type"] == "script_limit"
        assert store.count("buy") == 20


@seam
async def test_script_that_catches_everything_can_be_cancelled() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        code = "while True:\n    try:\n        await sleep(30)\n    except BaseException:\n        pass"
        task = await started(gate, caller, code)
        await gate.advance(100)
        assert (await caller.request("tasks/cancel", {"taskId": task})).result["status"] == "cancelled"
        await gate.advance(100)
        assert (await caller.request("tasks/get", {"taskId": task})).result["status"] == "cancelled"


NOT_JSON = """
told = []
for value in (float("nan"), float("inf"), b"bytes", {1: 2}, {1, 2}, 10 ** 5000, print):
    try:
        await shop.buy(n=value)
        told.append("called")
    except Exception as e:
        told.append([tool_error(e).type, tool_error(e).executed])
told
"""


@seam
async def test_arguments_that_are_not_json_raise_before_the_call() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        content = structured(await ended(caller, await started(gate, caller, NOT_JSON)))["result"]
        assert {each[0] for each in content} <= {"TypeError", "ValueError", "invalid_params"}
        assert {each[1] for each in content} == {"no"}
        assert store.count("buy") == 0


@seam
@pytest.mark.parametrize("value", ["float('nan')", "b'bytes'", "{1: 2}", "{1, 2}", "print", "10 ** 5000"])
async def test_value_of_a_script_that_is_not_json_fails_with_its_calls(value: str) -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        reply = await (await gate.caller("2025")).call("run_script", {"code": f"await shop.buy(n=1)\n{value}"})
        content = structured(reply.result)
        assert (content["error"]["error_type"], content["error"]["executed"]) == ("script_failed", "yes")
        assert [call["tool"] for call in content["calls"]["executed"]] == ["shop__buy"]
