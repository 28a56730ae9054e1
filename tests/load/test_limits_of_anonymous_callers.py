"""Callers without an identity: open tasks are limited by conversation, and by address for all of them together."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.virtual_time import Call, Caller, Gateway, Reply, Upstream, virtual_time

TASK: Final = {"ttl": 600_000}
CLIENT: Final = "taskgate/client"


def _server() -> Upstream:
    upstream = Upstream("both")

    @upstream.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(600)
        return "done"

    return upstream


def _limited(maximum: int, **more: Any) -> Gateway:
    return Gateway({"limits": {"open_tasks_per_caller": maximum}, **more}, {"s": _server()})


def _refused(reply: Reply) -> dict[str, Any]:
    data: dict[str, Any] = reply.last["error"]["data"]
    assert (data["error_type"], data["executed"], data["limit"]) == ("overloaded", "no", "open_tasks_per_caller")
    return data


async def _task(caller: Caller) -> Reply:
    reply: Reply = await caller.call("s__slow", task=TASK)
    return reply


@virtual_time
async def test_one_session_does_not_use_up_the_tasks_of_another() -> None:
    async with _limited(2) as gate:
        busy_caller, other = await gate.caller("2025"), await gate.caller("2025")
        for _ in range(2):
            assert "task" in (await _task(busy_caller)).result
        data = _refused(await _task(busy_caller))
        assert (data["counted_for"], data["limit_value"]) == ("conversation", 2)
        assert "task" in (await _task(other)).result


@virtual_time
async def test_new_sessions_do_not_evade_the_limit_of_their_address() -> None:
    async with _limited(1) as gate:
        for _ in range(10):
            assert "task" in (await _task(await gate.caller("2025"))).result
        data = _refused(await _task(await gate.caller("2025")))
        assert (data["counted_for"], data["limit_value"]) == ("address", 10)


@virtual_time
@pytest.mark.parametrize("named", [True, False])
async def test_stateless_callers_are_distinguished_by_their_client_name(named: bool) -> None:
    async with _limited(1) as gate:
        caller = await gate.caller("2026", capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}})

        async def begin(client: str) -> Reply:
            meta = {CLIENT: client} if named else {}
            params = {"name": "s__slow", "arguments": {}, "_meta": {"taskgate/task": True, **meta}}
            reply: Reply = await caller.request("tools/call", params)
            return reply

        assert "error" not in (await begin("a")).last
        second = await begin("a")
        if named:
            assert _refused(second)["counted_for"] == "conversation"
            assert "error" not in (await begin("b")).last
        else:
            # Its conversations cannot be distinguished: only the limit of the address applies.
            for _ in range(8):
                assert "error" not in (await begin("a")).last
            assert _refused(await begin("a"))["counted_for"] == "address"


@virtual_time
async def test_promoted_calls_count_towards_the_limit() -> None:
    async with _limited(3, tasks={"promote_after_ms": 5_000}) as gate:
        caller = await gate.caller("2025")
        for _ in range(5):
            caller.begin_call("s__slow")
        await gate.advance(20)
        page = (await caller.request("tasks/list")).result["tasks"]
        # All of them were sent before the limit was reached, so all are kept.
        assert len(page) == 5
        assert _refused(await _task(caller))["counted_for"] == "conversation"
        assert _refused(await caller.call("s__slow"))["counted_for"] == "conversation"
        assert gate.upstreams["s"].count("slow") == 5
