"""A request that is held for long becomes an event stream with pings, so that no proxy or client gives up on it."""

from __future__ import annotations

import pytest
from tests.virtual_time import Call, Exchange, Gateway, Upstream, virtual_time

PING = b":"


def slow_server() -> Upstream:
    server = Upstream("2025")

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "slow is done"

    return server


def pings(exchange: Exchange) -> int:
    return sum(line.startswith(PING) for line in exchange.reply.body.splitlines())


@virtual_time
async def test_a_long_wait_for_the_result_of_a_task_gets_heartbeats() -> None:
    async with Gateway({}, {"notes": slow_server()}) as gate:
        caller = await gate.caller("2025")
        handle = (await caller.call("notes__slow", task={"ttl": 600_000})).result["task"]
        waiting = caller.begin("tasks/result", {"taskId": handle["taskId"]})
        await gate.advance(9)
        assert not waiting.headed.is_set()
        await gate.advance(2)
        assert (await waiting.head()).headers["content-type"].startswith("text/event-stream")
        await gate.advance(46)
        assert pings(waiting) == 3
        assert (await waiting.done()).text == "slow is done"


@virtual_time
async def test_a_fast_result_of_a_task_is_a_plain_json_response() -> None:
    async with Gateway({}, {"notes": slow_server()}) as gate:
        caller = await gate.caller("2025")
        handle = (await caller.call("notes__slow", task={"ttl": 600_000})).result["task"]
        await gate.advance(95)
        reply = await caller.request("tasks/result", {"taskId": handle["taskId"]})
        assert reply.headers["content-type"] == "application/json"
        assert reply.text == "slow is done"


READINGS = {"governance": {"rules": [{"match": "resource:*", "action": "approve"}]}}


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_resource_read_that_waits_for_approval_gets_heartbeats(generation: str) -> None:
    server = Upstream("2025", capabilities={"resources": {}})

    async def listed(_call: Call) -> dict[str, object]:
        return {"resources": [{"uri": "note://secret", "name": "secret"}]}

    async def read(_call: Call) -> dict[str, object]:
        return {"contents": [{"uri": "note://secret", "text": "the secret"}]}

    server.on("resources/list", listed)
    server.on("resources/read", read)
    async with Gateway(READINGS, {"notes": server}) as gate:
        caller = await gate.caller(generation)
        reading = caller.begin("resources/read", {"uri": "note://secret"})
        await gate.advance(27)
        assert not reading.is_done, reading.reply
        head = await reading.head()
        assert head.headers["content-type"].startswith("text/event-stream"), head
        assert pings(reading) == 1
        (asked,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.operator("POST", f"/api/approvals/{asked['id']}/approve", {})
        assert (await reading.done()).result["contents"][0]["text"] == "the secret"
