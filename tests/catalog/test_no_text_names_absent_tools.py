"""With `helper_tools: never` no text that a caller or its model reads names a tool which is not there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.gateway.own_tools.table import TOOLS

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}


def shop() -> Upstream:
    server = Upstream("2025")

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(100)
        return "done"

    @server.tool("ask")
    async def ask(call: Call) -> str:
        return str(await call.elicit("Which colour?", FORM))

    @server.tool("wipe")
    async def wipe(call: Call) -> str:
        return "wiped"

    return server


def config(mode: str) -> dict[str, Any]:
    return {
        "scopes": {"default": {"default_servers": ["*"], "mode": mode, "helper_tools": "never"}},
        "governance": {"rules": [{"match": "wipe", "action": "approve"}]},
    }


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("mode", ["direct", "search"])
@virtual_time
async def test_no_text_names_a_tool_that_is_not_listed(mode: str, generation: str) -> None:
    async with Gateway(config(mode), {"shop": shop()}) as gate:
        caller = await gate.caller(generation)
        listed = (await caller.request("tools/list")).result["tools"]
        read = [json.dumps(listed)]
        for tool in ("slow", "ask", "wipe"):
            name, arguments = f"shop__{tool}", {}
            if mode == "search":
                name, arguments = "call_tool", {"name": name}
            call = caller.begin_call(name, arguments, _meta={"progressToken": tool})
            await gate.advance(60)
            # A question is refused where no inbox can be read.
            assert tool == "ask" or "tg_" in (await call.done()).text
            read += [json.dumps(event) for event in (await call.done()).messages]
        absent = set(TOOLS) - {tool["name"] for tool in listed}
        assert absent
        named = {word for text in read for word in re.findall(r"\w+", text)}
        assert named & absent == set()
