"""A question of a task is visible to all who may see the task: many clients open a session per call and end it with the reply."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, until, virtual_time

from taskgate.core.questions.question import Answer
from taskgate.gateway.tasks.stored_questions import keep_answers
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.task_queries import QuestionsOf
from taskgate.store.operations.tasks import Advance

ASKED = ("elicitation/create", {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {}}})
QUICK: dict[str, Any] = {"tasks": {"promote_after_ms": 1000}}
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}
FACADE: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "mode": "both"}}, **QUICK}


TOKEN = "{}-token-0123456789abcdef"


def token_of(name: str) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(TOKEN.format(name).encode()).hexdigest()}


def server() -> Upstream:
    notes = Upstream("both")

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        answer = await call.elicit("Which colour?", FORM)
        return f"painted {(answer.get('content') or {}).get('colour')}"

    return notes


async def asked(gate: Gateway, generation: str) -> tuple[str, str]:
    """A separate caller calls the tool and disconnects; its reply has the task's id and an open question."""
    caller = await gate.caller(generation)
    reply = await caller.call("notes__paint")
    if generation == "2025":
        await caller.close()
    assert "waits for an answer" in reply.text
    task_id: str = reply.last["result"]["structuredContent"]["taskgate_notice"]["task_id"]
    return task_id, reply.text


async def answered_by_another(generation: str, config: dict[str, Any]) -> None:
    async with Gateway(config, {"notes": server()}) as gate:
        task_id, text = await asked(gate, generation)
        assert f"get_task shows the question of {task_id}" in text
        shown = await (await gate.caller(generation)).call_json("get_task", task_id=task_id)
        (question,) = shown["pending_elicitations_for_server"]
        assert question["params"]["message"] == "Which colour?"
        answer = {"request_id": question["request_id"], "action": "accept", "content": {"colour": "blue"}}
        reply = await (await gate.caller(generation)).call_json("respond_to_elicitation", **answer, task_id=task_id)
        assert reply["success"] is True
        result = await (await gate.caller(generation)).call("get_task_result", {"task_id": task_id})
        assert result.text == "painted blue"


@virtual_time
async def test_a_question_of_a_task_outlives_the_session_of_the_call_and_is_answered_from_another() -> None:
    await answered_by_another("2025", QUICK)


@virtual_time
async def test_a_question_of_a_task_is_shown_with_the_task_where_callers_have_no_sessions() -> None:
    await answered_by_another("2026", FACADE)


@virtual_time
async def test_a_question_without_a_task_ends_with_its_session() -> None:
    async with Gateway({"tasks": {"promote_after_ms": 60_000}}, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("notes__paint")
        await gate.advance(1)
        ((question,),) = [(await caller.call_json("get_elicitations"))["elicitations"]]
        await call.disconnect()
        await caller.close()
        reply = await (await gate.caller("2025")).call(
            "respond_to_elicitation", {"request_id": question["request_id"], "action": "decline"}
        )
        assert reply.last["result"]["isError"] is True


@virtual_time
async def test_a_question_of_another_callers_task_is_neither_shown_nor_answered() -> None:
    async with Gateway({**QUICK, "tokens": [token_of("ann"), token_of("eve")]}, {"notes": server()}) as gate:
        ann = await gate.caller("2025", token=TOKEN.format("ann"))
        await ann.call("notes__paint")
        ((question,),) = [(await ann.call_json("get_elicitations"))["elicitations"]]
        eve = await gate.caller("2025", token=TOKEN.format("eve"))
        answer = {"request_id": question["request_id"], "action": "accept", "content": {"colour": "red"}}
        for proof in ({}, {"task_id": question["task_id"]}):
            assert (await eve.call("respond_to_elicitation", {**answer, **proof})).last["result"]["isError"] is True
        assert (await ann.call_json("respond_to_elicitation", **{**answer, "content": {"colour": "blue"}}))["success"]


@virtual_time
async def test_polling_for_answers_of_other_gateways_never_refuses_a_question() -> None:
    """They are looked for at any moment: before the question is stored, and while its answer is being stored elsewhere."""
    async with Gateway(QUICK, {"notes": server()}) as gate:
        tasks = gate.life.app.gateway.lifecycle.others
        questions, records = tasks._questions, tasks._records
        store = records.store
        write, read, seen = store.do, store.ask, list[str]()

        async def read_before_it_is_stored(operation: Operation[Any]) -> Any:
            if isinstance(operation, Advance) and operation.questions:
                seen.append("before")
                await questions.check_stored_answers(operation.task_id)
            return await write(operation)

        async def answered_after_the_first_read(query: Query[Any]) -> Any:
            found = await read(query)
            if (
                isinstance(query, QuestionsOf)
                and seen == ["before"]
                and (open_now := await read(QuestionsOf(query.task_id)))
            ):
                seen.append("between")
                answer = Answer(result=b'{"action":"accept","content":{"colour":"blue"}}')
                await keep_answers(records, query.task_id, {open_now[0].key: answer})
            return found

        store.do = read_before_it_is_stored
        caller = await gate.caller("2025", capabilities={"elicitation": {}})
        task_id = (await caller.call("notes__paint", task={"ttl": 600_000})).result["task"]["taskId"]
        await until(lambda: seen == ["before"])
        await gate.advance(1)
        store.ask = answered_after_the_first_read
        await questions.check_stored_answers(task_id)
        assert seen == ["before", "between"]
        store.ask = read
        result = await caller.request("tasks/result", {"taskId": task_id})
        assert result.text == "painted blue"


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("as_task", [False, True], ids=["a call", "a task of its server"])
@virtual_time
async def test_task_whose_question_is_in_the_inbox_is_not_shown_as_working(as_task: bool, generation: str) -> None:
    notes = Upstream("2025")

    @notes.tool("paint", as_task=as_task)
    async def paint(call: Call) -> str:
        await call.sleep(1)
        # A task of the server has no open reply for a question: it asks on the stream of its session.
        answer = await (notes._ask(notes._streams[-1][0], *ASKED) if as_task else call.ask(*ASKED))
        return str(answer)

    async with Gateway({}, {"notes": notes}) as gate:
        capabilities = TASKS_EXTENSION if generation == "2026" else {"tasks": {"requests": {"tools": {"call": {}}}}}
        caller = await gate.caller(generation, capabilities=capabilities)
        named = {"taskgate/client": "desk", "taskgate/task": True}
        more: dict[str, Any] = {"_meta": named} if generation == "2026" else {"task": {}}
        made = (await caller.call("notes__paint", {}, **more)).result
        task_id = made["taskId"]
        await gate.advance(5)
        (question,) = (await gate.operator("GET", "/api/v1/questions")).json()
        assert question["task_id"] == task_id
        assert (await caller.request("tasks/get", {"taskId": task_id})).result["status"] == "input_required"
        waited = await caller.call("get_task_result", {"task_id": task_id, "timeout_ms": 100}, _meta=named)
        assert "working" not in waited.result["content"][0]["text"]
        assert "respond_to_elicitation" in waited.result["content"][0]["text"]


@pytest.mark.parametrize("server", ["2025", "2026"])
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_call_of_a_client_that_cannot_be_asked_becomes_a_task_with_its_question_in_the_inbox(
    generation: str, server: str
) -> None:
    notes = Upstream(server)

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        return str((await call.elicit("Which colour?", FORM))["content"]["colour"])

    async with Gateway(QUICK, {"notes": notes}) as gate:
        caller = await gate.caller(generation)
        call = caller.begin_call("notes__paint")
        reply = await call.done()
        task_id = reply.result["structuredContent"]["taskgate_notice"]["task_id"]
        assert 0.9 < call.took < 2
        (question,) = (await caller.call_json("get_task", task_id=task_id))["pending_elicitations_for_server"]
        answer = {"request_id": question["request_id"], "action": "accept", "content": {"colour": "blue"}}
        assert (await caller.call_json("respond_to_elicitation", **answer, task_id=task_id))["success"] is True
        result = (await caller.call("get_task_result", {"task_id": task_id})).result
        assert result["content"][0]["text"] == "blue"


@pytest.mark.parametrize("server", ["2025", "2026"])
@pytest.mark.parametrize("refused_by", ["the server's setting", "the scope"])
@virtual_time
async def test_server_may_not_ask_a_client_without_an_inbox(refused_by: str, server: str) -> None:
    notes = Upstream(server)
    declared = list[Any]()

    @notes.tool("paint")
    async def paint(call: Call) -> str:
        declared.append(call.meta.get("io.modelcontextprotocol/clientCapabilities"))
        return str(await call.elicit("Which colour?", FORM))

    settings: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}}}
    if refused_by == "the server's setting":
        settings = {"servers": {"notes": {"questions": "refuse"}}}
    async with Gateway({**QUICK, **settings}, {"notes": notes}) as gate:
        caller = await gate.caller("2026")
        begun = caller.begin_call("notes__paint")
        await gate.advance(0.5)
        assert begun.is_done
        assert not any(declared)
