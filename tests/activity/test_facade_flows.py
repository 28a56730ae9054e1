"""A caller that can only call tools runs slow tools, receives questions, answers them, and gets the results: over HTTP in both
generations and over stdio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.activity.callers import (
    Caller,
    call,
    call_json,
    http_session,
    http_stateless,
    read,
    stdio_session,
    task_result,
    tool_names,
)
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]
DEMO = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": DEMO},
    "tasks": {"promote_after_ms": 5000},
    "scopes": {
        "default": {"default_servers": ["*"], "mode": "facade"},
        "both": {"default_servers": ["*"], "mode": "both"},
        "direct": {"default_servers": ["*"]},
    },
}
KINDS = ("2025 over HTTP", "2026 over HTTP", "2025 over stdio")
Opener = Callable[[], AbstractAsyncContextManager[Caller]]

DEADLINE_S = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        # The server is connected before, so that its connection is not among the events.
        async with http_stateless(running, client="the first") as first:
            await call_json(first, "list_tools")
        yield running


@pytest_asyncio.fixture(loop_scope="module", params=KINDS[:2])
async def caller(request: pytest.FixtureRequest, gateway: Gateway) -> AsyncIterator[Caller]:
    if request.param == KINDS[0]:
        async with http_session(gateway) as session:
            yield session
    else:
        async with http_stateless(gateway, client=request.node.name) as stateless:
            yield stateless


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def any_caller(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> AsyncIterator[Caller]:
    async with AsyncExitStack() as stack:
        if request.param == KINDS[0]:
            yield await stack.enter_async_context(http_session(gateway))
        elif request.param == KINDS[1]:
            yield await stack.enter_async_context(http_stateless(gateway, client=request.node.name))
        else:
            Gateway(tmp_path, 0).write(CONFIG)
            yield await stack.enter_async_context(stdio_session(tmp_path))


def events_in(activity: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for group in activity["events"] for event in group["events"]]


async def question_of(caller: Caller) -> dict[str, Any]:
    """Wait until a server asks a question, and return it."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE_S):
        while not found:
            await call_json(caller, "await_activity", timeout_ms=3000)
            found = (await call_json(caller, "get_elicitations"))["elicitations"]
    return found[0]


async def promoted_with_its_question(caller: Caller) -> dict[str, Any]:
    """The reply to a call that became a task after its server had asked; one that asked too late is asked once more."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            promoted = await call(caller, "execute_tool", server="files", tool="greet", timeout_ms=2000)
            seen = read(promoted)
            if seen["pending_on_server"]["elicitations_for_server"]:
                return promoted
            asked = await question_of(caller)
            await call_json(caller, "respond_to_elicitation", request_id=asked["request_id"], action="decline")
            await task_result(caller, seen["proxy_task"]["task_id"])


async def until_in_flight(gateway: Gateway, count: int) -> None:
    async with httpx2.AsyncClient(timeout=DEADLINE_S) as http, asyncio.timeout(DEADLINE_S):
        while f"taskgate_calls_in_flight {float(count)}" not in (await http.get(f"{gateway.base}/metrics")).text:
            await asyncio.sleep(0.02)


async def test_only_the_facade_is_listed_and_callable_in_a_facade_scope(any_caller: Caller) -> None:
    names = await tool_names(any_caller)
    assert "execute_tool" in names
    assert "await_activity" in names
    assert not [name for name in names if name.startswith("files")]


async def test_a_fast_call_returns_the_tools_own_blocks_and_makes_no_task(caller: Caller) -> None:
    """Tool completes within timeout: no task is created."""
    result = await call(caller, "execute_tool", server="files", tool="read_file", args={"name": "notes.txt"})
    assert result["content"][0] == {"type": "text", "text": "Buy milk."}
    assert result["isError"] is False
    assert (await call_json(caller, "list_tasks", include_completed=True))["tasks"] == []


async def test_a_call_that_times_out_is_promoted_answers_its_question_and_finishes(any_caller: Caller) -> None:
    """Tool call timeout behaviour: a task, its question, and completion after the timeout."""
    await call_json(any_caller, "list_tools")
    promoted = await promoted_with_its_question(any_caller)
    first, second = promoted["content"][:2]
    seen = read(promoted)
    task = seen["proxy_task"]
    assert first["text"] == (
        f"Tool call exceeded timeout (2000ms). Promoted to task {task['task_id']}. "
        "Use get_task_result to retrieve the result when ready."
    )
    assert second["type"] == "text"
    assert set(task) == {"task_id", "status", "created_at", "server", "tool"}
    assert (task["status"], task["server"], task["tool"]) == ("working", "files", "greet")
    assert [row["task_id"] for row in seen["pending_on_server"]["tasks"]] == [task["task_id"]]
    (asked,) = seen["pending_on_server"]["elicitations_for_server"]
    assert asked["params"]["message"] == "What is your name?"
    assert seen["pending_client_action"]["elicitations"][0]["request_id"] == asked["request_id"]
    state = await call_json(any_caller, "get_task", task_id=task["task_id"])
    assert state["task"]["status"] == "working"
    assert [row["request_id"] for row in state["pending_elicitations_for_server"]] == [asked["request_id"]]
    answer = {"request_id": asked["request_id"], "action": "accept", "content": {"name": "Ann"}}
    assert (await call_json(any_caller, "respond_to_elicitation", **answer))["success"] is True
    result = await task_result(any_caller, task["task_id"])
    assert result["content"][0] == {"type": "text", "text": "Hello, Ann!"}
    assert (await call_json(any_caller, "get_task", task_id=task["task_id"]))["task"]["status"] == "completed"


async def test_wait_for_activity_returns_for_a_question_and_for_the_end_of_a_task(any_caller: Caller) -> None:
    running = asyncio.create_task(call(any_caller, "execute_tool", server="files", tool="greet", timeout_ms=200))
    kinds: list[str] = []
    seen: dict[str, Any] = {}
    # All waiting calls are woken, and one reply contains the event: that of the wait, or that of the call if it is just promoted.
    while not seen or not seen["pending_client"]["elicitations"]:
        seen = await call_json(any_caller, "await_activity", timeout_ms=4000)
        kinds += [event["type"] for event in events_in(seen)]
    promoted = read(await running)
    kinds += [event["type"] for event in promoted.get("events_since_last_response", [])]
    (waiting,) = seen["pending_client"]["elicitations"]
    assert (waiting["server"], waiting["message"]) == ("files", "What is your name?")
    declined = await call(any_caller, "respond_to_elicitation", request_id=waiting["requestId"], action="decline")
    kinds += [event["type"] for event in read(declined).get("events_since_last_response", [])]
    seen = {}
    while "task_completed" not in kinds or not seen:
        seen = await call_json(any_caller, "await_activity", timeout_ms=1000)
        kinds += [event["type"] for event in events_in(seen)]
    assert seen["pending_server"] == []
    assert seen["pending_client"] == {"elicitations": [], "sampling_requests": []}
    assert kinds.count("elicitation_request") == 1
    assert kinds.count("task_completed") == 1
    result = await task_result(any_caller, promoted["proxy_task"]["task_id"])
    assert "No name given" in result["content"][0]["text"]


async def test_wait_without_events_times_out_with_empty_lists(caller: Caller) -> None:
    await call_json(caller, "await_activity", timeout_ms=1)
    seen = await call_json(caller, "await_activity", timeout_ms=50)
    assert seen["triggers"] == [{"type": "timeout"}]
    assert (seen["events"], seen["pending_server"]) == ([], [])
    assert seen["pending_client"] == {"elicitations": [], "sampling_requests": []}


async def test_several_concurrent_calls_are_followed_side_by_side(any_caller: Caller) -> None:
    """Concurrent tool calls."""
    replies = await asyncio.gather(
        call(any_caller, "execute_tool", server="files", tool="greet", timeout_ms=200),
        call(any_caller, "execute_tool", server="files", tool="list_files"),
        call(any_caller, "execute_tool", server="files", tool="slow_report", args={"seconds": 0.6}, timeout_ms=200),
    )
    first, third = read(replies[0])["proxy_task"], read(replies[2])["proxy_task"]
    assert "notes.txt" in replies[1]["content"][0]["text"]
    asked = await question_of(any_caller)
    await call(
        any_caller, "respond_to_elicitation", request_id=asked["request_id"], action="accept", content={"name": "B"}
    )
    assert (await task_result(any_caller, first["task_id"]))["content"][0]["text"] == "Hello, B!"
    assert "words in" in (await task_result(any_caller, third["task_id"]))["content"][0]["text"]


async def test_an_answer_is_checked_and_the_first_one_wins(caller: Caller) -> None:
    """Bad input: an answer given twice, and one that breaks the schema."""
    promoted = read(await call(caller, "execute_tool", server="files", tool="greet", timeout_ms=200))
    asked = (await question_of(caller))["request_id"]
    for wrong, expected_text in (
        ({"action": "accept"}, "content"),
        ({"action": "accept", "content": {"name": 7}}, "name"),
        ({"action": "accept", "content": {}}, "name"),
        ({"action": "decline", "content": {"name": "x"}}, "accept only"),
        ({"action": "shout"}, "one of accept"),
    ):
        refused = await call_json(caller, "respond_to_elicitation", request_id=asked, **wrong)
        assert refused["isError"] is True
        assert expected_text in refused["text"]
    right = {"request_id": asked, "action": "accept", "content": {"name": "C"}}
    assert (await call_json(caller, "respond_to_elicitation", **right))["success"] is True
    again = await call_json(caller, "respond_to_elicitation", **right)
    assert again["isError"] is True
    assert "answered" in again["text"]
    await task_result(caller, promoted["proxy_task"]["task_id"])


async def test_concurrent_waits_all_return_and_one_reply_contains_the_events(caller: Caller, gateway: Gateway) -> None:
    """Concurrent `await_activity` calls."""
    await call_json(caller, "await_activity", timeout_ms=1)
    waiting = [asyncio.create_task(call_json(caller, "await_activity", timeout_ms=4500)) for _ in range(3)]
    await until_in_flight(gateway, 3)
    await call_json(caller, "set_timer", duration_ms=300, message="tea")
    seen = await asyncio.gather(*waiting)
    trigger = [{"type": "event", "server": "", "eventType": "timer_expired"}]
    assert [one["triggers"] for one in seen] == [trigger] * 3
    carried = [event for one in seen for event in events_in(one)]
    assert [event["data"]["message"] for event in carried] == ["tea"]


async def test_events_after_an_event_id_can_be_requested_again(caller: Caller) -> None:
    events: list[dict[str, Any]] = []
    for text in ("one", "two", "three"):
        events += (await call_json(caller, "set_timer", duration_ms=1, message=text)).get(
            "events_since_last_response", []
        )
    while len(events) < 3:
        events += events_in(await call_json(caller, "await_activity", timeout_ms=4000))
    again = await call_json(caller, "await_activity", timeout_ms=1000, after=events[0]["id"])
    assert [event["id"] for event in events_in(again)] == [e["id"] for e in events[1:]]
    assert again["lastEventId"] == events[-1]["id"]
    assert (await call_json(caller, "await_activity", timeout_ms=30))["events"] == []


async def test_servers_and_tools_can_be_listed_and_filtered(caller: Caller) -> None:
    (server,) = (await call_json(caller, "list_servers"))["servers"]
    assert (server["name"], server["transport"], server["tools"]) == ("files", "stdio", 6)
    assert (server["state"], server["health"]) == ("connected", "healthy")
    assert len((await call_json(caller, "list_tools"))["tools"]) == 6
    (found,) = (await call_json(caller, "list_tools", tool="^slow"))["tools"]
    assert (found["server"], found["name"]) == ("files", "slow_report")
    assert (await call_json(caller, "list_tools", server="nobody"))["tools"] == []
    for key in ("prompts", "resource_templates"):
        assert (await call_json(caller, f"list_{key}"))[key] == []


async def test_a_caller_of_tools_can_read_the_gateways_own_resources(caller: Caller) -> None:
    listed = (await call_json(caller, "list_resources"))["resources"]
    assert {(row["server"], row["uri"]) for row in listed} >= {
        ("taskgate", "taskgate://diagrams"),
        ("taskgate", "taskgate://status"),
    }
    assert (await call_json(caller, "list_resources", server="files"))["resources"] == []
    (drawn,) = (await call_json(caller, "read_resource", server="taskgate", uri="taskgate://diagrams"))["contents"]
    assert "proxy_task_states" in drawn["text"]
    (status,) = (await call_json(caller, "read_resource", server="taskgate", uri="taskgate://status"))["contents"]
    assert '"tasks":' in status["text"]


@pytest.mark.parametrize(
    ("name", "arguments", "expected_text"),
    [
        ("execute_tool", {"server": "file", "tool": "x"}, "Did you mean 'files'"),
        ("execute_tool", {"server": "files", "tool": "nothing"}, "list_tools shows"),
        ("execute_tool", {"server": "files", "tool": "greet", "timeout_ms": 0}, "from 1 to"),
        ("execute_tool", {"server": "files", "tool": "greet", "args": []}, "an object"),
        ("await_activity", {"timeout_ms": -1}, "from 1 to"),
        ("await_activity", {"timeout_ms": 10**18}, "from 1 to"),
        ("await_activity", {"after": "yesterday"}, "lastEventId"),
        ("list_tools", {"tool": "("}, "not a regular expression"),
        ("list_tools", {"tool": "(?=a)b"}, "not a regular expression"),
        ("list_tools", {"tool": "a" * 300}, "at most 200"),
        ("respond_to_elicitation", {"request_id": "x", "action": "accept"}, "get_elicitations shows"),
        ("respond_to_sampling", {"request_id": "x", "content": "a", "model": "m"}, "get_sampling_requests shows"),
        ("cancel_sampling_request", {"request_id": "x"}, "get_sampling_requests shows"),
        ("read_resource", {"server": "nowhere", "uri": "x"}, "list_servers returns"),
        ("get_prompt", {"server": "files", "name": "x"}, "list_prompts shows"),
        ("delete_timer", {"timer_id": "x"}, "list_timers shows"),
        ("set_timer", {"duration_ms": 0, "message": "x"}, "from 1 to"),
        ("set_timer", {"duration_ms": 5, "message": "x", "interval": True}, "at least 1000"),
        ("get_logs", {"level": "loud"}, "one of debug"),
    ],
)
async def test_invalid_input_returns_an_error_with_the_next_step(
    gateway: Gateway, name: str, arguments: dict[str, Any], expected_text: str
) -> None:
    """Bad input: unknown ids, and a `timeout_ms` of 0, negative or huge."""
    async with http_session(gateway) as caller:
        result = await call(caller, name, **arguments)
        assert result["isError"] is True
        assert expected_text in result["content"][0]["text"]


async def test_an_expression_with_catastrophic_backtracking_is_answered_at_once(gateway: Gateway) -> None:
    """Bad input: regex filters that explode."""
    async with http_session(gateway) as caller, asyncio.timeout(120):
        await call_json(caller, "list_tools", tool="(a+)+$" * 10)


async def test_a_question_of_another_caller_cannot_be_seen_or_answered(gateway: Gateway) -> None:
    """Bad input: the answer to another caller's question."""
    async with http_session(gateway) as one, http_session(gateway) as other:
        promoted = read(await call(one, "execute_tool", server="files", tool="greet", timeout_ms=200))
        asked = (await question_of(one))["request_id"]
        assert (await call_json(other, "get_elicitations"))["elicitations"] == []
        stolen = await call_json(other, "respond_to_elicitation", request_id=asked, action="decline")
        assert stolen["isError"] is True
        assert (await call_json(one, "respond_to_elicitation", request_id=asked, action="decline"))["success"] is True
        await task_result(one, promoted["proxy_task"]["task_id"])


async def test_a_question_of_a_direct_call_waits_in_the_inbox_and_its_task_is_input_required(gateway: Gateway) -> None:
    async with http_session(gateway, "direct") as caller:
        running = asyncio.create_task(call(caller, "files__greet"))
        asked = await question_of(caller)
        promoted = await running
        assert "get_task_result" in promoted["content"][0]["text"]
        assert "files waits for an answer from you (What is your name?)" in promoted["content"][0]["text"]
        assert len(promoted["content"]) == 1
        (task,) = (await call_json(caller, "list_tasks"))["tasks"]
        assert task["waiting_for"] == "input"
        answer = {"request_id": asked["request_id"], "action": "accept", "content": {"name": "D"}}
        await call(caller, "respond_to_elicitation", **answer)
        assert (await task_result(caller, task["task_id"]))["content"][0]["text"] == "Hello, D!"


async def test_a_caller_with_the_capability_receives_the_question_itself(gateway: Gateway) -> None:
    async with http_session(gateway, capabilities={"elicitation": {}}) as caller:
        caller.answers["elicitation/create"] = {"action": "accept", "content": {"name": "E"}}
        result = await call(caller, "execute_tool", server="files", tool="greet")
        assert result["content"][0]["text"] == "Hello, E!"
        assert caller.asked[0]["params"]["message"] == "What is your name?"
        assert (await call_json(caller, "get_elicitations"))["elicitations"] == []


async def test_a_stateless_caller_with_the_capability_receives_questions_in_rounds(gateway: Gateway) -> None:
    async with http_stateless(gateway, capabilities={"elicitation": {"form": {}}}, client="rounds") as caller:
        params = {"name": "execute_tool", "arguments": {"server": "files", "tool": "greet"}}
        asked = await caller.ask("tools/call", params)
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "What is your name?"
        answers = {key: {"action": "accept", "content": {"name": "F"}}}
        again = {**params, "inputResponses": answers, "requestState": asked["requestState"]}
        assert (await caller.ask("tools/call", again))["content"][0]["text"] == "Hello, F!"


async def test_facade_mode_both_lists_the_servers_tools_beside_the_facade(gateway: Gateway) -> None:
    async with http_session(gateway, "both") as caller:
        names = await tool_names(caller)
        assert "files__greet" in names
        assert "execute_tool" in names
