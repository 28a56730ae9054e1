"""Messages that other tests do not cover: pings of servers, changed roots."""

from __future__ import annotations

import sys

import httpx2
import pytest
from tests.features.wire_client import WireClient, config, session
from tests.harness.gateway import running_gateway

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]


async def test_a_server_that_pings_is_answered_by_the_gateway() -> None:
    async with running_gateway(config()) as running, session(running) as caller:
        assert (await caller.call_json("ping_back"))["result"] == {}
        assert caller.asked == []


async def test_completion_is_announced_because_the_gateway_does_it_itself() -> None:
    demo = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
    async with running_gateway({"schema": 1, "servers": {"files": demo}}) as running, httpx2.AsyncClient() as http:
        opened = await WireClient(http, running.url).open({})
        assert opened["capabilities"]["completions"] == {}


async def test_changed_roots_are_announced_to_the_servers_of_the_session() -> None:
    async with running_gateway(config()) as running, session(running, {"roots": {"listChanged": True}}) as caller:
        await caller.call("echo", {})
        await caller.notify("notifications/roots/list_changed")
        data = [message["method"] for message in await caller.call_json("seen")]
        assert "notifications/roots/list_changed" in data
