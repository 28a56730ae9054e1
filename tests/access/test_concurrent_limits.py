"""Limits count before they await: parallel requests get no more than sequential ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.dashboard import live_updates
from taskgate.gateway.methods import following, subscriptions
from taskgate.gateway.own_tools import use_resources

MOST = 5
AT_ONCE = 20


def library(generation: str = "2025") -> Upstream:
    """A server with many resources, which confirms a subscription after a delay."""
    server = Upstream(generation, capabilities={"resources": {"subscribe": True}, "tools": {}})

    async def listed(_call: Call) -> dict[str, Any]:
        return {"resources": [{"uri": f"book://{number}", "name": str(number)} for number in range(AT_ONCE)]}

    async def subscribed(call: Call) -> dict[str, Any]:
        await call.sleep(1)
        return {}

    server.on("resources/list", listed)
    server.on("resources/subscribe", subscribed)
    return server


@virtual_time
async def test_parallel_listens_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_LISTENS", MOST)
    async with Gateway({}, {"library": library("2026")}) as gate:
        callers = [await gate.caller("2026", client=f"client-{number}") for number in range(AT_ONCE)]
        wanted = {"notifications": {"resourceSubscriptions": ["book://1"]}}
        opened = [caller.begin("subscriptions/listen", wanted) for caller in callers]
        await gate.advance(5)
        assert len([stream for stream in opened if not stream.is_done]) == MOST
        for stream in opened:
            if stream.is_done:
                assert stream.reply.error["data"]["error_type"] == "overloaded"
        for stream in opened:
            await stream.disconnect()
        await gate.advance(1)
        again = await callers[0].listen(toolsListChanged=True)
        await gate.advance(1)
        assert not again.is_done, "places are given back"


@virtual_time
async def test_parallel_subscriptions_of_a_session_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_URIS", MOST)
    async with Gateway({}, {"library": library()}) as gate:
        caller = await gate.caller("2025")
        asked = [caller.begin("resources/subscribe", {"uri": f"book://{number}"}) for number in range(AT_ONCE)]
        replies = await asyncio.gather(*(one.done() for one in asked))
        assert sum("result" in reply.last for reply in replies) == MOST


@virtual_time
async def test_parallel_uses_of_the_subscribe_tool_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_resources, "MAX_FOLLOWED", MOST)
    config: dict[str, Any] = {"scopes": {"default": {"default_servers": ["*"], "mode": "facade"}}}
    async with Gateway(config, {"library": library()}) as gate:
        caller = await gate.caller("2025")
        asked = [
            caller.begin_call("subscribe_resource", {"server": "library", "uri": f"book://{number}"})
            for number in range(AT_ONCE)
        ]
        replies = await asyncio.gather(*(one.done() for one in asked))
        assert sum(not reply.last.get("result", {"isError": True}).get("isError") for reply in replies) == MOST


@virtual_time
async def test_parallel_pages_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_STREAMS", MOST)
    async with Gateway({}, {}) as gate:
        headers = {"authorization": f"Bearer {gate.operator_token}"}
        streams = [gate.http("GET", "/api/v1/events", headers=headers) for _ in range(AT_ONCE)]
        found = [(await stream.head()).status for stream in streams]
        assert (found.count(200), found.count(503)) == (MOST, AT_ONCE - MOST)
        for stream in streams:
            await stream.disconnect()
        await gate.advance(1)
        assert (await gate.http("GET", "/api/v1/events", headers=headers).head()).status == 200
