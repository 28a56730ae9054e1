"""Lists stay correct and fast while servers misbehave: sessions that are lost, pings that fail, lists that hang."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.virtual_time import Call, Exchange, Gateway, Upstream, virtual_time

LIMIT_S = 0.3
"""A list is answered within this time, even if one of the servers hangs or fails."""


async def echo(_call: Call) -> str:
    return "echo"


async def hangs(_call: Call) -> Any:
    await asyncio.Event().wait()


def server(*tools: str) -> Upstream:
    made = Upstream("2025")
    for name in tools:
        made.tool(name, echo, as_task=True)
    return made


async def names(caller: Any) -> set[str]:
    return {tool["name"] for tool in await caller.tools() if "__" in tool["name"]}


async def quickly(exchange: Exchange) -> Any:
    reply = await exchange.done()
    assert exchange.took <= LIMIT_S
    return reply.result


@virtual_time
async def test_a_hanging_server_delays_lists_and_calls_of_others_by_less_than_300_ms() -> None:
    slow, well = server("old"), server("fine")
    async with Gateway({}, {"slow": slow, "well": well}) as gate:
        caller = await gate.caller("2025")
        assert {"slow__old", "well__fine"} <= await names(caller)
        slow.on("tools/list", hangs)
        await gate.restart()
        again = await gate.caller("2025")
        listed = await quickly(again.begin("tools/list"))
        assert {"slow__old", "well__fine"} <= {tool["name"] for tool in listed["tools"]}
        assert (await quickly(again.begin_call("well__fine")))["content"][0]["text"] == "echo"
        newcomer = await gate.caller("2026")
        assert await quickly(newcomer.begin("tools/list"))


@virtual_time
async def test_a_server_is_listed_again_after_a_failed_ping() -> None:
    notes = server("old")
    async with Gateway({"limits": {"list_max_age": "1d"}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        assert "notes__new" not in await names(caller)
        notes.tool("new", echo)
        notes.on("ping", hangs)
        await gate.advance(120)
        assert "notes__new" in await names(caller)


@pytest.mark.parametrize("status", [400, 404])
@virtual_time
async def test_a_session_refused_during_a_list_request_is_reopened(status: int) -> None:
    # A server that announces no changes: its lists are fetched again only because of their age.
    notes = Upstream("2025", capabilities={"tools": {}})
    notes.tool("old", echo)
    usual = notes._request

    def refusing(method: str, headers: dict[str, str], body: bytes, reply: Any) -> None:
        session = headers.get("mcp-session-id", "")
        if session and session not in notes.sessions:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            reply.send(status, json.dumps({"jsonrpc": "2.0", "error": error, "id": None}).encode())
        else:
            usual(method, headers, body, reply)

    async with Gateway({"limits": {"list_max_age": "5s"}}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        assert "notes__old" in await names(caller)
        notes._request = refusing
        notes.tool("new", echo)
        notes.forget_sessions()
        await gate.advance(6)
        await names(caller)
        await gate.advance(2)
        assert "notes__new" in await names(caller)


@virtual_time
async def test_ping_responses_without_the_session_id_do_not_end_a_session() -> None:
    notes = server("job")
    async with Gateway({}, {"notes": notes}) as gate:
        await gate.advance(100)
        assert "ping" in notes.methods
        assert notes.sessions
        await gate.stop()
        assert not notes.sessions, "a session that we do not remember cannot be ended"


@virtual_time
async def test_arguments_are_completed_although_the_server_has_not_listed_its_tools_yet() -> None:
    """With plain names and one server every name may be one of its tools: that is no reason to suggest nothing."""
    city = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Parma", "Rome"]}}}

    async def slowly(call: Call) -> Any:
        await call.sleep(2)
        return {"tools": [{"name": "weather", "inputSchema": city}]}

    weather = Upstream("2025")
    weather.on("tools/list", slowly)
    async with Gateway({"scopes": {"default": {"default_servers": ["*"], "names": "plain"}}}, {"w": weather}) as gate:
        caller = await gate.caller("2026")
        ref = {"ref": {"type": "ref/tool", "name": "weather"}, "argument": {"name": "city", "value": "Par"}}
        assert (await caller.request("completion/complete", ref)).result["completion"]["values"] == ["Paris", "Parma"]
