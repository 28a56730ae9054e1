"""What one task costs does not grow with how many others are connected. Counted in steps of the interpreter, never measured."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.seam import TASKS_EXTENSION, Call, Caller, Gateway, Upstream, run

FEW, MANY = 2, 150
GROWTH = 1.05
CONFIG: dict[str, Any] = {
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789".encode()).hexdigest()}
        for name in ("ann", "eve")
    ],
    "limits": {"sessions_per_caller": 1000, "connections_per_address": 1000, "open_tasks_per_caller": 1000},
}


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


@pytest.mark.parametrize("name", ["eve", "ann"])
def test_a_task_costs_the_same_however_many_sessions_are_open(name: str) -> None:
    few, many = [run(partial(beside_sessions, name, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)


def test_a_task_costs_the_same_however_many_streams_follow_something_else() -> None:
    few, many = [run(partial(beside_listens, others)) for others in (FEW, MANY)]
    assert many <= few * GROWTH, (few, many)
