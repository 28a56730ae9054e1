"""Questions of tasks reach a stateless caller that can answer them in the replies of the tools that follow tasks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, structured
from tests.virtual_time import TASKS_EXTENSION, Call, Caller, Exchange, Gateway, Reply, Upstream, until, virtual_time

from taskgate.gateway.requests.open_conversations import IDLE_S
from taskgate.gateway.tasks.questions_in_reply import RETURN_S

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}
ACCEPTED = {"action": "accept", "content": {"colour": "blue"}}
MESSAGES = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "m"}
ROOTS = {"roots": [{"uri": "file:///home/ann"}]}
PAGE = {"mode": "url", "message": "Log in", "url": "https://login.example/1", "elicitationId": "e1"}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "elicitation": ("elicitation/create", {"message": "Which colour?", "requestedSchema": FORM}, ACCEPTED),
    "page": ("elicitation/create", PAGE, {"action": "accept"}),
    "sampling": ("sampling/createMessage", MESSAGES, SAMPLED),
    "roots": ("roots/list", {}, ROOTS),
}
ABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ONE = {"taskgate/client": "one"}
TWO = {"taskgate/client": "two"}


def config(**more: Any) -> dict[str, Any]:
    tokens = [{"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("ann", "bob")]
    return {"tokens": tokens, "tasks": {"promote_after_ms": 1000}, **more}


def painter(generation: str, kind: str = "elicitation", after_s: float = 3.0) -> Upstream:
    notes = Upstream(generation)

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        if "inputResponses" not in call.params:
            await call.sleep(after_s)
        method, params, _ = KINDS[kind]
        return json.dumps(await call.ask(method, params))

    return notes


async def promoted(gate: Gateway, caller: Caller, **more: Any) -> str:
    """Call the tool; the task that it became asks when this returns."""
    reply = await caller.call("notes__paint", {}, **more)
    assert "inputRequests" not in reply.result
    await gate.advance(5)
    return str(reply.result["structuredContent"]["taskgate_notice"]["task_id"])


def follow(caller: Caller, tool: str, task_id: str, **more: Any) -> Exchange:
    arguments = {"task_ids": [task_id]} if tool == "await_activity" else {"task_id": task_id}
    return caller.begin_call(tool, arguments, **more)


def answers(reply: Reply, answer: dict[str, Any] = ACCEPTED) -> dict[str, Any]:
    """What a client returns with its next request."""
    requests = reply.result["inputRequests"]
    return {"requestState": reply.result["requestState"], "inputResponses": dict.fromkeys(requests, answer)}


def result_of(reply: Reply) -> Any:
    """The answer, which the tool returns; events may follow it in the reply."""
    return json.loads(reply.result["content"][0]["text"])


def is_asked(reply: Reply) -> bool:
    return reply.result.get("resultType") == "input_required"


@pytest.mark.parametrize("tool", ["get_task_result", "get_task", "await_activity"])
@pytest.mark.parametrize("token", ["ann", None])
@virtual_time
async def test_tools_that_follow_a_promoted_call_ask_its_caller(token: str | None, tool: str) -> None:
    settings = config() if token is not None else {"tasks": {"promote_after_ms": 1000}}
    async with Gateway(settings, {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token=token, capabilities=ABLE)
        task_id = await promoted(gate, caller)
        reply = await follow(caller, tool, task_id).done()
        (question,) = reply.result["inputRequests"].values()
        assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Which colour?")
        await follow(caller, tool, task_id, **answers(reply)).done()
        result = await follow(caller, "get_task_result", task_id).done()
        assert result_of(result) == ACCEPTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", ["2025", "2026"])
@virtual_time
async def test_every_kind_of_question_of_a_promoted_call_reaches_its_caller(server: str, kind: str) -> None:
    async with Gateway(config(), {"notes": painter(server, kind)}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        reply = await follow(caller, "get_task_result", task_id).done()
        method, _, answer = KINDS[kind]
        (question,) = reply.result["inputRequests"].values()
        assert question["method"] == method
        result = await follow(caller, "get_task_result", task_id, **answers(reply, answer)).done()
        assert result_of(result) == answer


@pytest.mark.parametrize("tool", ["get_task_result", "await_activity"])
@virtual_time
async def test_a_waiting_request_is_answered_as_soon_as_the_server_asks(tool: str) -> None:
    async with Gateway(config(tasks={"promote_after_ms": 20_000}), {"notes": painter("2025", after_s=30)}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        if tool == "await_activity":
            assert not is_asked(await follow(caller, tool, task_id).done()), "the event of the promotion"
        waiting = follow(caller, tool, task_id)
        assert is_asked(await waiting.done())
        assert 4 < waiting.took < 6


@virtual_time
async def test_one_of_several_waiting_requests_carries_the_question() -> None:
    async with Gateway(config(tasks={"promote_after_ms": 20_000}), {"notes": painter("2025", after_s=30)}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        waiting = [follow(caller, "get_task_result", task_id) for _ in range(3)]
        await gate.advance(6)
        asked = [one for one in waiting if one.is_done]
        assert [is_asked(one.reply) for one in asked] == [True]
        assert not is_asked(await follow(caller, "get_task", task_id).done())
        result = await follow(caller, "get_task_result", task_id, **answers(asked[0].reply)).done()
        assert result_of(result) == ACCEPTED
        for one in waiting:
            assert one in asked or result_of(await one.done()) == ACCEPTED


@virtual_time
async def test_question_whose_caller_does_not_return_is_carried_again() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        assert is_asked(await follow(caller, "get_task", task_id).done())
        await gate.advance(RETURN_S - 10)
        assert not is_asked(await follow(caller, "get_task", task_id).done())
        await gate.advance(10)
        assert is_asked(await follow(caller, "get_task", task_id).done())


@virtual_time
async def test_question_without_an_answer_is_carried_again_at_once() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        asked = await follow(caller, "get_task", task_id).done()
        empty = {**answers(asked), "inputResponses": {}}
        again = await follow(caller, "get_task", task_id, **empty).done()
        assert is_asked(again)


@virtual_time
async def test_question_in_a_reply_that_does_not_arrive_is_carried_by_the_next_one() -> None:
    async with Gateway(config(tasks={"promote_after_ms": 20_000}), {"notes": painter("2025", after_s=30)}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        lost = follow(caller, "get_task_result", task_id)
        await gate.advance(1)
        await lost.disconnect()
        await gate.advance(6)
        assert is_asked(await follow(caller, "get_task", task_id).done())


@virtual_time
async def test_only_the_conversation_of_the_call_is_asked() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        ann = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, ann, _meta=ONE)
        for meta in ({}, {"taskgate/client": "two"}):
            assert not is_asked(await follow(ann, "get_task", task_id, _meta=meta).done())
        bob = await gate.caller("2026", token="bob", capabilities=ABLE)
        assert "There is no task" in (await follow(bob, "get_task", task_id, _meta=ONE).done()).text
        assert is_asked(await follow(ann, "get_task", task_id, _meta=ONE).done())


@virtual_time
async def test_a_named_anonymous_client_is_asked_and_one_that_knows_the_id_only_is_not() -> None:
    async with Gateway({"tasks": {"promote_after_ms": 1000}}, {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", capabilities=ABLE)
        task_id = await promoted(gate, caller, _meta=ONE)
        assert not is_asked(await follow(caller, "get_task", task_id).done())
        assert is_asked(await follow(caller, "get_task", task_id, _meta=ONE).done())


@virtual_time
async def test_answers_of_another_caller_and_of_another_task_are_refused() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        ann, bob = [await gate.caller("2026", token=name, capabilities=ABLE) for name in ("ann", "bob")]
        task_id, other = await promoted(gate, ann), await promoted(gate, bob)
        asked = answers(await follow(ann, "get_task", task_id).done())
        refused = await follow(bob, "get_task", other, **asked).done()
        assert refused.result["_meta"]["taskgate/error"]["error_type"] == "invalid_params"
        asked_bob = answers(await follow(bob, "get_task", other).done())
        (theirs,) = asked_bob["inputResponses"]
        await follow(ann, "get_task", task_id, **{**asked, "inputResponses": {theirs: ACCEPTED}}).done()
        assert not is_asked(await follow(bob, "get_task", other).done()), "it is still carried to bob"
        await follow(bob, "get_task", other, **asked_bob).done()
        result = await follow(bob, "get_task_result", other).done()
        assert result_of(result) == ACCEPTED


@virtual_time
async def test_no_tool_shows_the_question_to_the_model_or_takes_its_answer() -> None:
    modes = {"scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
    async with Gateway(config(**modes), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        task_id = await promoted(gate, caller)
        (question,) = (await gate.operator("GET", "/api/v1/questions")).json()
        assert is_asked(await follow(caller, "get_task", task_id).done())
        for tool, arguments in (
            ("get_elicitations", {}),
            ("get_task", {"task_id": task_id}),
            ("list_servers", {}),
            ("get_task_result", {"task_id": task_id, "timeout_ms": 100}),
        ):
            reply = await caller.call(tool, arguments)
            assert "requestedSchema" not in json.dumps(reply.result), tool
        given = {"request_id": question["request_id"], "action": "accept", "content": {"colour": "red"}}
        refused = await caller.call("respond_to_elicitation", {**given, "task_id": task_id})
        assert refused.result["_meta"]["taskgate/error"]["error_type"] == "not_allowed"
        unable = await gate.caller("2026", token="ann")
        assert (await unable.call_json("respond_to_elicitation", **given))["success"] is True


async def ask_in_two_conversations(gate: Gateway, **more: Any) -> tuple[Caller, str, str]:
    """A caller whose conversation `one` made the call that asks, the task, and the id of the question."""
    caller = await gate.caller("2026", token="ann", **more)
    task_id = await promoted(gate, caller, _meta=ONE)
    (question,) = (await gate.operator("GET", "/api/v1/questions")).json()
    return caller, task_id, question["request_id"]


async def shown_to_two(caller: Caller, task_id: str) -> str:
    """What the tools of the other conversation show of the task."""
    shown = [
        await caller.call("get_task", {"task_id": task_id}, _meta=TWO),
        await caller.call("get_elicitations", {}, _meta=TWO),
        await caller.call("get_sampling_requests", {}, _meta=TWO),
        await caller.call("await_activity", {"task_ids": [task_id], "timeout_ms": 100}, _meta=TWO),
        await caller.call("get_task_result", {"task_id": task_id, "timeout_ms": 100}, _meta=TWO),
    ]
    return json.dumps([reply.result for reply in shown])


async def answered_by_two(caller: Caller, task_id: str, question: str) -> Reply:
    given = {"request_id": question, "action": "accept", "content": {"colour": "red"}}
    by_id = await caller.call("respond_to_elicitation", given, _meta=TWO)
    if not by_id.result.get("isError"):
        return by_id
    return await caller.call("respond_to_elicitation", {**given, "task_id": task_id}, _meta=TWO)


@virtual_time
async def test_model_of_another_conversation_does_not_answer_in_place_of_the_person() -> None:
    modes = {"scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
    async with Gateway(config(**modes), {"notes": painter("2025")}) as gate:
        caller, task_id, question = await ask_in_two_conversations(gate, capabilities=ABLE)
        assert question not in await shown_to_two(caller, task_id)
        for tool in ("respond_to_elicitation", "cancel_elicitation_request"):
            given = {"request_id": question, "task_id": task_id}
            accepted = {"action": "accept", "content": {"colour": "red"}} if tool == "respond_to_elicitation" else {}
            for named in (given, {"request_id": question}):
                refused = await caller.call(tool, {**named, **accepted}, _meta=TWO)
                assert refused.result["_meta"]["taskgate/error"]["error_type"] == "not_allowed"
        asked = await follow(caller, "get_task_result", task_id, _meta=ONE).done()
        result = await follow(caller, "get_task_result", task_id, _meta=ONE, **answers(asked)).done()
        assert result_of(result) == ACCEPTED


@virtual_time
async def test_model_of_another_conversation_does_not_write_a_message_for_the_client() -> None:
    async with Gateway(config(), {"notes": painter("2025", "sampling")}) as gate:
        caller, task_id, question = await ask_in_two_conversations(gate, capabilities=ABLE)
        assert question not in await shown_to_two(caller, task_id)
        given = {"request_id": question, "task_id": task_id, "content": "Hello", "model": "m"}
        refused = await caller.call("respond_to_sampling", given, _meta=TWO)
        assert refused.result["_meta"]["taskgate/error"]["error_type"] == "not_allowed"


@virtual_time
async def test_operator_answers_a_question_that_is_left_to_a_client() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller, task_id, question = await ask_in_two_conversations(gate, capabilities=ABLE)
        done = await gate.operator("POST", f"/api/v1/questions/{question}", {"content": {"colour": "green"}})
        assert done.status == 200, done.text
        result = await follow(caller, "get_task_result", task_id, _meta=TWO).done()
        assert result_of(result)["content"] == {"colour": "green"}


@virtual_time
async def test_another_conversation_answers_after_that_of_the_call_has_ended() -> None:
    tasks = {"promote_after_ms": 1000, "execution_timeout_ms": 7_200_000, "default_ttl_ms": 7_200_000}
    async with Gateway(config(tasks=tasks, limits={"question_timeout": "2h"}), {"notes": painter("2025")}) as gate:
        caller, task_id, question = await ask_in_two_conversations(gate, capabilities=ABLE)
        assert (await answered_by_two(caller, task_id, question)).result["isError"] is True
        await gate.advance(IDLE_S + 120)
        assert question in await shown_to_two(caller, task_id)
        assert not (await answered_by_two(caller, task_id, question)).result.get("isError")
        result = await follow(caller, "get_task_result", task_id, _meta=TWO).done()
        assert result_of(result)["content"] == {"colour": "red"}


@virtual_time
async def test_another_conversation_answers_what_the_client_of_the_call_cannot() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller, task_id, question = await ask_in_two_conversations(gate, capabilities={"sampling": {}})
        assert question in await shown_to_two(caller, task_id)
        assert not (await answered_by_two(caller, task_id, question)).result.get("isError")


@virtual_time
async def test_caller_that_cannot_answer_sees_the_question_as_before() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities={"sampling": {}})
        task_id = await promoted(gate, caller)
        shown = await caller.call_json("get_task", task_id=task_id)
        assert shown["pending_elicitations_for_server"][0]["params"]["message"] == "Which colour?"


@virtual_time
async def test_question_of_a_promoted_call_is_in_its_task_for_callers_with_tasks() -> None:
    async with Gateway(config(), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities={**ABLE, **TASKS_EXTENSION})
        task_id = (await caller.call("notes__paint", {}, _meta={"taskgate/task": True})).result["taskId"]
        await gate.advance(5)
        shown = (await caller.request("tasks/get", {"taskId": task_id})).result
        (key,) = shown["inputRequests"]
        await caller.request("tasks/update", {"taskId": task_id, "inputResponses": {key: ACCEPTED}})
        await gate.advance(1)
        shown = (await caller.request("tasks/get", {"taskId": task_id})).result
        assert json.loads(shown["result"]["content"][0]["text"]) == ACCEPTED


@virtual_time
async def test_call_with_an_idempotency_key_asks_in_its_reply() -> None:
    notes = painter("2025", after_s=0)
    async with Gateway(config(), {"notes": notes}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        keyed = {"_meta": {"taskgate/idempotency_key": "k1"}}
        reply = await caller.call("notes__paint", {}, **keyed)
        assert is_asked(reply)
        result = await caller.call("notes__paint", {}, **keyed, **answers(reply))
        assert (result_of(result), notes.count("paint")) == (ACCEPTED, 1)


CODE = "await notes.paint()"


@pytest.mark.parametrize("server", ["2025", "2026"])
@virtual_time
async def test_question_of_a_call_in_a_script_is_in_the_reply_of_the_script(server: str) -> None:
    async with Gateway(config(**ON, tasks={}), {"notes": painter(server)}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ABLE)
        begun = caller.begin_call("run_script", {"code": CODE})
        reply = await begun.done()
        assert is_asked(reply)
        assert begun.took < 5
        result = await caller.call("run_script", {"code": CODE}, **answers(reply))
        assert json.loads(structured(result.result)["result"]) == ACCEPTED


@virtual_time
async def test_question_of_a_call_in_a_script_is_in_the_task_of_the_script() -> None:
    async with Gateway(config(**ON, tasks={}), {"notes": painter("2025")}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities={**ABLE, **TASKS_EXTENSION})
        made = await caller.call("run_script", {"code": CODE}, _meta={"taskgate/task": True})
        task_id = made.result["taskId"]
        listening = await caller.listen(taskIds=[task_id])
        await gate.advance(5)
        shown = (await caller.request("tasks/get", {"taskId": task_id})).result
        assert shown["status"] == "input_required"
        noted = [note["params"] for note in listening.reply.messages if note.get("method") == "notifications/tasks"]
        assert [note["inputRequests"] for note in noted if "inputRequests" in note] == [shown["inputRequests"]]
        (key,) = shown["inputRequests"]
        for forged in (key.rpartition("/")[2], f"{task_id}/{key}"):
            given = {forged: {"action": "accept", "content": {"colour": "forged"}}}
            await caller.request("tasks/update", {"taskId": task_id, "inputResponses": given})
        await caller.request("tasks/update", {"taskId": task_id, "inputResponses": {key: ACCEPTED}})
        await until(
            lambda: any(note.get("params", {}).get("status") == "completed" for note in listening.reply.messages)
        )
        shown = (await caller.request("tasks/get", {"taskId": task_id})).result
        assert json.loads(structured(shown["result"])["result"]) == ACCEPTED


@virtual_time
async def test_answer_to_a_call_of_another_script_is_ignored() -> None:
    async with Gateway(config(**ON, tasks={}), {"notes": painter("2025")}) as gate:
        tasks, keys = [], []
        callers = [
            await gate.caller("2026", token=name, capabilities={**ABLE, **TASKS_EXTENSION}) for name in ("ann", "bob")
        ]
        for caller in callers:
            made = await caller.call("run_script", {"code": CODE}, _meta={"taskgate/task": True})
            tasks.append(made.result["taskId"])
        await gate.advance(5)
        for caller, task_id in zip(callers, tasks, strict=True):
            keys += (await caller.request("tasks/get", {"taskId": task_id})).result["inputRequests"]
        forged = {"taskId": tasks[0], "inputResponses": {keys[1]: ACCEPTED}}
        await callers[0].request("tasks/update", forged)
        await gate.advance(1)
        shown = (await callers[1].request("tasks/get", {"taskId": tasks[1]})).result
        assert list(shown["inputRequests"]) == [keys[1]]


@virtual_time
async def test_question_of_a_call_in_a_script_is_asked_on_the_stream_that_waits_for_the_script() -> None:
    async with Gateway(config(**ON, tasks={}), {"notes": painter("2025")}) as gate:
        caller = await gate.caller(
            "2025", token="ann", capabilities={"elicitation": {}}, answers={"elicitation/create": ACCEPTED}
        )
        result = await caller.call("run_script", {"code": CODE})
        assert json.loads(structured(result.result)["result"]) == ACCEPTED
        (asked,) = caller.asked
        assert asked["params"]["message"] == "Which colour?"
