"""What is over leaves nothing behind, and a gateway without work does nearly nothing. Counted in virtual time, never measured."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter

from tests.virtual_time import Call, Caller2025, Gateway, Upstream, virtual_time
from tests.virtual_time.longest_step import longest_step

HOUR_S = 3600.0
FORGOTTEN_S = 1.3 * HOUR_S
"""After this a finished task of a short ttl is not even shown as expired any more."""
CONFIG = {
    "tasks": {"default_ttl_ms": 1000, "keep_result_ms": 1000},
    "limits": {"session_idle": "10m", "open_tasks_per_caller": 1000},
}
EACH = 12
STEPS_PER_S = 10
"""Of the loop, each some tens of microseconds: less than a thousandth of a core."""


def server(generation: str) -> Upstream:
    upstream = Upstream(generation)

    async def echo(call: Call) -> str:
        call.progress(1, 2)
        return "done"

    upstream.tool("echo", echo)
    return upstream


async def one_conversation(gate: Gateway, number: int) -> None:
    """A conversation with lists, calls, a task and a stream; half of them end their session, half only disconnect."""
    caller = await gate.caller("2025" if number % 3 else "2026", client=f"c{number}")
    await caller.tools()
    await caller.call("a__echo")
    listening = await caller.listen()
    if number % 3:
        made = await caller.call("a__echo", {}, task={"ttl": 1000})
        await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})
    await listening.disconnect()
    if number % 2 and isinstance(caller, Caller2025):
        await caller.close()


async def one_shift(gate: Gateway, upstream: Upstream) -> None:
    for number in range(EACH):
        await one_conversation(gate, number)
    await upstream.stop()
    await gate.advance(5)
    await upstream.start()
    await gate.advance(FORGOTTEN_S)


def alive() -> Counter[str]:
    """Our objects, by kind."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if str(kind.__module__).startswith("taskgate.")
    )


@virtual_time
async def test_conversations_tasks_and_restarts_leak_nothing() -> None:
    upstream = server("2025")
    async with Gateway(CONFIG, {"a": upstream, "b": server("2026")}) as gate:
        await one_shift(gate, upstream)
        objects, tasks, files = alive(), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        await one_shift(gate, upstream)
        grown = alive() - objects
        assert not grown, grown
        assert len(asyncio.all_tasks()) == tasks
        assert len(os.listdir("/proc/self/fd")) == files


@virtual_time
async def test_an_idle_gateway_has_no_wakeups() -> None:
    """Also after many came at once and all went away."""
    upstream = server("2025")
    async with Gateway(CONFIG, {"a": upstream, "b": server("2026")}) as gate:
        callers = [await gate.caller("2025" if number % 2 else "2026", client=f"c{number}") for number in range(40)]
        streams = [await caller.listen() for caller in callers]
        calls = [caller.begin_call("a__echo") for caller in callers]
        await asyncio.gather(*(call.done() for call in calls))
        for stream in streams:
            await stream.disconnect()
        await gate.advance(10)
        with longest_step(gate.process) as counted:
            await gate.advance(HOUR_S)
        assert counted.steps < HOUR_S * STEPS_PER_S, counted.steps / HOUR_S
