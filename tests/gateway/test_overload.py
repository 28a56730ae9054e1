"""More calls than fit: the rest is refused at once, with a clear error and nothing executed, and what was accepted goes on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.features.wire_client import PREFIX, refused, session
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running

from taskgate import clock

pytestmark = [pytest.mark.timeout(90), pytest.mark.virtual_time]
MIRROR = Path(__file__).resolve().parent.parent / "peers" / "mirror_server.py"
PLACES = 4


@asynccontextmanager
async def small_gateway(**more: Any) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        port = free_port()
        await stack.enter_async_context(running([sys.executable, MIRROR, "stateful", str(port)], listening(port)))
        settings = {
            "schema": 1,
            "servers": {"old": {"url": f"http://127.0.0.1:{port}/mcp"}},
            "limits": {"calls_in_flight": PLACES, **more.pop("limits", {})},
            **more,
        }
        yield await stack.enter_async_context(running_gateway(settings))


def stateless_call(tool: str, **arguments: Any) -> dict[str, Any]:
    meta = {f"{PREFIX}protocolVersion": "2026-07-28", f"{PREFIX}clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    return {"json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, "headers": headers}


async def until_in_flight(gateway: Gateway, count: int) -> None:
    async with httpx2.AsyncClient() as http, asyncio.timeout(10):
        while f"taskgate_calls_in_flight {float(count)}" not in (await http.get(f"{gateway.base}/metrics")).text:
            await asyncio.sleep(0.02)


async def test_calls_beyond_the_limit_are_refused_at_once_and_accepted_ones_complete() -> None:
    async with small_gateway() as gateway, session(gateway) as caller, httpx2.AsyncClient(timeout=10) as http:
        accepted = [asyncio.create_task(caller.call("old__sleep", {"value": 3})) for _ in range(PLACES)]
        await until_in_flight(gateway, PLACES)

        began = clock.monotonic()
        problem = await refused(caller.call("old__mirror", {"value": "never sent"}))
        assert (problem.code, problem.kind) == (-32013, "overloaded")
        assert problem.error["data"]["executed"] == "no"
        assert problem.error["data"]["retry_after_ms"] == 1000
        reply = await http.post(gateway.url, **stateless_call("old__mirror", value="never sent"))
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == -32603
        assert reply.json()["error"]["data"]["error_type"] == "overloaded"
        assert reply.json()["error"]["data"]["executed"] == "no"
        refused_task = await refused(caller.call("old__mirror", {"value": 1}, task={"ttl": 60_000}))
        assert refused_task.kind == "overloaded"
        assert clock.monotonic() == began

        # What costs little and lets callers find out is answered all the same.
        assert [tool["name"] for tool in (await caller.ask("tools/list"))["tools"]]
        assert await caller.ask("ping") == {}

        results = await asyncio.gather(*accepted)
        assert [result["structuredContent"]["value"] for result in results] == [3] * PLACES
        await until_in_flight(gateway, 0)
        assert (await caller.call("old__mirror", {"value": 1}))["structuredContent"] == {"value": 1}


async def test_a_cancelled_and_a_promoted_call_free_their_slot() -> None:
    async with small_gateway(tasks={"promote_after_ms": 300, "grace_ms": 100}) as gateway, session(gateway) as caller:
        promoted = await asyncio.gather(*(caller.call("old__sleep", {"value": 3}) for _ in range(PLACES)))
        assert all("still" in json.dumps(result) or "task" in json.dumps(result) for result in promoted)
        await until_in_flight(gateway, 0)
        assert (await caller.call("old__mirror", {"value": 1}))["structuredContent"] == {"value": 1}
    async with small_gateway() as gateway, session(gateway) as caller:
        calls = [asyncio.create_task(caller.exchange("tools/call", SLEEP, number=f"c{n}")) for n in range(PLACES)]
        await until_in_flight(gateway, PLACES)
        for n in range(PLACES):
            await caller.notify("notifications/cancelled", {"requestId": f"c{n}"})
        await asyncio.gather(*calls, return_exceptions=True)
        await until_in_flight(gateway, 0)


SLEEP = {"name": "old__sleep", "arguments": {"value": 20}}
