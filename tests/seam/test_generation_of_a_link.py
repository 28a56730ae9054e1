"""A server is spoken to in its caller's generation where it speaks both, and in the only one it speaks otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from tests.seam import Call, Gateway, Upstream, seam

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
@seam
async def test_a_call_is_made_in_the_callers_generation_where_the_server_speaks_it(
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
@seam
async def test_a_pinned_generation_holds_for_every_caller(pinned: str, caller: str) -> None:
    shop = asking("both")
    config = {"servers": {"shop": {"generation": pinned}}}
    async with Gateway(config, {"shop": shop}) as gate:
        one = await gate.caller(caller, capabilities=CAN_ANSWER, answers=ANSWERS)
        assert (await painted(one, caller)).startswith(pinned[:4])
        assert ("initialize" if pinned.startswith("2026") else "server/discover") not in shop.methods


@seam
async def test_callers_of_both_generations_use_one_server_at_once_and_nothing_is_probed_twice() -> None:
    shop = Upstream("both")
    async with Gateway({}, {"shop": shop}) as gate:
        old, new = await gate.caller("2025"), await gate.caller("2026")
        for _ in range(3):
            assert (await old.call("shop__echo", {"a": 1})).text
            assert (await new.call("shop__echo", {"a": 2})).text
        assert shop.methods["initialize"] == 1
        assert shop.methods["server/discover"] == 1


@seam
async def test_what_a_server_does_not_speak_is_found_out_once() -> None:
    shop = Upstream("2026")
    async with Gateway({}, {"shop": shop}) as gate:
        for _ in range(3):
            caller = await gate.caller("2025")
            assert (await caller.call("shop__echo")).text
        assert shop.methods["initialize"] <= 1


@seam
async def test_a_task_goes_on_in_the_generation_in_which_it_began_after_a_crash() -> None:
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


@seam
async def test_looking_for_another_generation_leaves_no_link_behind_that_nobody_uses() -> None:
    shop = Upstream("2025")
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2026")
        await caller.tools()
        for _ in range(3):
            assert (await caller.call("shop__echo")).text
        # One session fetches lists, one serves this caller.
        assert len(shop.sessions) == 2
        assert shop.methods["server/discover"] == 1


@seam
async def test_a_stateless_servers_stamp_stays_inside_and_our_lists_carry_ours() -> None:
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
@seam
async def test_lists_are_fetched_with_everything_that_the_gateway_can_offer(generation: str) -> None:
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
@seam
async def test_who_comes_first_does_not_decide_what_others_on_the_same_link_can_be_asked(instances: str) -> None:
    """Programs on standard streams are shared so by default; a server refuses to ask for what was not declared."""
    shop = asking("2025")
    config = {
        "servers": {"shop": {"instances": instances}},
        "scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}},
    }
    async with Gateway(config, {"shop": shop}) as gate:
        mute = await gate.caller("2025", capabilities={})
        await mute.call("shop__echo")
        one = await gate.caller("2025", capabilities=CAN_ANSWER, answers=ANSWERS)
        assert await painted(one, "2025") == "2025: blue"
        declared = [m["params"]["capabilities"] for m in shop.received if m.get("method") == "initialize"]
        assert declared
        assert all(set(each) >= {"elicitation", "sampling", "roots"} for each in declared)


@pytest.mark.parametrize(("times", "spoken"), [(1, "2025"), (2, "2026")])
@seam
async def test_a_server_that_was_slow_to_greet_once_is_not_taken_for_one_that_cannot(times: int, spoken: str) -> None:
    """A program on a busy machine may take longer than anybody waits for a greeting; twice in a row it is believed."""
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
