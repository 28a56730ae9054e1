"""The receiving side: elicitation, sampling and roots, also when the server requests them as tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from taskgate.client import Question, Refused, ServerError, accept, connect, decline

ASKER = [sys.executable, str(Path(__file__).parent / "servers" / "asking_server.py")]
RELATED = "io.modelcontextprotocol/related-task"


async def seen_by_callback(tool: str, **settings: Any) -> Any:
    async with connect(ASKER, generation="stateful", call_timeout=15.0, **settings) as session:
        return (await session.call_tool(tool)).structured_content["saw"]


async def test_an_elicitation_as_a_task_is_answered() -> None:
    created, working, listed, result, ended = await seen_by_callback(
        "ask_as_task", elicitation=lambda q: accept({"name": "Ann"})
    )
    assert created["task"]["status"] == "working"
    assert created["task"]["ttl"] == 5000
    assert working["taskId"] == created["task"]["taskId"]
    assert [task["taskId"] for task in listed["tasks"]] == [working["taskId"]]
    assert result["content"] == {"name": "Ann", "age": 42}
    assert result["_meta"][RELATED] == {"taskId": working["taskId"]}
    assert ended["status"] == "completed"


async def test_a_task_of_the_client_can_be_cancelled_once() -> None:
    async def think(question: Question) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    created, cancelled, again = await seen_by_callback("sample_as_task_and_cancel", sampling=think)
    assert created["task"]["status"] == "working"
    assert cancelled["status"] == "cancelled"
    assert again["error"]["code"] == -32602


async def test_the_answer_to_a_tasks_question_names_the_task() -> None:
    answer = await seen_by_callback("ask_related", elicitation=lambda q: decline())
    assert answer == {"action": "decline", "_meta": {RELATED: {"taskId": "parent-1"}}}


async def test_a_request_without_a_declared_capability_is_refused_with_the_right_code() -> None:
    unknown, no_task, pong = await seen_by_callback("ask_unknown")
    assert (unknown["error"]["code"], no_task["error"]["code"], pong) == (-32601, -32602, {})
    assert (await seen_by_callback("ask_related"))["error"]["code"] == -32602


async def test_a_callback_that_refuses_or_breaks_becomes_an_error_reply() -> None:
    def refuse(question: Question) -> dict[str, Any]:
        raise Refused("not today")

    def broken(question: Question) -> dict[str, Any]:
        raise KeyError("oops")

    assert (await seen_by_callback("ask_related", elicitation=refuse))["error"] == {"code": -1, "message": "not today"}
    assert (await seen_by_callback("ask_related", elicitation=broken))["error"]["code"] == -32603


async def test_an_unanswered_question_is_cancelled_at_its_timeout() -> None:
    async def sleep(question: Question) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    assert (await seen_by_callback("ask_related", elicitation=sleep, question_timeout=0.2))["action"] == "cancel"


async def test_a_withdrawn_question_stops_its_callback() -> None:
    thinking: set[str] = set()

    async def think(question: Question) -> dict[str, Any]:
        thinking.add(question.key)
        try:
            await asyncio.Event().wait()
        finally:
            thinking.discard(question.key)
        raise AssertionError

    async with connect(ASKER, generation="stateful", call_timeout=15.0, sampling=think) as session:
        # The server asks, withdraws, and only then pings; the answer to the ping comes after the withdrawal was read.
        assert (await session.call_tool("ask_and_withdraw")).structured_content["saw"] == {}
        async with asyncio.timeout(120):
            while thinking:
                await asyncio.sleep(0)


async def test_a_call_is_repeated_once_its_url_was_opened() -> None:
    opened: list[str] = []

    def consent(question: Question) -> dict[str, Any]:
        opened.append(question.params["url"])
        return accept()

    assert await seen_by_callback("ask_url_first", elicitation=consent) == "signed in"
    assert opened == ["https://example.test/in"]


async def test_a_declined_url_leaves_the_servers_error() -> None:
    with pytest.raises(ServerError) as caught:
        await seen_by_callback("ask_url_first", elicitation=lambda q: decline())
    assert caught.value.code == -32042


async def test_capabilities_are_declared_for_configured_callbacks_only() -> None:
    tools_only: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
    assert await seen_by_callback("capabilities") == tools_only
    everything = await seen_by_callback(
        "capabilities", elicitation=lambda q: decline(), sampling=lambda q: "x", roots=[]
    )
    assert everything == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {"listChanged": True},
        "tasks": {
            "list": {},
            "cancel": {},
            "requests": {"tools": {"call": {}}, "sampling": {"createMessage": {}}, "elicitation": {"create": {}}},
        },
    }
    assert await seen_by_callback("capabilities", tasks=False) == {}
