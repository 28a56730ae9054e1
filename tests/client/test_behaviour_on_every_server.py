"""One behaviour, every server: the same assertions against each SDK, transport and generation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from taskgate.client import Generation, Progress, Question, ServerError, TaskNotFound, TaskStatus, accept

TIMEOUT = 120.0


async def answer_name(question: Question) -> dict[str, Any]:
    return accept() if question.is_url else accept({"name": "Ann"})


async def test_the_newest_generation_of_the_server_is_chosen(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        assert session.generation == behaviour_peer.expected
        assert session.server_capabilities["tools"] is not None
        assert session.supports_tasks is behaviour_peer.tasks


async def test_a_call_returns_what_the_tool_returned(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        result = await session.call_tool("echo", {"text": "häagen 漢字 \U0001f600"})
        assert (result.text, result.is_error) == ("häagen 漢字 \U0001f600", False)
        result = await session.call_tool("add", {"a": 2, "b": 3})
        assert result.structured_content == {"sum": 5}
        assert (await session.call_tool("fail")).is_error
        assert len((await session.call_tool("big", {"n": 300_000})).text) == 300_000


async def test_fields_that_the_client_does_not_know_stay_in_raw(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        result = await session.call_tool("vendor")
        assert result.raw["vendorField"] == {"nested": [1, "two", None]}
        assert result.meta["example.com/mark"] == 7


async def test_an_error_of_the_server_arrives_with_code_and_data(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        with pytest.raises(ServerError) as caught:
            await session.call_tool("crash")
        assert caught.value.code == -32010
        assert caught.value.data == {"why": "test"}


async def test_progress_reaches_the_callback(behaviour_peer: Any, opened: Any) -> None:
    seen: list[Progress] = []
    async with opened(behaviour_peer) as session:
        # The first call may have to start a program behind a gateway; a call that became a task meanwhile has no progress in 2026.
        await session.call_tool("slow", {"seconds": 0, "steps": 1})
        result = await session.call_tool("slow", {"seconds": 0.1, "steps": 2}, on_progress=seen.append)
        assert result.text == "done after 2 steps"
        assert [(p.progress, p.total, p.message) for p in seen] == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_questions_are_answered_by_the_callbacks(behaviour_peer: Any, opened: Any) -> None:
    asked: list[str] = []

    async def answer(question: Question) -> dict[str, Any]:
        asked.append(question.message)
        return await answer_name(question)

    settings = {"elicitation": answer, "sampling": lambda q: "hello", "roots": ["file:///tmp/project"]}
    async with opened(behaviour_peer, **settings) as session:
        assert (await session.call_tool("ask")).text == "accept:Ann"
        assert (await session.call_tool("ask_twice")).text == "Ann and Ann"
        assert (await session.call_tool("ask_url")).text == "accept"
        assert (await session.call_tool("sample")).text == "the model said: hello"
        assert (await session.call_tool("roots")).text == "file:///tmp/project"
    assert asked == ["What is your name?", "What is the first name?", "What is the second name?", "Please sign in"]


async def test_resources_prompts_and_completions_can_be_read(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        assert {resource.uri for resource in await session.list_resources()} == {"memo://plain", "memo://watched"}
        assert [template.uri for template in await session.list_resource_templates()] == ["memo://notes/{name}"]
        assert (await session.read_resource("memo://plain"))["contents"][0]["text"] == "plain memo"
        assert {prompt.name for prompt in await session.list_prompts()} == {"greeting", "letter"}
        letter = await session.get_prompt("letter", {"to": "Bob"})
        assert letter["messages"][0]["content"]["text"] == "Dear Bob"
        assert await session.complete({"type": "ref/prompt", "name": "letter"}, "to", "An") == ["Ann", "Anton"]
        await session.ping()


async def test_log_messages_arrive_after_the_level_is_set(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        logs: list[Any] = []
        session.on("notifications/message", lambda params: logs.append(params["data"]))
        await session.set_log_level("debug")
        await session.call_tool("log")
        assert logs == ["one", "two", "three"]


async def test_updates_of_a_resource_and_of_a_list_are_delivered(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        received: asyncio.Queue[str] = asyncio.Queue()
        acknowledged = asyncio.Event()
        session.on("notifications/resources/updated", lambda params: received.put_nowait(params["uri"]))
        session.on("notifications/tools/list_changed", lambda params: received.put_nowait("tools"))
        session.on("notifications/subscriptions/acknowledged", lambda params: acknowledged.set())
        await session.watch_lists()
        await session.subscribe("memo://watched")
        if session.generation is Generation.STATELESS:
            await asyncio.wait_for(acknowledged.wait(), TIMEOUT)
        await session.call_tool("update")
        assert await asyncio.wait_for(received.get(), TIMEOUT) == "memo://watched"
        await session.call_tool("mutate")
        async with asyncio.timeout(TIMEOUT):
            while await received.get() != "tools":
                pass


async def test_concurrent_calls_get_their_own_results(behaviour_peer: Any, opened: Any) -> None:
    async with opened(behaviour_peer) as session:
        results = await asyncio.gather(*(session.call_tool("echo", {"text": f"n{i}"}) for i in range(40)))
        assert [result.text for result in results] == [f"n{i}" for i in range(40)]


async def test_a_task_is_followed_to_its_result(task_peer: Any, opened: Any) -> None:
    """A task id at once, the result at the end."""
    async with opened(task_peer) as session:
        handle = await session.call_tool_as_task("work", {"seconds": 0.2}, ttl=60_000)
        assert handle.task_id
        statuses = [update.status async for update in handle.updates()]
        assert statuses[-1] is TaskStatus.COMPLETED
        assert (await handle.result(TIMEOUT)).text == "worked"
        assert session.active_tasks == {}


async def test_a_question_of_a_task_is_answered_by_the_callback(task_peer: Any, opened: Any) -> None:
    async with opened(task_peer, elicitation=answer_name) as session:
        handle = await session.call_tool_as_task("work_asking")
        assert (await handle.result(TIMEOUT)).text == "accept:Ann"


async def test_a_task_that_waits_for_an_answer_is_not_finished(task_peer: Any, opened: Any) -> None:
    asked = asyncio.Event()

    async def answer(question: Question) -> dict[str, Any]:
        await asked.wait()
        return await answer_name(question)

    async with opened(task_peer, elicitation=answer) as session:
        handle = await session.call_tool_as_task("work_asking")
        assert handle.status in (TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED)
        asked.set()
        statuses = [update.status async for update in handle.updates()]
        assert not statuses[0].is_terminal
        assert statuses[-1] is TaskStatus.COMPLETED


async def test_a_question_of_a_task_can_be_answered_explicitly(task_peer: Any, opened: Any) -> None:
    async with opened(task_peer, answer_by_hand=True) as session:
        handle = await session.call_tool_as_task("work_asking")
        async for update in handle.updates():
            if update.questions:
                question = next(iter(update.questions.values()))
                assert question.message == "What is your name?"
                await handle.answer(accept({"name": "Bob"}))
        assert (await handle.result(TIMEOUT)).text == "accept:Bob"


async def test_a_running_task_can_be_cancelled(task_peer: Any, opened: Any) -> None:
    async with opened(task_peer) as session:
        handle = await session.call_tool_as_task("work", {"seconds": 30})
        task = await handle.cancel()
        assert task.status is TaskStatus.CANCELLED
        assert (await session.get_task(handle.task_id)).status is TaskStatus.CANCELLED


async def test_tasks_are_listed_and_can_be_resumed_by_id(task_peer: Any, opened: Any) -> None:
    async with opened(task_peer) as session:
        first = await session.call_tool_as_task("work", {"seconds": 0.3})
        listed = {task.task_id for task in await session.list_tasks()}
        assert first.task_id in listed
        assert (await session.get_task_result(first.task_id, TIMEOUT)).text == "worked"
        again = await session.resume_task(first.task_id)
        assert (await again.result(TIMEOUT)).text == "worked"


@pytest.mark.peers("mcp130")
async def test_a_kept_session_is_continued_by_another_with_its_ticket(opened: Any, mcp130: Any) -> None:
    async with opened(mcp130, keep_session=True) as first:
        task_id = (await first.call_tool_as_task("work", {"seconds": 0.5})).task_id
        ticket = json.loads(json.dumps(first.ticket))
    async with opened(mcp130, ticket=ticket) as second:
        handle = await second.resume_task(task_id)
        assert (await handle.result(TIMEOUT)).text == "worked"
    async with opened(mcp130) as third:
        with pytest.raises(TaskNotFound):  # this server ties a task to its session
            await third.get_task(task_id)
