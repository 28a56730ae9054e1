"""Budgets under real load: a slow upstream in its own process, many callers at once, in both generations."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import pytest
from tests.harness.gateway import running_gateway
from tests.harness.peers import CALLERS, Caller, every_third
from tests.scopes.scope_client import GENERATIONS, STATEFUL, ScopeClient, opened, scope, server

from taskgate import clock

pytestmark = pytest.mark.virtual_time

BUSY, QUIET = "greedy-token", "polite-token"


def config(budgets: dict[str, Any], limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": {"work": server("work", "slow", "big", "count", budgets=budgets), "free": server("free", "read")},
        "scopes": {"default": scope("*")},
        "tokens": [
            {"id": name, "sha256": hashlib.sha256(token.encode()).hexdigest()}
            for name, token in (("greedy", BUSY), ("polite", QUIET))
        ],
        "auth": {"anonymous": "default"},
        "telemetry": {"names": "all"},
        "limits": limits or {},
        **more,
    }


async def counted(client: ScopeClient) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.call("work__count")).text)
    return found


async def until_running(client: ScopeClient, calls: int) -> None:
    """Wait until this many calls run or wait at the server, according to the metrics."""
    async with asyncio.timeout(20):
        while True:
            metrics = (await client.http.get(client.url.replace("/mcp", "/metrics"))).text
            found = re.search(r'taskgate_line_running\{server_id="work"\} (\d+)', metrics)
            waits = re.search(r'taskgate_line_waiting\{server_id="work"\} (\d+)', metrics)
            if found and waits and int(found.group(1)) + int(waits.group(1)) >= calls:
                return
            await asyncio.sleep(0.01)


@pytest.mark.real_processes
async def test_no_more_calls_run_at_once_than_the_budget_allows_and_all_are_answered() -> None:
    async with (
        running_gateway(config({"max_concurrency": 2})) as gateway,
        opened(gateway.url, GENERATIONS[0], BUSY) as one,
        opened(gateway.url, GENERATIONS[1]) as two,
    ):
        calls = [client.call("work__slow", seconds=0.1) for client in (one, two) for _ in range(6)]
        assert [replies.text for replies in await asyncio.gather(*calls)] == ["done"] * 12
        assert await counted(one) == {"calls": 12, "most": 2, "order": [""] * 12}


@pytest.mark.parametrize("mode", ["direct", "facade"])
async def test_resources_prompts_and_completions_use_the_same_queue_as_calls(mode: str) -> None:
    work = server("work", "slow", "count", "library", budgets={"max_concurrency": 2})
    settings = {"schema": 1, "servers": {"work": work}, "scopes": {"default": scope("*", mode=mode)}}
    async with running_gateway(settings) as gateway, opened(gateway.url, STATEFUL) as caller:
        if mode == "direct":
            ref, argument = {"type": "ref/prompt", "name": "work__quote"}, {"name": "word", "value": "a"}
            asked = [
                caller.ask("resources/read", {"uri": "book://one"}),
                caller.ask("prompts/get", {"name": "work__quote"}),
                caller.ask("completion/complete", {"ref": ref, "argument": argument}),
                caller.call("work__slow", seconds=0.1),
            ]
            count = caller.call("work__count")
        else:
            asked = [
                caller.call("read_resource", server="work", uri="book://one"),
                caller.call("get_prompt", server="work", name="quote"),
                caller.call("execute_tool", server="work", tool="slow", args={"seconds": 0.1}),
                caller.call("execute_tool", server="work", tool="slow", args={"seconds": 0.1}),
            ]
            count = caller.call("execute_tool", server="work", tool="count")
        for replies in await asyncio.gather(*asked):
            assert "done" in json.dumps(replies.result)
        seen = json.loads((await count).text)
    assert (seen["most"], len(seen["order"])) == (2, 4)


async def test_a_full_queue_refuses_a_resource_read() -> None:
    work = server("work", "slow", "library", budgets={"max_concurrency": 1})
    settings = {
        "schema": 1,
        "servers": {"work": work},
        "scopes": {"default": scope("*")},
        "limits": {"queue_per_server": 1},
    }
    async with running_gateway(settings) as gateway, opened(gateway.url, STATEFUL) as caller:
        await caller.tools()
        running = []
        for number in (1, 2):
            running.append(asyncio.create_task(caller.call("work__slow", seconds=1)))
            await until_running(caller, number)
        refused = await caller.ask("resources/read", {"uri": "book://one"})
        await asyncio.gather(*running)
    data = refused.error["data"]
    assert (data["error_type"], data["executed"], data["gate"]) == ("overloaded", "no", "budget")


async def test_a_caller_with_one_call_does_not_wait_for_all_calls_of_another() -> None:
    async with (
        running_gateway(config({"max_concurrency": 1})) as gateway,
        opened(gateway.url, STATEFUL, BUSY) as busy_caller,
        opened(gateway.url, STATEFUL, QUIET) as quiet_caller,
    ):
        many = [asyncio.create_task(busy_caller.call("work__slow", seconds=0.1, who="greedy")) for _ in range(10)]
        await until_running(busy_caller, 10)
        assert (await quiet_caller.call("work__slow", seconds=0.1, who="polite")).text == "done"
        await asyncio.gather(*many)
        order = (await counted(quiet_caller))["order"]
    assert len(order) == 11
    assert order.index("polite") <= 3


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_full_queue_refuses_at_once_with_executed_no(version: str) -> None:
    async with (
        running_gateway(config({"max_concurrency": 1}, {"queue_per_server": 2})) as gateway,
        opened(gateway.url, version, BUSY) as busy_caller,
        opened(gateway.url, version, QUIET) as quiet_caller,
    ):
        running = []
        for number, client in enumerate((busy_caller, busy_caller, quiet_caller), start=1):
            running.append(asyncio.create_task(client.call("work__slow", seconds=1)))
            await until_running(busy_caller, number)
        began = clock.monotonic()
        refused = await quiet_caller.call("work__slow", seconds=1)
        took = clock.monotonic() - began
        other = await quiet_caller.call("free__read")
        await asyncio.gather(*running)
        seen = await counted(busy_caller)
    data = refused.error["data"]
    assert (data["error_type"], data["executed"], data["gate"]) == ("overloaded", "no", "budget")
    assert refused.error["code"] == (-32013 if version == STATEFUL else -32603)
    assert refused.headers["retry-after"] == "1"
    assert took < 0.5
    assert other.text == "free:read"
    assert seen["calls"] == 3


async def test_tasks_use_the_same_queue_and_a_full_queue_refuses_them_before_they_are_accepted() -> None:
    async with (
        running_gateway(config({"max_concurrency": 1}, {"queue_per_server": 2})) as gateway,
        opened(gateway.url, STATEFUL, BUSY) as busy_caller,
    ):
        params = {"name": "work__slow", "arguments": {"seconds": 0.5}, "task": {"ttl": 60000}}
        made = [await busy_caller.ask("tools/call", params) for _ in range(2)]
        await until_running(busy_caller, 2)
        refused = await busy_caller.ask("tools/call", params)
        assert refused.error["data"]["error_type"] == "overloaded"
        for task in made:
            result = await busy_caller.ask("tasks/result", {"taskId": task.result["task"]["taskId"]})
            assert result.text == "done"
        assert await counted(busy_caller) == {"calls": 2, "most": 1, "order": ["", ""]}


async def test_a_call_that_waits_too_long_becomes_a_task_that_runs_once() -> None:
    tasks = {"promote_after_ms": 300}
    async with (
        running_gateway(config({"max_concurrency": 1}, tasks=tasks)) as gateway,
        opened(gateway.url, STATEFUL, BUSY) as busy_caller,
    ):
        first = asyncio.create_task(busy_caller.call("work__slow", seconds=1))
        await until_running(busy_caller, 1)
        second = await busy_caller.call("work__slow", seconds=0.05)
        task_id = re.search(r"[0-9A-Za-z_-]{20,}", second.text)
        assert task_id is not None, second.text
        result = await busy_caller.ask("tasks/result", {"taskId": task_id.group(0)})
        assert result.text == "done"
        await first
        assert (await counted(busy_caller))["calls"] == 2


async def test_a_cancelled_call_frees_its_place_in_the_queue() -> None:
    async with (
        running_gateway(config({"max_concurrency": 1}, {"queue_per_server": 2})) as gateway,
        opened(gateway.url, GENERATIONS[1], BUSY) as busy_caller,
        opened(gateway.url, STATEFUL) as watcher,
    ):
        first = asyncio.create_task(busy_caller.call("work__slow", seconds=0.6))
        await until_running(watcher, 1)
        gives_up = asyncio.create_task(busy_caller.call("work__slow", seconds=5, who="gives up"))
        await until_running(watcher, 2)
        gives_up.cancel()
        await asyncio.gather(gives_up, return_exceptions=True)
        await first
        seen = await counted(watcher)
    assert seen == {"calls": 1, "most": 1, "order": [""]}


async def test_a_reload_with_a_higher_limit_starts_waiting_calls() -> None:
    async with (
        running_gateway(config({"max_concurrency": 1})) as gateway,
        opened(gateway.url, STATEFUL, BUSY) as busy_caller,
    ):
        first = asyncio.create_task(busy_caller.call("work__slow", seconds=2))
        rest = [asyncio.create_task(busy_caller.call("work__slow", seconds=0.05)) for _ in range(3)]
        await until_running(busy_caller, 4)
        await gateway.reload(config({"max_concurrency": 4}))
        await asyncio.wait_for(asyncio.gather(*rest), 1.9)
        assert not first.done()
        await first


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_long_result_is_truncated_with_a_marker_and_stays_valid(version: str) -> None:
    async with (
        running_gateway(config({"max_tool_output_bytes": 4096})) as gateway,
        opened(gateway.url, version) as caller,
    ):
        small = await caller.call("work__big", characters=100)
        large = await caller.call("work__big", characters=100_000)
    assert small.text == "é" * 100
    assert len(json.dumps(large.result, ensure_ascii=False).encode()) <= 4096 + 200
    assert large.result["content"][0]["text"].startswith("ééé")
    assert "cut by the gateway" in large.result["content"][-1]["text"]
    assert large.result["_meta"]["taskgate/truncated"]["limitBytes"] == 4096
    assert large.result["isError"] is False


async def test_the_result_of_a_task_is_truncated() -> None:
    async with (
        running_gateway(config({"max_tool_output_bytes": 4096})) as gateway,
        opened(gateway.url, STATEFUL) as caller,
    ):
        params = {"name": "work__big", "arguments": {"characters": 100_000}, "task": {"ttl": 60000}}
        made = await caller.ask("tools/call", params)
        result = await caller.ask("tasks/result", {"taskId": made.result["task"]["taskId"]})
    assert "cut by the gateway" in result.result["content"][-1]["text"]


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_call_that_exceeds_its_timeout_ends_with_an_error(version: str) -> None:
    async with running_gateway(config({"tool_timeout_ms": 200})) as gateway, opened(gateway.url, version) as caller:
        reply = await caller.call("work__slow", seconds=30)
    assert reply.result["isError"] is True
    assert reply.result["_meta"]["taskgate/error"]["error_type"] == "upstream_timeout"


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_rate_limited_caller_gets_retry_after(version: str) -> None:
    limits = {"calls_per_caller_per_second": 1, "burst_per_caller": 3}
    async with (
        running_gateway(config({}, limits)) as gateway,
        opened(gateway.url, version, BUSY) as busy_caller,
        opened(gateway.url, version, QUIET) as quiet_caller,
    ):
        replies = await asyncio.gather(*(busy_caller.call("free__read") for _ in range(12)))
        refused = [one for one in replies if "error" in one.message]
        assert refused
        assert [one.text for one in replies if one not in refused] == ["free:read"] * (12 - len(refused))
        error = refused[0].error
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("rate_limited", "no")
        assert error["data"]["legacy_code"] == -32009
        assert 0 < error["data"]["retry_after_ms"] <= 1000
        assert refused[0].headers["retry-after"] == "1"
        assert refused[0].status == (200 if version == STATEFUL else 429)
        assert (await quiet_caller.call("free__read")).text == "free:read"
        assert len(await busy_caller.tools()) == 4
        await asyncio.sleep(error["data"]["retry_after_ms"] / 1000)
        assert (await busy_caller.call("free__read")).text == "free:read"


@pytest.mark.parametrize(
    "caller", every_third(pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer)) for c in CALLERS)
)
@pytest.mark.real_processes
async def test_a_real_client_handles_a_rate_limit(caller: Caller) -> None:
    limits = {"calls_per_caller_per_second": 1, "burst_per_caller": 1}
    call = {"op": "call", "name": "free__read", "arguments": {}}
    async with running_gateway(config({}, limits)) as gateway:
        # On a busy machine two calls may be a second apart; twenty in a row are not.
        first, *others, after = await caller.play([*[call] * 20, {"op": "tools"}], url=gateway.url)
    assert "free:read" in str(first["value"])
    assert any("too often" in str(other.get("error")) for other in others)
    assert "free__read" in after["value"]
