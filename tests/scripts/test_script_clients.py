"""Scripts of clients without tasks: helper tools, the facade, answers in the inbox; and scripts that misbehave."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from tests.console.test_console_pages import operator
from tests.scripts.test_running_scripts import ON, ended, shop, started, structured
from tests.virtual_time import TASKS_EXTENSION, Caller, Gateway, Reply, virtual_time
from tests.virtual_time.waiting import until

from taskgate.core.questions.question import Answer
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.questions_in_reply import RETURN_S


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


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("mode", ["facade", "both"])
async def test_client_that_can_only_call_tools_runs_a_script(generation: str, mode: str) -> None:
    store = shop()
    async with Gateway(scope(mode=mode), {"shop": store}) as gate:
        caller = await gate.caller(generation, token="ann")
        assert {"run_script", "describe_tools"} <= {tool["name"] for tool in await caller.tools()}
        reply = await caller.call("run_script", {"code": "[await shop.read(n=1), await shop.buy(n=2)]"})
        assert structured(reply.result)["result"] == ["read 1", "bought 2"]


@virtual_time
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


@virtual_time
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


@virtual_time
async def test_one_of_two_answers_that_arrive_together_counts() -> None:
    """For a stateless caller, which answers with `tasks/update`; the second answer is ignored, also after a restart."""
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2026", capabilities={**TASKS_EXTENSION, "elicitation": {"form": {}}})
        code = "first = await ask('Which colour?')\nawait sleep(60)\n[first, await ask('And which size?')]"
        made = await caller.call("run_script", {"code": code}, _meta={"taskgate/task": True})
        task = made.result["taskId"]

        async def answer(question: str, value: str) -> None:
            given = {question: {"action": "accept", "content": {"answer": value}}}
            reply = await caller.request("tasks/update", {"taskId": task, "inputResponses": given})
            assert reply.result["resultType"] == "complete"

        async def open_questions() -> list[str]:
            for _ in range(100):
                shown = (await caller.request("tasks/get", {"taskId": task})).result
                if shown.get("inputRequests"):
                    return list(shown["inputRequests"])
                await gate.advance(1)
            raise AssertionError("nothing was asked")

        [colour] = await open_questions()
        await asyncio.gather(answer(colour, "blue"), answer(colour, "red"))
        await answer(colour, "green")
        await gate.restart()
        await answer(colour, "black")
        [size] = await open_questions()
        await answer(colour, "white")
        await answer(size, "xl")
        for _ in range(100):
            shown = (await caller.request("tasks/get", {"taskId": task})).result
            if shown["status"] == "completed":
                break
            await gate.advance(1)
        assert structured(shown["result"])["result"] == ["blue", "xl"]


@virtual_time
async def test_script_that_catches_everything_ends_at_the_limit_of_calls() -> None:
    store = shop()
    async with Gateway({**ON, "limits": {"script_calls": 20}}, {"shop": store}) as gate:
        code = "while True:\n    try:\n        await shop.buy(n=1)\n    except BaseException:\n        pass"
        reply = await (await gate.caller("2025")).call("run_script", {"code": code})
        assert structured(reply.result)["error"]["error_type"] == "script_limit"
        assert store.count("buy") == 20


@virtual_time
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


@virtual_time
async def test_arguments_that_are_not_json_raise_before_the_call() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        content = structured(await ended(caller, await started(gate, caller, NOT_JSON)))["result"]
        assert {each[0] for each in content} <= {"TypeError", "ValueError", "invalid_params"}
        assert {each[1] for each in content} == {"no"}
        assert store.count("buy") == 0


@virtual_time
@pytest.mark.parametrize("value", ["float('nan')", "b'bytes'", "{1: 2}", "{1, 2}", "print", "10 ** 5000"])
async def test_value_of_a_script_that_is_not_json_fails_with_its_calls(value: str) -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        reply = await (await gate.caller("2025")).call("run_script", {"code": f"await shop.buy(n=1)\n{value}"})
        content = structured(reply.result)
        assert (content["error"]["error_type"], content["error"]["executed"]) == ("script_failed", "yes")
        assert [call["tool"] for call in content["calls"]["executed"]] == ["shop__buy"]


ANSWERS_FORM: dict[str, Any] = {"elicitation": {"form": {}}}
TWO_QUESTIONS = "[await ask('Which colour?'), await ask('And which size?')]"


async def run_in_rounds(caller: Caller, code: str, *answers: str) -> tuple[Reply, list[list[str]]]:
    """Call run_script as a client of 2026 does: answer the questions in the reply, and repeat the request with the signed state."""
    params: dict[str, Any] = {"name": "run_script", "arguments": {"code": code}}
    asked = []
    given = iter(answers)
    reply = await caller.request("tools/call", params)
    while reply.result.get("resultType") == "input_required":
        questions = reply.result["inputRequests"]
        asked.append([asked_text(question["params"]["message"]) for question in questions.values()])
        responses = {key: {"action": "accept", "content": {"answer": next(given)}} for key in questions}
        state = {"requestState": reply.result["requestState"], "inputResponses": responses}
        reply = await caller.request("tools/call", {**params, **state})
    return reply, asked


def asked_text(message: str) -> str:
    """The text of a script's question, without the line that names the script."""
    return message.partition("\n\n")[2]


@virtual_time
async def test_question_of_a_script_names_the_script_its_caller_and_the_line() -> None:
    """`Taskgate security check: enter your passphrase` must not be taken for a question of the gateway."""
    async with Gateway(scope(), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        params = {"name": "run_script", "arguments": {"code": "x = 1\nawait ask('Security check: your passphrase?')"}}
        reply = await caller.request("tools/call", params)
        [question] = reply.result["inputRequests"].values()
        origin, _, text = question["params"]["message"].partition("\n\n")
        assert text == "Security check: your passphrase?"
        assert "line 2 of script tg_" in origin
        assert "ann" in origin
        assert "taskgate" not in json.dumps(question["params"]).lower()


@virtual_time
@pytest.mark.parametrize("token", ["ann", None])
async def test_questions_of_a_plain_call_reach_a_stateless_caller_in_the_reply(token: str | None) -> None:
    async with Gateway({**ON} if token is None else scope(), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token=token, capabilities=ANSWERS_FORM)
        reply, asked = await run_in_rounds(caller, TWO_QUESTIONS, "blue", "xl")
        assert asked == [["Which colour?"], ["And which size?"]]
        assert structured(reply.result)["result"] == ["blue", "xl"]


@virtual_time
async def test_parallel_questions_are_in_one_reply() -> None:
    async with Gateway(scope(), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        reply, asked = await run_in_rounds(caller, "await asyncio.gather(ask('One?'), ask('Two?'))", "1", "2")
        assert [sorted(each) for each in asked] == [["One?", "Two?"]]
        assert sorted(structured(reply.result)["result"]) == ["1", "2"]


@virtual_time
async def test_question_in_a_reply_survives_a_restart() -> None:
    store = shop()
    async with Gateway(scope(), {"shop": store}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        params = {"name": "run_script", "arguments": {"code": "await shop.buy(n=1)\nawait ask('Which?')"}}
        asked = (await caller.request("tools/call", params)).result
        gate.crash()
        await gate.start()
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        [key] = asked["inputRequests"]
        answer = {key: {"action": "accept", "content": {"answer": "blue"}}}
        state = {"requestState": asked["requestState"], "inputResponses": answer}
        reply = await caller.request("tools/call", {**params, **state})
        assert structured(reply.result)["result"] == "blue"
        assert store.count("buy") == 1


def answers_arrive_while_tasks_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer arrives while no task waits for it, and is stored only after the task has read its stored answers and waits."""
    keep, resolve, early = TaskQuestions._store_answer, TaskQuestions.resolve, iter([False])

    async def later(questions: TaskQuestions, task_id: str, key: str, answer: Answer) -> Answer:
        await until(lambda: task_id in questions._open_questions)
        return await keep(questions, task_id, key, answer)

    def no_waiter_at_first(questions: TaskQuestions, task_id: str, key: str, answer: Answer) -> bool:
        return next(early, True) and resolve(questions, task_id, key, answer)

    monkeypatch.setattr(TaskQuestions, "_store_answer", later)
    monkeypatch.setattr(TaskQuestions, "resolve", no_waiter_at_first)


@virtual_time
async def test_answer_that_arrives_while_a_script_continues_after_a_restart_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Gateway(scope(), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        params = {"name": "run_script", "arguments": {"code": "await ask('Which?')"}}
        asked = (await caller.request("tools/call", params)).result
        gate.crash()
        await gate.start()
        answers_arrive_while_tasks_continue(monkeypatch)
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        [key] = asked["inputRequests"]
        answer = {key: {"action": "accept", "content": {"answer": "blue"}}}
        state = {"requestState": asked["requestState"], "inputResponses": answer}
        reply = await caller.request("tools/call", {**params, **state})
        assert structured(reply.result)["result"] == "blue"


@virtual_time
async def test_caller_that_does_not_return_with_an_answer_is_asked_again_by_the_tools_that_follow_the_task() -> None:
    async with Gateway(scope(mode="facade"), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        params = {"name": "run_script", "arguments": {"code": "await ask('Which?')"}}
        reply = (await caller.request("tools/call", params)).result
        assert reply["resultType"] == "input_required"
        assert (await caller.call_json("get_elicitations"))["elicitations"] == []
        [task] = (await caller.call_json("list_tasks"))["tasks"]
        await gate.advance(RETURN_S)
        follow = {"name": "get_task_result", "arguments": {"task_id": task["task_id"]}}
        asked = (await caller.request("tools/call", follow)).result
        [key] = asked["inputRequests"]
        given = {key: {"action": "accept", "content": {"answer": "blue"}}}
        state = {"requestState": asked["requestState"], "inputResponses": given}
        assert structured((await caller.request("tools/call", {**follow, **state})).result)["result"] == "blue"
        again = await caller.request("tools/call", {**params, "requestState": reply["requestState"]})
        assert structured(again.result)["result"] == "blue"


@virtual_time
async def test_signed_state_of_a_question_is_bound_to_its_caller_and_its_script() -> None:
    tokens = [{"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("ann", "bob")]
    async with Gateway({**scope(), "tokens": tokens}, {"shop": shop()}) as gate:
        ann = await gate.caller("2026", token="ann", capabilities=ANSWERS_FORM)
        bob = await gate.caller("2026", token="bob", capabilities=ANSWERS_FORM)
        params: dict[str, Any] = {"name": "run_script", "arguments": {"code": "await ask('Which?')"}}
        reply = (await ann.request("tools/call", params)).result
        [key] = reply["inputRequests"]
        answer = {key: {"action": "accept", "content": {"answer": "forged"}}}
        state = {"requestState": reply["requestState"], "inputResponses": answer}
        for caller, code in ((bob, "await ask('Which?')"), (ann, "await ask('Another?')")):
            refused = await caller.request("tools/call", {**params, "arguments": {"code": code}, **state})
            assert refused.result["_meta"]["taskgate/error"]["error_type"] == "invalid_params"
        assert structured((await ann.request("tools/call", {**params, **state})).result)["result"] == "forged"


@virtual_time
async def test_question_of_a_script_is_never_in_the_inbox_of_the_operator() -> None:
    async with Gateway(scope(), {"shop": shop()}) as gate:
        for generation, capabilities in (("2025", {}), ("2026", {}), ("2026", ANSWERS_FORM)):
            caller = await gate.caller(generation, token="ann", capabilities=capabilities)
            begun = caller.begin_call("run_script", {"code": "await ask('Which?')"})
            await gate.advance(5)
            assert begun.is_done == (capabilities == ANSWERS_FORM)
        boss = await operator(gate)
        assert "Which?" not in await boss.text("/inbox")


@virtual_time
async def test_operator_cannot_answer_the_question_of_a_script() -> None:
    async with Gateway(scope(mode="facade"), {"shop": shop()}) as gate:
        caller = await gate.caller("2026", token="ann")
        begun = caller.begin_call("run_script", {"code": "await ask('Which?')"})
        question = await asked(gate, caller)
        forged = {"action": "accept", "content": {"answer": "forged"}}
        assert (await gate.operator("POST", f"/api/v1/questions/{question}", forged)).status == 404
        given = {"request_id": question, "action": "accept", "content": {"answer": "blue"}}
        assert (await caller.call_json("respond_to_elicitation", **given))["success"] is True
        assert structured((await begun.done()).result)["result"] == "blue"
