"""Events and questions of tasks outlive connections and the gateway itself: never lost, never twice under two ids."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.activity.callers import Caller, call, call_json, http_session, http_stateless, read, task_result
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import UPSTREAMS, Generation, Upstream, every_third

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(90)]
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}},
    "tasks": {"promote_after_ms": 5000},
}


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG, tmp_path) as running:
        yield running


def events_in(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of tasks; a server that reconnects after a restart of the gateway may do so at any moment."""
    grouped = [event for group in seen.get("events", []) for event in group["events"]]
    event_kinds = [*grouped, *seen.get("events_since_last_response", [])]
    return [event for event in event_kinds if event["type"].startswith("task_")]


async def collect(caller: Caller, kind: str, events: list[dict[str, Any]]) -> None:
    while kind not in [event["type"] for event in events]:
        events += events_in(await call_json(caller, "await_activity", timeout_ms=3000))


async def test_events_of_tasks_survive_the_gateway_being_killed(gateway: Gateway) -> None:
    """Client reconnection, over a crash of the gateway."""
    async with http_stateless(gateway, client="ann") as caller:
        slow = {"server": "files", "tool": "slow_report", "args": {"seconds": 60}}
        promoted = read(await call(caller, "execute_tool", **slow, timeout_ms=200))
        task_id = promoted["proxy_task"]["task_id"]
        events = events_in(promoted)
        await collect(caller, "task_created", events)
    await gateway.kill()
    await gateway.start()
    async with http_stateless(gateway, client="ann") as caller:
        later: list[dict[str, Any]] = []
        await collect(caller, "task_failed", later)
        event_ids = [event["id"] for event in events]
        new = [event for event in later if event["id"] not in event_ids]
        assert [event["type"] for event in new] == ["task_failed"]
        assert new[0]["data"]["task_id"] == task_id
        exact = events_in(await call_json(caller, "await_activity", timeout_ms=1000, after=event_ids[-1]))
        assert [event["id"] for event in exact] == [new[0]["id"]]
        assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "failed"


async def test_a_promoted_call_is_recovered_by_the_same_rules_after_a_restart(gateway: Gateway) -> None:
    async with http_stateless(gateway, client="bob") as caller:
        promoted = read(await call(caller, "execute_tool", server="files", tool="greet", timeout_ms=200))
        task_id = promoted["proxy_task"]["task_id"]
    await gateway.kill()
    await gateway.start()
    async with http_stateless(gateway, client="bob") as caller:
        events: list[dict[str, Any]] = []
        await collect(caller, "task_failed", events)
        assert (await call_json(caller, "get_elicitations"))["elicitations"] == []
        ids = [event["id"] for event in events]
        assert len(ids) == len(set(ids))
        assert (await call_json(caller, "get_task", task_id=task_id))["task"]["status"] == "failed"


def facade_over(servers: dict[str, Any]) -> dict[str, Any]:
    return {**CONFIG, "servers": servers}


@pytest.mark.parametrize(
    ("upstream", "transport"),
    every_third(
        pytest.param(u, t, id=f"{u.name} over {t}", marks=pytest.mark.peers(u.peer))
        for u in UPSTREAMS
        for t in ("http", "stdio")
    ),
)
async def test_questions_of_every_real_server_reach_the_inbox_for_callers_of_both_generations(
    upstream: Upstream, transport: str, tmp_path: Path
) -> None:
    async with upstream.http() as url:
        server = {"url": url} if transport == "http" else upstream.stdio()
        async with running_gateway(facade_over({"peer": server}), tmp_path) as gateway:
            async with http_session(gateway) as stateful:
                await asked_and_answered(stateful)
            async with http_stateless(gateway, client="tools-only") as stateless:
                await asked_and_answered(stateless)


async def asked_and_answered(caller: Caller) -> None:
    await call_json(caller, "list_tools")
    promoted = read(await call(caller, "execute_tool", server="peer", tool="ask", timeout_ms=500))
    asked: list[dict[str, Any]] = []
    while not asked:
        asked = (await call_json(caller, "get_elicitations"))["elicitations"]
        if not asked:
            await call_json(caller, "await_activity", timeout_ms=500)
    answer = {"request_id": asked[0]["request_id"], "action": "accept", "content": {"name": "Ann"}}
    assert (await call_json(caller, "respond_to_elicitation", **answer))["success"] is True
    task_id = promoted["proxy_task"]["task_id"]
    result = read(await task_result(caller, task_id))
    assert "Ann" in result["text"], result


@pytest.mark.parametrize(
    "upstream",
    [
        pytest.param(u, id=u.name, marks=pytest.mark.peers(u.peer))
        for u in UPSTREAMS
        if u.supports is Generation.STATELESS
    ],
)
async def test_a_question_of_a_stateless_server_survives_the_gateway_being_killed(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with upstream.http() as url, running_gateway(facade_over({"peer": {"url": url}}), tmp_path) as gateway:
        async with http_stateless(gateway, client="ann") as caller:
            await call_json(caller, "list_tools")
            promoted = read(await call(caller, "execute_tool", server="peer", tool="ask", timeout_ms=500))
            task_id = promoted["proxy_task"]["task_id"]
            while (await call_json(caller, "get_task", task_id=task_id))["task"].get("waiting_for") != "input":
                await call_json(caller, "await_activity", timeout_ms=300)
            (before,) = (await call_json(caller, "get_elicitations"))["elicitations"]
        await gateway.kill()
        await gateway.start()
        async with http_stateless(gateway, client="ann") as caller:
            (asked,) = (await call_json(caller, "get_elicitations"))["elicitations"]
            assert (asked["task_id"], asked["request_id"]) == (task_id, before["request_id"])
            answer = {"request_id": asked["request_id"], "action": "accept", "content": {"name": "Ann"}}
            assert (await call_json(caller, "respond_to_elicitation", **answer))["success"] is True
            result = read(await task_result(caller, task_id))
            assert "Ann" in result["text"], result
