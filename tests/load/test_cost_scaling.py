"""What one task costs does not grow with how many others are connected. Counted in steps of the interpreter, never measured."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Caller, Gateway, Upstream, run

FEW, MANY = 2, 150
GROWTH = 1.05
CONFIG: dict[str, Any] = {
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789".encode()).hexdigest()}
        for name in ("ann", "eve")
    ],
    "limits": {"sessions_per_caller": 1000, "connections_per_address": 1000, "open_tasks_per_caller": 1000},
}

OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "one more", "version": "1"}}


def server() -> Upstream:
    upstream = Upstream("both")

    async def chatty(call: Call) -> str:
        for number in range(20):
            call.progress(number, 20)
        return "done"

    upstream.tool("chatty", chatty)
    return upstream


async def steps_in(work: Callable[[], Awaitable[Any]]) -> int:
    """Steps of the interpreter in the gateway's own files while this work is done."""
    count = 0

    def inside(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return inside

    def entered(frame: FrameType, _event: str, _argument: Any) -> Any:
        if "/taskgate/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return inside

    await work()
    before = sys.gettrace()
    sys.settrace(entered)
    try:
        await work()
    finally:
        sys.settrace(before)
    return count


async def caller_of(gate: Gateway, name: str, generation: str) -> Caller:
    capabilities = {"tasks": {}} if generation == "2025" else TASKS_EXTENSION
    return await gate.caller(generation, token=f"{name}-token-0123456789", capabilities=capabilities)


async def one_task(caller: Caller) -> None:
    made = await caller.call("s__chatty", {}, task={"ttl": 60_000})
    await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})


async def beside_sessions(name: str, others: int) -> int:
    """`others` sessions of this principal are open beside the one that makes a task."""
    async with Gateway(CONFIG, {"s": server()}) as gate:
        ann = await caller_of(gate, "ann", "2025")
        for _ in range(others):
            await caller_of(gate, name, "2025")
        return await steps_in(lambda: one_task(ann))


async def beside_listens(others: int) -> int:
    """`others` streams that follow something else are open beside the session that makes a task."""
    async with Gateway(CONFIG, {"s": server()}) as gate:
        ann = await caller_of(gate, "ann", "2025")
        for _ in range(others):
            eve = await caller_of(gate, "eve", "2026")
            await (await eve.listen()).message(0)
        return await steps_in(lambda: one_task(ann))


def notified_server() -> Upstream:
    """With two resources, of which one changes."""
    upstream = Upstream("2026", capabilities={"tools": {}, "resources": {"subscribe": True}})

    async def listed(_call: Call) -> dict[str, Any]:
        return {"resources": [{"uri": f"note://{name}", "name": name} for name in ("a", "b")]}

    upstream.on("resources/list", listed)
    return upstream


async def update_beside(others: int, generation: str) -> int:
    """`others` follow another resource of the server; one session is notified that its own has changed."""
    upstream = notified_server()
    async with Gateway(CONFIG, {"s": upstream}) as gate:
        ann = await caller_of(gate, "ann", "2025")
        stream = await ann.listen()
        assert (await ann.request("resources/subscribe", {"uri": "note://a"})).result == {}
        for _ in range(others):
            eve = await caller_of(gate, "eve", generation)
            if generation == "2025":
                assert (await eve.request("resources/subscribe", {"uri": "note://b"})).result == {}
            else:
                await (await eve.listen(resourceSubscriptions=["note://b"])).message(0)
        await gate.advance(1)

        async def updated() -> None:
            before = len(stream.reply.messages)
            upstream.notify("notifications/resources/updated", {"uri": "note://a"})
            await stream.message(before)

        return await steps_in(updated)


@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_the_cost_of_an_update_does_not_grow_with_other_subscriptions(generation: str) -> None:
    few, many = [run(partial(update_beside, others, generation)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)


@pytest.mark.parametrize("name", ["eve", "ann"])
def test_the_cost_of_a_task_does_not_grow_with_open_sessions(name: str) -> None:
    few, many = [run(partial(beside_sessions, name, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)


def test_the_cost_of_a_task_does_not_grow_with_other_streams() -> None:
    few, many = [run(partial(beside_listens, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)


async def resource_update_beside(others: int) -> int:
    """A server reports completion of a URL elicitation that no caller received."""
    upstream = server()
    async with Gateway(CONFIG, {"s": upstream}) as gate:
        ann = await caller_of(gate, "ann", "2025")
        await ann.call("s__chatty", {})
        for _ in range(others):
            await caller_of(gate, "eve", "2025")

        async def notified() -> None:
            upstream.notify("notifications/elicitation/complete", {"elicitationId": "nobody's"})
            await gate.advance(0.01)

        return await steps_in(notified)


def test_the_cost_of_a_resource_update_does_not_grow_with_open_sessions() -> None:
    few, many = [run(partial(resource_update_beside, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)


async def refused_beside(others: int) -> int:
    """The limit of sessions is reached, and all open ones are in use."""
    config = {**CONFIG, "limits": {**CONFIG["limits"], "sessions": others + 1}}
    async with Gateway(config, {"s": server()}) as gate:
        ann = await caller_of(gate, "ann", "2025")
        for _ in range(others):
            await (await caller_of(gate, "eve", "2025")).tools()

        async def refused() -> None:
            reply = await ann.request("initialize", OPENING)
            assert reply.error["data"]["error_type"] == "overloaded"

        return await steps_in(refused)


def test_the_cost_of_refusing_a_session_does_not_grow_with_open_sessions() -> None:
    few, many = [run(partial(refused_beside, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)
