"""Progress is throttled and complete at its end; cancellations reach the right server, and late replies are dropped."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.features.wire_client import TIMEOUT_S, WireClient, config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
PROGRESS = "notifications/progress"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    # Some calls here are left running on purpose, and a draining gateway waits for them.
    more = {"compat": {"vendor_methods": True}, "limits": {"drain_timeout": "1s"}}
    async with running_gateway(config(**more)) as running:
        yield running


async def test_flood_of_progress_is_paced_and_ends_with_the_last_update(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        await caller.call("flood", {"steps": 300}, _meta={"progressToken": "mine"})
        received = caller.messages_of(PROGRESS)
        numbers = [update["progress"] for update in received]
        assert {update["progressToken"] for update in received} == {"mine"}
        assert numbers == sorted(set(numbers)), "progress was repeated or reordered"
        assert numbers[-1] == 300, "the last update was dropped"
        assert 20 <= len(numbers) <= 40


async def test_without_a_token_there_is_no_progress(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        await caller.call("flood", {"steps": 30})
        assert caller.received == []


async def test_a_stateless_caller_gets_the_same_progress(gateway: Gateway) -> None:
    async with stateless(gateway) as caller:
        await caller.call("flood", {"steps": 300}, _meta={"progressToken": 7})
        numbers = [update["progress"] for update in caller.messages_of(PROGRESS)]
        assert numbers[-1] == 300
        assert len(numbers) <= 40


async def test_progress_of_a_task_is_paced_and_ends_with_the_task(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}, listen=True) as caller:
        made = await caller.call("flood", {"steps": 300}, task={}, _meta={"progressToken": "t"})
        task_id = made["task"]["taskId"]
        await caller.ask("tasks/result", {"taskId": task_id})
        await caller.wait_for_message("notifications/tasks/status", lambda params: params["status"] == "completed")
        updates = caller.messages_of(PROGRESS)
        numbers = [update["progress"] for update in updates]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 300
        assert len(numbers) <= 40
        ended = next(i for i, m in enumerate(caller.received) if m["params"].get("status") == "completed")
        assert all(m["method"] != PROGRESS for m in caller.received[ended:]), "progress after the end"


async def cancelled_upstream(caller: WireClient) -> list[Any]:
    return [seen for seen in await caller.call_json("seen") if seen["method"] == "notifications/cancelled"]


async def until_cancelled_upstream(caller: WireClient) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await cancelled_upstream(caller):
            await asyncio.sleep(0.02)


async def in_flight(caller: WireClient, tool: str, number: int, **more: Any) -> asyncio.Task[Any]:
    """Start a call and wait until its server has it."""
    started = asyncio.create_task(caller.exchange("tools/call", {"name": tool, "arguments": {}, **more}, number))
    await caller.call_json("seen")
    return started


@pytest.mark.parametrize("tool", ["wait", "stubborn"])
async def test_a_cancellation_reaches_the_server_and_late_responses_are_dropped(gateway: Gateway, tool: str) -> None:
    async with session(gateway) as caller:
        call = await in_flight(caller, tool, 901)
        await caller.notify("notifications/cancelled", {"requestId": 901, "reason": "enough", "timestamp": 1})
        assert await asyncio.wait_for(call, TIMEOUT_S) is None
        await until_cancelled_upstream(caller)
        assert (await caller.call_json("echo", {"x": 1}))["arguments"] == {"x": 1}


async def test_closing_the_stream_cancels_for_a_stateless_caller(gateway: Gateway) -> None:
    async with stateless(gateway) as caller, session(gateway):
        call = await in_flight(caller, "wait", 902)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until_cancelled_upstream(caller)


async def test_closing_the_stream_does_not_cancel_for_a_stateful_caller(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        call = await in_flight(caller, "wait", 903)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await caller.call_json("echo", {})
        assert await cancelled_upstream(caller) == []


async def test_cancels_of_unknown_and_foreign_requests_change_nothing(gateway: Gateway) -> None:
    async with session(gateway) as caller, session(gateway) as other:
        call = await in_flight(caller, "wait", 904)
        await other.notify("notifications/cancelled", {"requestId": 904})
        await caller.notify("notifications/cancelled", {"requestId": 12345})
        await caller.notify("notifications/cancelled", {})
        await caller.call_json("echo", {})
        assert await cancelled_upstream(caller) == []
        assert not call.done()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_server_that_withdraws_its_question_withdraws_it_from_the_caller(gateway: Gateway) -> None:
    async with session(gateway, {"sampling": {}}) as caller:

        async def never(_message: Any) -> None:
            await caller.notify("notifications/cancelled", {"requestId": 905})

        caller.answers["sampling/createMessage"] = never
        call = asyncio.create_task(caller.exchange("tools/call", {"name": "sample", "arguments": {}}, 905))
        assert await asyncio.wait_for(call, TIMEOUT_S) is None
        await until_cancelled_upstream(caller)


async def test_requests_cancel_is_idempotent(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        call = await in_flight(caller, "wait", 906)
        for _ in range(2):
            answer = await caller.ask("requests/cancel", {"requestId": 906, "reason": "enough"})
            assert (answer["requestId"], answer["cancelled"]) == (906, True)
            assert type(answer["timestamp"]) is int
        assert await asyncio.wait_for(call, TIMEOUT_S) is None
        await until_cancelled_upstream(caller)


@pytest.mark.parametrize(
    ("params", "kind", "named"),
    [
        ({}, "invalid_params", ("requestId",)),
        (
            {"requestId": 4711},
            "unknown_request",
            (),
        ),
        ({"requestId": 907}, "invalid_params", ()),
    ],
)
async def test_requests_that_cannot_be_cancelled_are_reported(
    gateway: Gateway, params: dict[str, Any], kind: str, named: tuple[str, ...]
) -> None:
    async with session(gateway) as caller:
        problem = await refused(caller.ask("requests/cancel", params, 907))
        assert (problem.code, problem.kind) == (-32602, kind)
        assert problem.names(named)


async def test_a_foreign_request_cannot_be_cancelled(gateway: Gateway) -> None:
    async with session(gateway) as caller, session(gateway) as other:
        call = await in_flight(caller, "wait", 909)
        problem = await refused(other.ask("requests/cancel", {"requestId": 909}))
        assert (problem.code, problem.kind) == (-32602, "unknown_request")
        unknown = await refused(other.ask("requests/cancel", {"requestId": 4711}))
        assert problem.meaning == unknown.meaning, "a foreign request looks like one that does not exist"
        assert await cancelled_upstream(caller) == []
        assert not call.done()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_foreign_task_cannot_be_cancelled() -> None:
    tokens: list[Any] = [
        {"id": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "roles": []} for n in ("ann", "bob")
    ]
    async with (
        running_gateway(config(tokens=tokens)) as running,
        session(running, {"tasks": {}}, token="ann") as caller,
        session(running, {"tasks": {}}, token="bob") as other,
    ):
        made = await caller.call("wait", {}, task={})
        problem = await refused(other.ask("tasks/cancel", {"taskId": made["task"]["taskId"]}))
        assert (problem.code, problem.kind) == (-32602, "unknown_task")
        unknown = await refused(other.ask("tasks/cancel", {"taskId": "tg_01JZZZZZZZZZZZZZZZZZZZZZZZ"}))
        assert problem.meaning == unknown.meaning, "a foreign task looks like one that does not exist"
        assert (await caller.ask("tasks/get", {"taskId": made["task"]["taskId"]}))["status"] == "working"
        await caller.ask("tasks/cancel", {"taskId": made["task"]["taskId"]})


async def test_a_finished_request_cannot_be_cancelled(gateway: Gateway) -> None:
    async with session(gateway) as caller:
        await caller.ask("tools/call", {"name": "echo", "arguments": {}}, 908)
        assert (await refused(caller.ask("requests/cancel", {"requestId": 908}))).kind == "unknown_request"


async def test_tasks_are_cancelled_by_their_own_method_with_a_reason(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        made = await caller.call("wait", {}, task={})
        task_id = made["task"]["taskId"]
        gone = await caller.ask("tasks/cancel", {"taskId": task_id, "reason": "enough"})
        assert gone["status"] == "cancelled"
        problem = await refused(caller.ask("tasks/cancel", {"taskId": task_id}))
        assert (problem.code, problem.kind, problem.error["data"]["legacy_code"]) == (-32602, "task_finished", -32090)
