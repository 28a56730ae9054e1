"""No change is lost between the rendering of a page and the events of its stream."""

from __future__ import annotations

import re

from tests.console.test_console_pages import Person
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bank_server, bearer, frames
from tests.virtual_time import Gateway, virtual_time

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.roles import Role
from taskgate.dashboard.topics import Topic


@virtual_time
async def test_stream_announces_changes_made_since_its_page_was_rendered() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        ann = await Person(gate).log_in("ann-token-0123456789abcdef")
        version = re.search(r'data-version="([^"]+)"', await ann.text("/tasks"))
        assert version is not None
        address = f"/api/v1/events?after={version[1]}"
        unchanged = gate.http("GET", address, headers=bearer("ann"))
        await gate.advance(1)
        assert frames(unchanged.reply.body) == []
        await unchanged.disconnect()
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        changed = gate.http("GET", address, headers=bearer("ann"))
        await gate.advance(0.01)
        assert "tasks" in frames(changed.reply.body)[0][1]
        await changed.disconnect()


@virtual_time
async def test_change_announced_while_a_frame_is_sent_is_not_lost() -> None:
    async with Gateway(TOKENS, {}) as gate:
        live = gate.life.dashboard.live
        stream = live.stream(None, Approver("ann", frozenset({Role.APPROVER})))
        try:
            assert await anext(stream.frames) == b"retry: 1000\n\n"
            # The consumer has not requested the next frame yet: it is still sending this one.
            live.changed(Topic.TASKS)
            await gate.advance(1)
            assert frames(await anext(stream.frames))[0][1] == ["tasks"]
        finally:
            assert stream.over is not None
            stream.over()
