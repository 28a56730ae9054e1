"""A call that has ended leaves no cycle of references behind, however it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.load.cycles import cycles_left
from tests.virtual_time import Call, Caller, Gateway, Upstream, virtual_time

CONFIG: dict[str, Any] = {
    "tasks": {"default_ttl_ms": 1000, "keep_result_ms": 1000},
    "governance": {"rules": [{"match": "wipe", "action": "approve"}]},
}
ASK: dict[str, Any] = {"elicitation": {"form": {}}}
ANSWERS: dict[str, Any] = {"elicitation/create": {"action": "accept", "content": {"value": "yes"}}}
TIMES = 5


def server(generation: str) -> Upstream:
    upstream = Upstream(generation)

    @upstream.tool("quick")
    async def quick(_call: Call) -> str:
        return "done"

    @upstream.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(70)
        return "done"

    @upstream.tool("wipe")
    async def wipe(_call: Call) -> str:
        return "wiped"

    @upstream.tool("large")
    async def large(_call: Call) -> str:
        return "x" * 300_000

    @upstream.tool("asks")
    async def asks(call: Call) -> str:
        await call.elicit("Which one?")
        return "asked"

    return upstream


async def plain(_gate: Gateway, caller: Caller) -> None:
    assert (await caller.call("a__quick", {"text": "a"})).text == "done"


async def large(_gate: Gateway, caller: Caller) -> None:
    assert len((await caller.call("a__large")).text) == 300_000


async def promoted(gate: Gateway, caller: Caller) -> None:
    call = caller.begin_call("a__slow")
    await gate.advance(50)
    assert "continues as task" in call.reply.text
    await gate.advance(30)


async def promoted_after_a_disconnect(gate: Gateway, caller: Caller) -> None:
    call = caller.begin_call("a__slow")
    await gate.advance(1)
    await call.disconnect()
    await gate.advance(80)


async def held(gate: Gateway, caller: Caller) -> None:
    call = caller.begin_call("a__wipe")
    await gate.advance(1)
    for row in (await gate.operator("GET", "/api/v1/approvals")).json():
        await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})
    assert (await call.done()).text == "wiped"


async def asked(_gate: Gateway, caller: Caller) -> None:
    await caller.call("a__asks")


async def refused(_gate: Gateway, caller: Caller) -> None:
    assert (await caller.call("a__missing")).error["data"]["error_type"] == "unknown_tool"
    assert (await caller.request("no/such/method")).error["code"] == -32601


async def cancelled_task(gate: Gateway, caller: Caller) -> None:
    made = await caller.call("a__slow", {}, task={"ttl": 1000})
    if "task" in made.result:
        await gate.advance(1)
        await caller.request("tasks/cancel", {"taskId": made.result["task"]["taskId"]})


async def a_new_session(gate: Gateway, caller: Caller) -> None:
    other = await gate.caller("2025", client="other")
    listening = await other.listen()
    await other.call("a__quick")
    await listening.disconnect()
    await other.close()


KINDS: list[Callable[[Gateway, Caller], Awaitable[None]]] = [
    plain,
    large,
    promoted,
    promoted_after_a_disconnect,
    held,
    refused,
    cancelled_task,
    asked,
    a_new_session,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("generations", ["2025 2025", "2026 2025", "2025 2026", "2026 2026"])
@virtual_time
async def test_an_ended_call_leaves_no_cycle(
    generations: str, kind: Callable[[Gateway, Caller], Awaitable[None]]
) -> None:
    of_caller, of_server = generations.split()
    async with Gateway(CONFIG, {"a": server(of_server)}) as gate:
        caller = await gate.caller(of_caller, capabilities=ASK, answers=ANSWERS)
        await caller.tools()
        await kind(gate, caller)
        await gate.advance(120)
        with cycles_left() as left:
            for _ in range(TIMES):
                await kind(gate, caller)
            await gate.advance(120)
        # The parts of a link refer to each other. There is one link for each session, not one for each call.
        assert not [classes for classes in left if "StatefulLink" not in classes]
