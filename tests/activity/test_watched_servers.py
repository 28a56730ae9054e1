"""Servers that crash, flood or send too many requests: their callers are notified, and other callers are not affected."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.activity.callers import Caller, Failed, call, call_json, http_session, http_stateless, read, stdio_session
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
ODD = {"command": sys.executable, "args": [str(Path(__file__).with_name("misbehaving_upstream.py"))]}
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {
        "odd": {**ODD, "instances": "per_session"},
        "fragile": {**ODD, "restart": {"limit": 2, "within": "1m"}},
        "shy": {**ODD, "questions": "refuse", "instances": "per_session"},
        "other": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]},
    },
    "tasks": {"promote_after_ms": 5000},
    "scopes": {
        "default": {"default_servers": ["odd", "shy", "other"], "mode": "facade"},
        "fragile": {"default_servers": ["fragile"], "mode": "facade"},
    },
}

DEADLINE_S = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def caller(gateway: Gateway) -> AsyncIterator[Caller]:
    async with http_session(gateway) as session:
        yield session


async def run(caller: Caller, tool: str, n: int = 1, timeout_ms: int = 5000, server: str = "odd") -> dict[str, Any]:
    return read(await call(caller, "execute_tool", server=server, tool=tool, args={"n": n}, timeout_ms=timeout_ms))


async def until(caller: Caller, kind: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Collect events until one of this kind came."""
    events: list[dict[str, Any]] = []
    seen: dict[str, Any] = {}
    async with asyncio.timeout(DEADLINE_S):
        while kind not in [event["type"] for event in events]:
            seen = await call_json(caller, "await_activity", timeout_ms=4000)
            events += [event for group in seen["events"] for event in group["events"]]
    return events, seen


async def questions(caller: Caller, at_least: int = 1) -> list[dict[str, Any]]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found: list[dict[str, Any]] = (await call_json(caller, "get_elicitations"))["elicitations"]
            if len(found) >= at_least:
                return found
            await call_json(caller, "await_activity", timeout_ms=500)


async def test_a_lost_server_withdraws_its_questions_and_ends_its_tasks(caller: Caller) -> None:
    """Final server disconnects."""
    promoted = await run(caller, "ask", timeout_ms=300)
    (asked,) = await questions(caller)
    dying = await call(caller, "execute_tool", server="odd", tool="die")
    assert dying["isError"] is True
    kinds = [event["type"] for event in read(dying).get("events_since_last_response", [])]
    if "task_failed" not in kinds:
        kinds += [event["type"] for event in (await until(caller, "task_failed"))[0]]
    assert "server_disconnected" in kinds
    assert "server_process_crashed" in kinds
    assert (await call_json(caller, "get_elicitations"))["elicitations"] == []
    late = await call_json(caller, "respond_to_elicitation", request_id=asked["request_id"], action="decline")
    assert late["isError"] is True
    assert "withdrawn" in late["text"]
    task = (await call_json(caller, "get_task", task_id=promoted["proxy_task"]["task_id"]))["task"]
    assert task["status"] == "failed"
    assert "may or may not" in task["status_message"]
    assert (await run(caller, "echo", 5))["text"] == "echo 5"


async def test_several_questions_of_one_call_are_sequential(caller: Caller) -> None:
    """Multiple elicitations for a single tool call."""
    promoted = await run(caller, "ask_twice", timeout_ms=300)
    for word, message in (("a", "first"), ("b", "second")):
        asked = next(found for found in await questions(caller) if found["params"]["message"] == message)
        content = {"word": word}
        await call(caller, "respond_to_elicitation", request_id=asked["request_id"], action="accept", content=content)
        if word == "a":
            await until(caller, "elicitation_request")
    assert (await call_json(caller, "get_task_result", task_id=promoted["proxy_task"]["task_id"]))["text"] == "a b"


async def test_a_form_with_a_secret_field_is_flagged(caller: Caller) -> None:
    await run(caller, "ask_secret", timeout_ms=300)
    (asked,) = await questions(caller)
    assert asked["secret_fields"] == ["api_key"]
    assert "odd asks for what looks like a secret" in asked["warning"]
    await call(caller, "cancel_elicitation_request", request_id=asked["request_id"])


async def test_sampling_is_answered_by_a_tool_or_refused(caller: Caller) -> None:
    promoted = await run(caller, "sample", timeout_ms=300)
    if "pending_client_action" not in promoted:
        # A fast server sends its question before the reply is written: then the reply contains it, once.
        await until(caller, "sampling_request")
    (asked,) = (await call_json(caller, "get_sampling_requests"))["sampling_requests"]
    assert asked["params"]["messages"][0]["content"]["text"] == "Say something."
    wrong = await call_json(caller, "respond_to_sampling", request_id=asked["request_id"], content=7, model="m")
    assert wrong["isError"] is True
    answer = {"request_id": asked["request_id"], "content": "Hello.", "model": "m", "stop_reason": "endTurn"}
    assert (await call_json(caller, "respond_to_sampling", **answer))["success"] is True
    data = await call_json(caller, "get_task_result", task_id=promoted["proxy_task"]["task_id"])
    assert (data["content"], data["model"]) == ({"type": "text", "text": "Hello."}, "m")
    again = await run(caller, "sample", timeout_ms=300)
    (asked,) = again["pending_client_action"]["sampling_requests"]
    assert (await call_json(caller, "cancel_sampling_request", request_id=asked["request_id"], reason="no"))["success"]
    refused = await call_json(caller, "get_task_result", task_id=again["proxy_task"]["task_id"])
    assert refused["error"]["message"] == "no"


async def test_a_server_with_ten_thousand_questions_is_limited_and_others_continue(gateway: Gateway) -> None:
    """Bad input: a server that asks 10,000 questions."""
    async with http_session(gateway) as one, http_session(gateway) as other:
        promoted = await run(one, "ask_many", 10_000, timeout_ms=300)
        waiting = await questions(one, at_least=100)
        assert len(waiting) == 100
        async with asyncio.timeout(10):
            assert (await run(other, "echo", 1))["text"] == "echo 1"
            assert (await call_json(other, "get_elicitations"))["elicitations"] == []
        await call(one, "cancel_task", task_id=promoted["proxy_task"]["task_id"])


async def test_a_flood_of_notifications_is_bounded_and_what_was_lost_is_counted(gateway: Gateway) -> None:
    """Bad input: a server that floods notifications."""
    async with http_session(gateway) as one, http_session(gateway) as other:
        flooded = await run(one, "flood", 5_000)
        events = list(flooded.get("events_since_last_response", []))
        while len(events) < 500 or events[-1]["data"].get("params", {}).get("i") != 4_999:
            seen = await call_json(one, "await_activity", timeout_ms=2000)
            events += [event for group in seen["events"] for event in group["events"]]
        event_kinds = [event["data"]["params"]["i"] for event in events if event["type"] == "notification"]
        lost = sum(event["data"]["count"] for event in events if event["type"] == "events_lost")
        assert event_kinds == sorted(set(event_kinds))
        assert len(event_kinds) + lost >= 5_000
        assert len((await call_json(one, "get_notifications", server="odd"))["notifications"]) == 1_000
        assert (await call_json(one, "get_notifications"))["notifications"] == []
        assert (await call_json(other, "get_notifications"))["notifications"] == []


async def test_logs_are_separate_and_do_not_end_a_wait(caller: Caller) -> None:
    await run(caller, "echo")
    await call_json(caller, "await_activity", timeout_ms=1)
    waiting = asyncio.create_task(call_json(caller, "await_activity", timeout_ms=1000))
    await run(caller, "log", 3)
    assert (await waiting)["triggers"] == [{"type": "timeout"}]
    logs = (await call_json(caller, "get_logs", source="protocol"))["logs"]
    assert [line["data"] for line in logs] == ["line 0", "line 1", "line 2"]
    assert logs[0]["level"] == "warning"
    assert (await call_json(caller, "get_logs", source="protocol", limit=1))["logs"] == logs[-1:]
    assert (await call_json(caller, "get_logs", source="protocol", level="error"))["logs"] == []
    (line,) = (await call_json(caller, "get_logs", source="stderr", server="odd"))["logs"]
    assert line["data"] == "odd upstream is up"


async def test_refused_questions_are_answered_with_an_error_at_once(caller: Caller) -> None:
    refused = await run(caller, "ask", server="shy")
    assert refused["error"]["code"] == -32600


async def test_a_program_that_crashes_repeatedly_is_restarted_after_a_pause(gateway: Gateway) -> None:
    async with http_session(gateway, "fragile") as caller:
        kinds: list[str] = []
        while "server_restart_failed" not in kinds:
            dying = read(await call(caller, "execute_tool", server="fragile", tool="die"))
            kinds += [event["type"] for event in dying.get("events_since_last_response", [])]
            seen = await call_json(caller, "await_activity", timeout_ms=1000)
            kinds += [event["type"] for group in seen["events"] for event in group["events"]]
        assert "server_process_crashed" in kinds
        (server,) = (await call_json(caller, "list_servers"))["servers"]
        assert (server["state"], server["health"]) == ("reconnecting", "unreachable")
        assert server["next_retry_ms"] > 30_000
        failed = await call_json(caller, "execute_tool", server="fragile", tool="echo")
        assert failed["isError"] is True
        assert "next attempt" in failed["text"]
        assert (await call_json(caller, "reconnect_server", name="fragile"))["success"] is True
        assert (await call_json(caller, "execute_tool", server="fragile", tool="echo"))["text"] == "echo 1"


async def test_an_unresponsive_server_is_degraded_until_it_answers() -> None:
    config = {**CONFIG, "servers": {"odd": ODD}, "scopes": {"default": {"default_servers": ["odd"], "mode": "facade"}}}
    async with running_gateway(config) as gateway, http_session(gateway) as caller:
        assert (await run(caller, "echo"))["text"] == "echo 1"
        (server,) = (await call_json(caller, "list_servers"))["servers"]
        assert (server["state"], server["health"]) == ("connected", "healthy")
        promoted = await run(caller, "deaf", n=42, timeout_ms=100)
        events, _ = await until(caller, "server_health_degraded")
        (server,) = (await call_json(caller, "list_servers"))["servers"]
        assert (server["name"], server["state"], server["health"]) == ("odd", "degraded", "degraded")
        more, _ = await until(caller, "server_health_restored")
        (server,) = (await call_json(caller, "list_servers"))["servers"]
        assert (server["state"], server["health"]) == ("connected", "healthy")
        event_kinds = [event["type"] for event in [*events, *more] if event["type"].startswith("server_health")]
        assert event_kinds == ["server_health_degraded", "server_health_restored"]
        result = await call_json(caller, "get_task_result", task_id=promoted["proxy_task"]["task_id"])
        assert result["text"] == "back"


@pytest.mark.real_processes
async def test_servers_cannot_be_added_over_stdio_unless_configured(tmp_path: Path) -> None:
    Gateway(tmp_path, 0).write(CONFIG)
    async with stdio_session(tmp_path) as caller:
        refused = await call_json(caller, "add_server", name="guest", command=ODD["command"], args=ODD["args"])
        assert refused["isError"] is True
        assert "facade.add_server" in refused["text"]


@pytest.mark.real_processes
async def test_a_caller_over_stdio_may_add_a_server_if_configured(tmp_path: Path) -> None:
    Gateway(tmp_path, 0).write({**CONFIG, "facade": {"add_server": "session"}})
    async with stdio_session(tmp_path) as caller:
        odd = {"name": "guest", "command": ODD["command"], "args": ODD["args"]}
        assert (await call_json(caller, "add_server", **odd))["success"] is True
        assert (await run(caller, "echo", 3, server="guest"))["text"] == "echo 3"
        assert "guest" in [row["name"] for row in (await call_json(caller, "list_servers"))["servers"]]
        for wrong, expected_text in (
            (odd, "already"),
            ({"name": "x"}, "either url"),
            ({"name": "x", "url": "http://a.test", "command": "y"}, "either url"),
            ({"name": "x", "command": "/does/not/exist"}, "not added"),
            ({"name": "x", "command": "y", "env": {"a": 1}}, "object of strings"),
            ({"name": "bad name!", "command": "y"}, "cannot be used"),
        ):
            refused = await call_json(caller, "add_server", **wrong)
            assert refused["isError"] is True
            assert expected_text in refused["text"]
        assert (await call_json(caller, "remove_server", name="guest"))["success"] is True
        assert (await call_json(caller, "remove_server", name="odd"))["isError"] is True
        assert (await run(caller, "echo", server="guest"))["isError"] is True


async def test_servers_cannot_be_added_over_http_unless_configured(gateway: Gateway) -> None:
    async with http_session(gateway) as caller:
        names = [tool["name"] for tool in (await caller.ask("tools/list"))["tools"]]
        assert "add_server" not in names
        assert "reconnect_server" in names
        refused = await call_json(caller, "add_server", name="x", command=sys.executable)
        assert refused["isError"] is True
        assert "facade.add_server" in refused["text"]


async def test_diagrams_and_status_are_listed_and_can_be_read_in_both_generations(gateway: Gateway) -> None:
    async with http_session(gateway) as stateful, http_stateless(gateway, client="reader") as stateless:
        for caller in (stateful, stateless):
            listed = [resource["uri"] for resource in (await caller.ask("resources/list"))["resources"]]
            assert {"taskgate://diagrams", "emceepee://diagrams", "taskgate://status"} <= set(listed)
            for uri in ("taskgate://diagrams", "emceepee://diagrams"):
                (content,) = (await caller.ask("resources/read", {"uri": uri}))["contents"]
                assert content["uri"] == uri
                assert "proxy_task_states" in content["text"]
            (status,) = (await caller.ask("resources/read", {"uri": "taskgate://status"}))["contents"]
            assert '"name":"odd"' in status["text"]
            with pytest.raises(Failed):
                await caller.ask("resources/read", {"uri": "taskgate://nothing"})


async def test_a_program_that_was_only_probed_for_its_generation_does_not_count_as_crashed() -> None:
    """It was started for a caller of the newer generation, supports only the older one, and has a link for that already."""
    config = {"schema": 1, "servers": {"odd": {**ODD, "restart": {"limit": 1, "within": "1m"}}}}
    async with running_gateway(config) as gateway:
        async with http_session(gateway) as older:
            assert (await call(older, "odd__echo", n=1))["content"][0]["text"] == "echo 1"
            async with http_stateless(gateway) as newer:
                assert (await call(newer, "odd__echo", n=2))["content"][0]["text"] == "echo 2"
            assert (await call(older, "odd__echo", n=3))["content"][0]["text"] == "echo 3"
        assert [line for line in gateway.log.splitlines() if "server lost" in line] == []
