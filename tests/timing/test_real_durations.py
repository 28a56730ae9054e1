"""A reply that is held and ends early states how long its caller really waited."""

from __future__ import annotations

import re
import signal
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, until, virtual_time


def sleeping() -> Upstream:
    server = Upstream()

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(600)
        return "done"

    return server


def seconds_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(\d+(?:\.\d+)?) s\b", text)]


async def text_at_sigterm(gate: Gateway, begin: Any) -> str:
    """The text of a reply that is held for four seconds when the gateway receives the signal to stop."""
    held = begin()
    await gate.advance(4)
    assert not held.is_done
    gate.send_signal(signal.SIGTERM)
    text: str = (await held.done()).text
    return text


@virtual_time
async def test_waiting_helper_tool_states_how_long_it_waited() -> None:
    server = sleeping()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = (await caller.call("notes__slow", {}, task={"ttl": 600_000})).result["taskId"]
        await until(lambda: server.count("slow") == 1)
        request_body = {"task_id": task_id, "timeout_ms": 30_000}
        text = await text_at_sigterm(gate, lambda: caller.begin_call("get_task_result", request_body))
        assert task_id in text
        assert seconds_in(text) == [4]
        await gate.stop()


@virtual_time
async def test_waiting_helper_tool_states_its_whole_time() -> None:
    server = sleeping()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        task_id = (await caller.call("notes__slow", {}, task={"ttl": 600_000})).result["taskId"]
        reply = await caller.call("get_task_result", {"task_id": task_id, "timeout_ms": 30_000})
        assert seconds_in(reply.text) == [30]


@virtual_time
async def test_held_call_states_how_long_it_was_held() -> None:
    """With an idempotency key it is durable from the start, and its reply is held."""
    server = sleeping()
    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        meta = {"taskgate/idempotencyKey": "k1"}
        text = await text_at_sigterm(gate, lambda: caller.begin_call("notes__slow", {}, _meta=meta))
        assert seconds_in(text) == [4]
        await gate.stop()
