"""An equal call of the same conversation joins the one that waits for an approval, and is never run twice for it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Caller, Gateway, Upstream, virtual_time

HELD: dict[str, Any] = {"governance": {"rules": [{"match": "wipe", "action": "approve"}]}}
ANN = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(b"ann-token").hexdigest()}]}
URL: dict[str, Any] = {"elicitation": {"url": {}}}
KEY = "taskgate/idempotencyKey"


def shop() -> Upstream:
    server = Upstream("2025")

    @server.tool("wipe")
    async def wipe(call: Call) -> str:
        return f"wiped {call.arguments['disk']}"

    return server


async def approvals(gate: Gateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gate.operator("GET", "/api/v1/approvals")).json()
    return rows


async def approve_all(gate: Gateway) -> None:
    for row in await approvals(gate):
        await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})


@virtual_time
async def test_equal_plain_calls_get_one_result() -> None:
    server = shop()
    async with Gateway(HELD, {"shop": server}) as gate:
        caller = await gate.caller("2025")
        calls = [caller.begin_call("shop__wipe", {"disk": "a"}) for _ in range(2)]
        await gate.advance(1)
        (row,) = await approvals(gate)
        await approve_all(gate)
        assert [(await call.done()).text for call in calls] == ["wiped a"] * 2
        assert server.count("wipe") == 1
        joined = [call.reply.result.get("_meta", {}).get("taskgate/joined") for call in calls]
        assert [one["taskId"] for one in joined if one is not None] == [row["task_id"]]


@virtual_time
async def test_promoted_reply_of_a_joined_call_names_the_task_and_a_key_that_makes_a_second() -> None:
    server = shop()
    async with Gateway(HELD, {"shop": server}) as gate:
        caller = await gate.caller("2025")
        first, second = (caller.begin_call("shop__wipe", {"disk": "a"}) for _ in range(2))
        await gate.advance(50)
        (row,) = await approvals(gate)
        assert row["task_id"] in (await first.done()).text
        reported = (await second.done()).text
        assert row["task_id"] in reported
        key = reported.partition(f'"{KEY}": "')[2].partition('"')[0]
        caller.begin_call("shop__wipe", {"disk": "a"}, _meta={KEY: key})
        await gate.advance(1)
        assert len(await approvals(gate)) == 2


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_handle_of_a_joined_call_is_that_of_the_first(generation: str) -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        caller = await gate.caller(generation, capabilities=TASKS_EXTENSION)
        more: dict[str, Any] = {"task": {}} if generation == "2025" else {"_meta": {"taskgate/client": "desk"}}
        first, second = [(await caller.call("shop__wipe", {"disk": "a"}, **more)).result for _ in range(2)]
        assert first["taskId"] == second["taskId"]
        assert "taskgate/joined" not in first.get("_meta", {})
        assert second["_meta"]["taskgate/joined"]["taskId"] == first["taskId"]
        assert len(await approvals(gate)) == 1


async def two_sessions(gate: Gateway) -> tuple[Caller, Caller]:
    return await gate.caller("2025", token="ann-token"), await gate.caller("2025", token="ann-token")


@pytest.mark.parametrize(
    "other", ["conversation", "arguments", "key", "client without a conversation", "decided", "definition"]
)
@virtual_time
async def test_call_that_differs_is_a_second_one(other: str) -> None:
    server = shop()
    async with Gateway({**HELD, **ANN, "auth": {"anonymous": "default"}, "pins": "off"}, {"shop": server}) as gate:
        one, two = await two_sessions(gate)
        if other == "client without a conversation":
            one = two = await gate.caller("2026")
        one.begin_call("shop__wipe", {"disk": "a"})
        await gate.advance(1)
        if other == "decided":
            await approve_all(gate)
        if other == "definition":
            server.tool("wipe", server._tools["wipe"].handler, description="Wipes more.")
            server.notify("notifications/tools/list_changed", {})
            await gate.advance(5)
        caller = two if other == "conversation" else one
        more = {"_meta": {KEY: "k2"}} if other == "key" else {}
        caller.begin_call("shop__wipe", {"disk": "b" if other == "arguments" else "a"}, **more)
        await gate.advance(1)
        everything = (await gate.operator("GET", "/api/v1/approvals?all=1")).json()
        assert len(everything) == 2


DESK = {"_meta": {"taskgate/client": "desk"}}


@virtual_time
async def test_joined_call_continues_while_one_of_its_callers_waits() -> None:
    server = shop()
    async with Gateway(HELD, {"shop": server}) as gate:
        caller = await gate.caller("2026")
        first, second, third = (caller.begin_call("shop__wipe", {"disk": "a"}, **DESK) for _ in range(3))
        await gate.advance(1)
        await first.disconnect()
        await third.disconnect()
        await gate.advance(1)
        assert len(await approvals(gate)) == 1
        await second.disconnect()
        await gate.advance(1)
        assert await approvals(gate) == []


@pytest.mark.parametrize("has_handle", ["first", "second"])
@virtual_time
async def test_cancel_does_not_end_a_call_whose_handle_another_caller_has(has_handle: str) -> None:
    server = shop()
    async with Gateway(HELD, {"shop": server}) as gate:
        caller = await gate.caller("2026")
        with_tasks = await gate.caller("2026", capabilities=TASKS_EXTENSION)
        if has_handle == "first":
            await with_tasks.call("shop__wipe", {"disk": "a"}, **DESK)
            waiting = caller.begin_call("shop__wipe", {"disk": "a"}, **DESK)
            await gate.advance(1)
        else:
            waiting = caller.begin_call("shop__wipe", {"disk": "a"}, **DESK)
            await gate.advance(1)
            await with_tasks.call("shop__wipe", {"disk": "a"}, **DESK)
        assert len(await approvals(gate)) == 1
        await waiting.disconnect()
        await gate.advance(1)
        assert len(await approvals(gate)) == 1


@virtual_time
async def test_client_that_does_not_return_from_a_link_gets_the_handle_when_it_calls_again() -> None:
    """It failed at showing the link, as a proxy does whose own client supports no elicitation, and dropped the state."""
    server = shop()
    async with Gateway({**HELD, **ANN}, {"shop": server}) as gate:
        caller = await gate.caller("2026", capabilities=URL, token="ann-token")
        assert (await caller.call("shop__wipe", {"disk": "a"})).result["resultType"] == "input_required"
        again = caller.begin_call("shop__wipe", {"disk": "a"})
        await gate.advance(50)
        (row,) = await approvals(gate)
        assert row["task_id"] in (await again.done()).text
        other = caller.begin_call("shop__wipe", {"disk": "b"})
        await gate.advance(50)
        assert "waits as task" in (await other.done()).text
        await approve_all(gate)
        await gate.advance(5)
        assert server.ran[-1].arguments == {"disk": "b"}
        result = (await caller.call("get_task_result", {"task_id": row["task_id"]})).result
        assert result["content"][0]["text"] == "wiped a"
        assert server.count("wipe") == 2


@virtual_time
async def test_client_without_a_conversation_is_held_and_gets_the_handle() -> None:
    async with Gateway(HELD, {"shop": shop()}) as gate:
        caller = await gate.caller("2026", capabilities=URL)
        call = caller.begin_call("shop__wipe", {"disk": "a"})
        await gate.advance(50)
        (row,) = await approvals(gate)
        reported = (await call.done()).text
        assert row["task_id"] in reported
        assert row["url"] in reported


@pytest.mark.parametrize("key", ["", "k" * 256, "a\0b", 7])
@virtual_time
async def test_unusable_idempotency_key_is_refused_before_anything_is_stored(key: Any) -> None:
    server = shop()
    async with Gateway({}, {"shop": server}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("shop__wipe", {"disk": "a"}, _meta={KEY: key})
        assert (reply.error["data"]["error_type"], reply.error["data"]["executed"]) == ("invalid_params", "no")
        assert server.count("wipe") == 0
