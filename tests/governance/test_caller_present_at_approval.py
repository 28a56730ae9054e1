"""An approval runs a call at once if its caller is present; the card and the reply to the approver state whether it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Caller, Gateway, Upstream, virtual_time

HELD: dict[str, Any] = {
    "governance": {"rules": [{"match": "wipe", "action": "approve"}]},
    "tasks": {"approval_poll_interval_ms": 5000},
}
Comes = Callable[[Gateway, Caller, str], Awaitable[object]]


def shop() -> Upstream:
    server = Upstream("2025")

    @server.tool("wipe")
    async def wipe(call: Call) -> str:
        return "wiped"

    return server


async def nothing(gate: Gateway, caller: Caller, task_id: str) -> None:
    await gate.advance(1)


async def polled_2_s_ago(gate: Gateway, caller: Caller, task_id: str) -> None:
    await caller.request("tasks/get", {"taskId": task_id})
    await gate.advance(2)


async def polled_three_intervals_ago(gate: Gateway, caller: Caller, task_id: str) -> None:
    await caller.request("tasks/get", {"taskId": task_id})
    await gate.advance(15.5)


async def shown_by_tool(gate: Gateway, caller: Caller, task_id: str) -> None:
    await caller.call_json("get_task", task_id=task_id)
    await gate.advance(2)


async def waits_for_result(gate: Gateway, caller: Caller, task_id: str) -> None:
    caller.begin("tasks/result", {"taskId": task_id})
    await gate.advance(60)


async def waits_by_tool(gate: Gateway, caller: Caller, task_id: str) -> None:
    caller.begin_call("get_task_result", {"task_id": task_id})
    await gate.advance(20)


async def hung_up_while_it_waited(gate: Gateway, caller: Caller, task_id: str) -> None:
    waiting = caller.begin("tasks/result", {"taskId": task_id})
    await gate.advance(30)
    await waiting.disconnect()
    await gate.advance(1)


async def has_stream(gate: Gateway, caller: Caller, task_id: str) -> None:
    await caller.listen()
    await gate.advance(60)


async def had_stream(gate: Gateway, caller: Caller, task_id: str) -> None:
    stream = await caller.listen()
    await gate.advance(60)
    await stream.disconnect()
    await gate.advance(1)


async def waits_for_events(gate: Gateway, caller: Caller, task_id: str) -> None:
    await caller.call_json("await_activity", timeout_ms=1000)
    caller.begin_call("await_activity", {"timeout_ms": 40_000})
    await gate.advance(20)


async def listens_to_task(gate: Gateway, caller: Caller, task_id: str) -> None:
    caller.begin("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    await gate.advance(60)


async def decided(gate: Gateway) -> tuple[bool, bool, str]:
    """The text of the card before the approval, the reply to the approver, and the state of the task right after it."""
    (row,) = (await gate.operator("GET", "/api/v1/approvals")).json()
    card = (await gate.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
    reply = (await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})).json()
    await gate.advance(1)
    (task,) = (await gate.operator("GET", "/api/v1/tasks?state=all")).json()["tasks"]
    return card["starts_on_approval"], reply["starts"], task["state"]


NOW, LATER = (True, True, "completed"), (False, False, "approved")
STATEFUL = [
    (nothing, LATER),
    (polled_2_s_ago, NOW),
    (polled_three_intervals_ago, LATER),
    (shown_by_tool, NOW),
    (waits_for_result, NOW),
    (waits_by_tool, NOW),
    (hung_up_while_it_waited, LATER),
    (has_stream, NOW),
    (had_stream, LATER),
]
STATELESS = [
    (nothing, LATER),
    (polled_2_s_ago, NOW),
    (polled_three_intervals_ago, LATER),
    (shown_by_tool, NOW),
    (listens_to_task, NOW),
]


@pytest.mark.parametrize(("comes", "expected"), STATEFUL, ids=lambda value: getattr(value, "__name__", ""))
@virtual_time
async def test_approved_call_of_a_session_runs_at_once_if_its_caller_is_present(
    comes: Comes, expected: tuple[bool, bool, str]
) -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        made = await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await comes(gate, caller, made.result["task"]["taskId"])
        assert await decided(gate) == expected


@pytest.mark.parametrize(("comes", "expected"), STATELESS, ids=lambda value: getattr(value, "__name__", ""))
@virtual_time
async def test_approved_call_of_a_stateless_caller_runs_at_once_if_it_is_present(
    comes: Comes, expected: tuple[bool, bool, str]
) -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        caller = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        made = await caller.call("shop__wipe")
        await comes(gate, caller, made.result["taskId"])
        assert await decided(gate) == expected


@virtual_time
async def test_caller_that_waits_for_events_is_present() -> None:
    config = {**HELD, "scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        made = await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await waits_for_events(gate, caller, made.result["task"]["taskId"])
        assert await decided(gate) == NOW


@pytest.mark.parametrize(
    ("execute_on", "comes", "expected"),
    [("approval", nothing, NOW), ("result", polled_2_s_ago, LATER), ("result", waits_for_result, NOW)],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)
@virtual_time
async def test_execute_on_decides_when_an_approved_call_runs(
    execute_on: str, comes: Comes, expected: tuple[bool, bool, str]
) -> None:
    config = {**HELD, "tasks": {**HELD["tasks"], "execute_on": execute_on}}
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        made = await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await comes(gate, caller, made.result["task"]["taskId"])
        assert await decided(gate) == expected


@virtual_time
async def test_held_plain_call_runs_at_once() -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("shop__wipe")
        await gate.advance(1)
        assert await decided(gate) == NOW
        assert (await call.done()).text == "wiped"
