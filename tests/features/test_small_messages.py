"""Small messages that the big flows pass over: pings of servers, changed roots."""

from __future__ import annotations

import pytest
from tests.features.wire_client import config, session
from tests.harness.gateway import running_gateway

pytestmark = pytest.mark.timeout(60)


async def test_a_server_that_pings_is_answered_by_the_gateway() -> None:
    async with running_gateway(config()) as running, session(running) as caller:
        assert (await caller.told("ping_back"))["result"] == {}
        assert caller.asked == []


async def test_changed_roots_are_told_to_the_servers_of_the_session() -> None:
    async with running_gateway(config()) as running, session(running, {"roots": {"listChanged": True}}) as caller:
        await caller.call("echo", {})
        await caller.notify("notifications/roots/list_changed")
        told = [message["method"] for message in await caller.told("seen")]
        assert "notifications/roots/list_changed" in told
