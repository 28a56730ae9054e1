"""All features of the official everything-server, used by a caller that can only call tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.activity.callers import Caller, call, call_json, http_session, http_stateless, read, task_result, tool_names
from tests.harness.absent import HOME
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90), pytest.mark.peers("everything")]
PROGRAM = HOME / "everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"everything": {"command": str(HOME / "node"), "args": [str(PROGRAM), "stdio"]}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
    "tasks": {"promote_after_ms": 8000},
}

DEADLINE_S = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", params=["2025", "2026"])
async def caller(request: pytest.FixtureRequest, gateway: Gateway) -> AsyncIterator[Caller]:
    if request.param == "2025":
        async with http_session(gateway) as session:
            yield session
    else:
        async with http_stateless(gateway, client=request.node.name) as stateless:
            yield stateless


async def run(caller: Caller, tool: str, timeout_ms: int = 8000, **args: Any) -> dict[str, Any]:
    return await call(caller, "execute_tool", server="everything", tool=tool, args=args, timeout_ms=timeout_ms)


async def waiting_form(caller: Caller, field: str) -> dict[str, Any]:
    """The form that requests this. The server also requests roots soon after its start, so there may be two."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for asked in (await call_json(caller, "get_elicitations", server="everything"))["elicitations"]:
                if field in asked["params"]["requestedSchema"]["properties"]:
                    found: dict[str, Any] = asked
                    return found
            await call_json(caller, "await_activity", timeout_ms=1000)


async def waiting_sample(caller: Caller) -> dict[str, Any]:
    """The open sampling request of the server, as soon as there is one."""
    waiting: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE_S):
        while not waiting:
            waiting = (await call_json(caller, "get_sampling_requests"))["sampling_requests"]
            if not waiting:
                await call_json(caller, "await_activity", timeout_ms=1000)
    (asked,) = waiting
    return asked


async def until(caller: Caller, kind: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE_S):
        while kind not in [event["type"] for event in events]:
            seen = await call_json(caller, "await_activity", timeout_ms=4000)
            events += [event for group in seen["events"] for event in group["events"]]
    return events


def filled_in(schema: dict[str, Any]) -> dict[str, Any]:
    """An answer that is valid for a form."""
    return {name: _value(schema["properties"][name]) for name in schema.get("required", [])}


def _value(field: dict[str, Any]) -> Any:
    if "default" in field:
        return field["default"]
    if "enum" in field:
        return field["enum"][0]
    if "oneOf" in field:
        return field["oneOf"][0]["const"]
    words = {"email": "ann@example.test", "uri": "https://example.test", "date": "2026-01-01"}
    text = words.get(field.get("format", ""), "Ann Example")
    return {"string": text, "boolean": True, "integer": 5, "number": 5.0, "array": []}[field["type"]]


async def test_its_tools_are_listed_and_run(caller: Caller) -> None:
    tools = {tool["name"] for tool in (await call_json(caller, "list_tools", server="everything"))["tools"]}
    assert {"echo", "get-sum", "trigger-elicitation-request", "trigger-sampling-request"} <= tools
    assert "hello" in (await run(caller, "echo", message="hello"))["content"][0]["text"]
    assert "5" in (await run(caller, "get-sum", a=2, b=3))["content"][0]["text"]
    image = (await run(caller, "get-tiny-image"))["content"]
    assert "image" in [block["type"] for block in image]
    weather = await run(caller, "get-structured-content", location="Chicago")
    assert "temperature" in weather["structuredContent"]


async def test_its_elicitation_is_answered_with_a_tool(caller: Caller) -> None:
    promoted = read(await run(caller, "trigger-elicitation-request", timeout_ms=1500))
    asked = await waiting_form(caller, "name")
    content = filled_in(asked["params"]["requestedSchema"])
    answer = {"request_id": asked["request_id"], "action": "accept", "content": content}
    assert (await call_json(caller, "respond_to_elicitation", **answer))["success"] is True
    result = await task_result(caller, promoted["proxy_task"]["task_id"])
    assert result["isError"] is False


async def test_its_sampling_is_answered_with_a_tool(caller: Caller) -> None:
    promoted = read(await run(caller, "trigger-sampling-request", timeout_ms=1500, prompt="Hi", maxTokens=20))
    asked = await waiting_sample(caller)
    await call(caller, "respond_to_sampling", request_id=asked["request_id"], content="A haiku.", model="none")
    result = await task_result(caller, promoted["proxy_task"]["task_id"])
    assert "A haiku." in str(result["content"])


async def test_its_long_operation_becomes_a_task(caller: Caller) -> None:
    promoted = read(await run(caller, "trigger-long-running-operation", timeout_ms=300, duration=2, steps=4))
    events = await until(caller, "task_completed")
    task_id = promoted["proxy_task"]["task_id"]
    assert task_id in [event["data"].get("task_id") for event in events]
    assert "completed" in (await call_json(caller, "get_task_result", task_id=task_id))["text"]


async def test_its_resources_and_prompts_are_read(caller: Caller) -> None:
    resources = (await call_json(caller, "list_resources"))["resources"]
    assert resources
    read_one = await call_json(caller, "read_resource", server="everything", uri=resources[0]["uri"])
    assert read_one["contents"][0]["uri"] == resources[0]["uri"]
    assert (await call_json(caller, "list_resource_templates"))["resource_templates"]
    prompts = {prompt["name"]: prompt for prompt in (await call_json(caller, "list_prompts"))["prompts"]}
    plain = next(name for name, prompt in prompts.items() if not prompt.get("arguments"))
    assert (await call_json(caller, "get_prompt", server="everything", name=plain))["messages"]


async def test_a_subscribed_resource_sends_an_update(caller: Caller) -> None:
    uri = (await call_json(caller, "list_resources"))["resources"][0]["uri"]
    assert (await call_json(caller, "subscribe_resource", server="everything", uri=uri))["success"] is True
    await run(caller, "toggle-subscriber-updates")
    try:
        events = await until(caller, "notification")
        updates = [event for event in events if event["data"].get("method") == "notifications/resources/updated"]
        assert updates
        assert updates[0]["data"]["params"]["uri"] == uri
    finally:
        await run(caller, "toggle-subscriber-updates")
    assert (await call_json(caller, "unsubscribe_resource", server="everything", uri=uri))["success"] is True
    assert (await call_json(caller, "unsubscribe_resource", server="everything", uri=uri))["isError"] is True


async def test_its_question_for_roots_is_answered_with_a_tool() -> None:
    async with running_gateway(CONFIG) as running, http_session(running) as caller:
        await call_json(caller, "list_tools")
        promoted = read(await run(caller, "get-roots-list", timeout_ms=1500))
        # It sends one request when it was started and one for this tool.
        answer = {"action": "accept", "content": {"roots": [{"uri": "file:///tmp/project", "name": "Project"}]}}
        result = {"text": "still working"}
        async with asyncio.timeout(DEADLINE_S):
            while "still working" in result["text"]:
                for asked in (await call_json(caller, "get_elicitations"))["elicitations"]:
                    await call_json(caller, "respond_to_elicitation", request_id=asked["request_id"], **answer)
                result = await call_json(caller, "get_task_result", task_id=promoted["proxy_task"]["task_id"])
        assert "file:///tmp/project" in result["text"]


async def test_its_questions_can_be_declined(caller: Caller) -> None:
    asking = read(await run(caller, "trigger-elicitation-request", timeout_ms=1000))
    asked = await waiting_form(caller, "name")
    gone = await call_json(
        caller, "cancel_elicitation_request", request_id=asked["request_id"], reason="nobody is here"
    )
    assert gone["success"] is True
    result = read(await task_result(caller, asking["proxy_task"]["task_id"]))
    assert "cancel" in str(result)
    writing = read(await run(caller, "trigger-sampling-request", timeout_ms=1000, prompt="Hi", maxTokens=20))
    wanted = await waiting_sample(caller)
    gone = await call_json(caller, "cancel_sampling_request", request_id=wanted["request_id"], reason="no model here")
    assert gone["success"] is True
    result = read(await task_result(caller, writing["proxy_task"]["task_id"]))
    assert result["isError"] is True
    assert "no model here" in str(result)


async def test_its_tasks_are_listed_shown_and_cancelled(caller: Caller) -> None:
    promoted = read(await run(caller, "trigger-long-running-operation", timeout_ms=300, duration=30, steps=30))
    task_id = promoted["proxy_task"]["task_id"]
    assert task_id in [
        task["task_id"] for task in (await call_json(caller, "list_tasks", server="everything"))["tasks"]
    ]
    seen = await call_json(caller, "get_task", task_id=task_id)
    assert (seen["task"]["status"], seen["task"]["tool"]) == ("working", "trigger-long-running-operation")
    assert isinstance(seen["pending_elicitations_for_server"], list)
    (card,) = (await call_json(caller, "show_tasks", task_ids=[task_id]))["tasks"]
    assert (card["status"], card["tool"]) == ("working", "trigger-long-running-operation")
    assert (await call_json(caller, "cancel_task", task_id=task_id))["success"] is True
    assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "cancelled"


async def test_its_status_logs_and_timers_are_available(caller: Caller) -> None:
    await run(caller, "echo", message="hello")
    (server,) = (await call_json(caller, "list_servers"))["servers"]
    assert (server["name"], server["state"], server["health"]) == ("everything", "connected", "healthy")
    assert (await call_json(caller, "reconnect_server", name="everything"))["success"] is True
    for tool in ("add_server", "remove_server"):
        refused = await call_json(
            caller, tool, name="guest", **({"url": "https://x.test"} if tool == "add_server" else {})
        )
        assert refused["isError"] is True
    logs = (await call_json(caller, "get_logs", server="everything", source="stderr"))["logs"]
    assert "STDIO" in str(logs)
    assert isinstance((await call_json(caller, "get_notifications", server="everything"))["notifications"], list)
    timer = (await call_json(caller, "set_timer", duration_ms=60_000, message="tea"))["timer"]
    assert [row["timer_id"] for row in (await call_json(caller, "list_timers"))["timers"]] == [timer["timer_id"]]
    assert (await call_json(caller, "delete_timer", timer_id=timer["timer_id"]))["success"] is True


async def test_every_facade_tool_is_used_in_this_file(caller: Caller) -> None:
    here = Path(__file__).read_text()
    assert [name for name in await tool_names(caller) if f'"{name}"' not in here] == []
