"""A server that supports both generations is used in that of its caller, any other in the only one it supports."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

ANSWERS = {"elicitation/create": {"action": "accept", "content": {"value": "blue"}}}
CAN_ANSWER: dict[str, Any] = {"elicitation": {"form": {}}}


def asking(generation: str) -> Upstream:
    """A server with a tool that asks back, and remembers in which generation it was called."""
    server = Upstream(generation)

    @server.tool("paint")
    async def paint(call: Call) -> str:
        answer = await call.elicit("Which colour?")
        return f"{'2026' if call.stateless else '2025'}: {answer['content']['value']}"

    return server


@pytest.mark.parametrize(
    ("server", "caller", "spoken"),
    [
        ("both", "2025", "2025"),
        ("both", "2026", "2026"),
        ("2025", "2025", "2025"),
        ("2025", "2026", "2025"),
        ("2026", "2025", "2026"),
        ("2026", "2026", "2026"),
    ],
)
@virtual_time
async def test_a_call_uses_the_callers_generation_if_the_server_supports_it(
    server: str, caller: str, spoken: str
) -> None:
    shop = asking(server)
    async with Gateway({}, {"shop": shop}) as gate:
        one = await gate.caller(caller, capabilities=CAN_ANSWER, answers=ANSWERS)
        assert await painted(one, caller) == f"{spoken}: blue"


async def painted(caller: Any, generation: str) -> str:
    """The text of the finished call, whichever way its question came."""
    reply = await caller.call("shop__paint")
    if generation == "2026":
        asked = reply.result
        answers = dict.fromkeys(asked["inputRequests"], ANSWERS["elicitation/create"])
        more = {"inputResponses": answers, "requestState": asked["requestState"]}
        reply = await caller.call("shop__paint", **more)
    text: str = reply.result["content"][0]["text"]
    return text


@pytest.mark.parametrize(("pinned", "caller"), [("2025-11-25", "2026"), ("2026-07-28", "2025")])
@virtual_time
async def test_a_pinned_generation_holds_for_every_caller(pinned: str, caller: str) -> None:
    shop = asking("both")
    config = {"servers": {"shop": {"generation": pinned}}}
    async with Gateway(config, {"shop": shop}) as gate:
        one = await gate.caller(caller, capabilities=CAN_ANSWER, answers=ANSWERS)
        assert (await painted(one, caller)).startswith(pinned[:4])
        assert ("initialize" if pinned.startswith("2026") else "server/discover") not in shop.methods


@virtual_time
async def test_callers_of_both_generations_use_one_server_at_once_and_nothing_is_probed_twice() -> None:
    shop = Upstream("both")
    async with Gateway({}, {"shop": shop}) as gate:
        old, new = await gate.caller("2025"), await gate.caller("2026")
        for _ in range(3):
            assert (await old.call("shop__echo", {"a": 1})).text
            assert (await new.call("shop__echo", {"a": 2})).text
        assert shop.methods["initialize"] == 1
        assert shop.methods["server/discover"] == 1


@virtual_time
async def test_an_unsupported_generation_is_probed_once() -> None:
    shop = Upstream("2026")
    async with Gateway({}, {"shop": shop}) as gate:
        for _ in range(3):
            caller = await gate.caller("2025")
            assert (await caller.call("shop__echo")).text
        assert shop.methods["initialize"] <= 1


@virtual_time
async def test_a_task_keeps_its_generation_after_a_crash() -> None:
    shop = Upstream("both")
    seen: list[bool] = []

    @shop.tool("dig", annotations={"readOnlyHint": True})
    async def dig(call: Call) -> str:
        seen.append(call.stateless)
        await call.sleep(100)
        return "dug"

    config = {"servers": {"shop": {"trust_annotations": True}}}
    async with Gateway(config, {"shop": shop}) as gate:
        old = await gate.caller("2025", capabilities={"tasks": {}})
        created = (await old.call("shop__dig", task={"ttl": 600_000})).result["task"]
        await gate.advance(1)
        gate.crash()
        await gate.start()
        await gate.advance(110)
        again = await gate.caller("2025", capabilities={"tasks": {}})
        assert (await again.request("tasks/get", {"taskId": created["taskId"]})).result["status"] == "completed"
    assert seen
    assert not any(seen)


@virtual_time
async def test_probing_another_generation_leaves_no_unused_link() -> None:
    shop = Upstream("2025")
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2026")
        await caller.tools()
        for _ in range(3):
            assert (await caller.call("shop__echo")).text
        # One session fetches lists, one serves this caller.
        assert len(shop.sessions) == 2
        assert shop.methods["server/discover"] == 1


@virtual_time
async def test_the_envelope_of_a_stateless_server_is_replaced_by_ours() -> None:
    stamp = "io.modelcontextprotocol/serverInfo"
    shop = Upstream("2026")

    @shop.tool("stamped")
    async def stamped(call: Call) -> dict[str, Any]:
        return {"content": [], "_meta": {stamp: {"name": "inner", "version": "1"}, "com.example/own": 1}}

    async with Gateway({}, {"shop": shop}) as gate:
        old, new = await gate.caller("2025"), await gate.caller("2026")
        assert (await old.call("shop__stamped")).result["_meta"] == {"com.example/own": 1}
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert (await new.request(method)).result["_meta"][stamp]["name"] == "taskgate"
            assert "_meta" not in (await old.request(method)).result


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_lists_are_fetched_with_all_capabilities_of_the_gateway(generation: str) -> None:
    """Servers leave out tools that need what their client did not declare."""
    shop = Upstream(generation)
    async with Gateway({}, {"shop": shop}) as gate:
        await (await gate.caller("2025")).tools()
    if generation == "2025":
        (declared,) = [m["params"]["capabilities"] for m in shop.received if m.get("method") == "initialize"]
    else:
        (asked,) = [m["params"]["_meta"] for m in shop.received if m.get("method") == "tools/list"]
        declared = asked["io.modelcontextprotocol/clientCapabilities"]
    assert set(declared) >= {"elicitation", "sampling", "roots"}


@pytest.mark.parametrize("instances", ["per_principal", "shared"])
@virtual_time
async def test_the_first_caller_of_a_link_does_not_decide_which_questions_others_get(instances: str) -> None:
    """Programs on standard streams are shared so by default; a server refuses to ask for what was not declared."""
    shop = asking("2025")
    config = {
        "servers": {"shop": {"instances": instances}},
        "scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}},
    }
    async with Gateway(config, {"shop": shop}) as gate:
        without_elicitation = await gate.caller("2025", capabilities={})
        await without_elicitation.call("shop__echo")
        one = await gate.caller("2025", capabilities=CAN_ANSWER, answers=ANSWERS)
        assert await painted(one, "2025") == "2025: blue"
        declared = [m["params"]["capabilities"] for m in shop.received if m.get("method") == "initialize"]
        assert declared
        assert all(set(each) >= {"elicitation", "sampling", "roots"} for each in declared)


@pytest.mark.parametrize(("times", "spoken"), [(1, "2025"), (2, "2026")])
@virtual_time
async def test_one_slow_handshake_does_not_mark_a_generation_as_unsupported(times: int, spoken: str) -> None:
    """A program on a busy machine may take longer than the timeout of a handshake; the second failure in a row counts."""
    shop = asking("both")

    async def slow(call: Call) -> dict[str, Any]:
        nonlocal times
        times -= 1
        if times < 1:
            shop.as_usual("initialize")
        await call.sleep(30)
        return shop._initialized(call)

    shop.on("initialize", slow)
    async with Gateway({}, {"shop": shop}) as gate:
        new = await gate.caller("2026", capabilities=CAN_ANSWER)
        await new.call("shop__echo")
        texts = []
        for _ in range(3):
            old = await gate.caller("2025", capabilities=CAN_ANSWER, answers=ANSWERS)
            texts.append(await painted(old, "2025"))
        assert texts[-1] == f"{spoken}: blue", texts
