"""Which conversations share a process of a stdio server: those that cannot be asked, until a question could not be assigned."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Caller, Exchange, Gateway, virtual_time

from taskgate.upstreams.own_links import ASKS_NOTHING_AFTER

SERVER = Path(__file__).with_name("question_server.py")
BLUE = {"action": "accept", "content": {"value": "blue"}}
CAN_ANSWER: dict[str, Any] = {"elicitation": {"form": {}}}


def config(instances: str = "auto", **more: Any) -> dict[str, Any]:
    server = {"command": sys.executable, "args": [str(SERVER)], "instances": instances}
    return {"servers": {"shop": server}, **more}


def tokens(*names: str) -> list[dict[str, Any]]:
    return [{"id": name, "sha256": hashlib.sha256(f"{name}-token".encode()).hexdigest()} for name in names]


async def session(gate: Gateway, token: str | None = None) -> Caller:
    return await gate.caller("2025", capabilities=CAN_ANSWER, answers={"elicitation/create": BLUE}, token=token)


async def process_of(caller: Caller, **more: Any) -> str:
    return (await caller.call("shop__process", **more)).text


async def answer_by_operator(gate: Gateway) -> None:
    (row,) = (await gate.operator("GET", "/api/questions")).json()
    await gate.operator("POST", f"/api/questions/{row['request_id']}", BLUE)


async def ask_beside(gate: Gateway, staying: Caller, asking: Caller, **more: Any) -> tuple[Exchange, Exchange]:
    """One call that stays open and one that asks a question, both in progress when this returns."""
    stays = staying.begin_call("shop__stay", **more)
    asks = asking.begin_call("shop__ask", {"company": 1}, **more)
    await gate.advance(2)
    return stays, asks


async def separated(gate: Gateway) -> tuple[Caller, Caller]:
    """Two sessions that cannot be asked, and whose shared process has sent a question that could not be assigned to a call."""
    one, two = await gate.caller("2025"), await gate.caller("2025")
    stays, asks = await ask_beside(gate, one, two)
    await answer_by_operator(gate)
    assert ((await stays.done()).text, json.loads((await asks.done()).text)) == ("stayed", BLUE)
    return one, two


@virtual_time
async def test_new_session_gets_own_process_and_its_questions_reach_it() -> None:
    async with Gateway(config()) as gate:
        one, two = await separated(gate)
        three, four = await session(gate), await session(gate)
        pids = [await process_of(caller) for caller in (one, two, three, four)]
        assert pids[0] == pids[1]
        assert len(set(pids)) == 3
        stays, asks = three.begin_call("shop__stay"), three.begin_call("shop__ask", {"company": 1})
        assert json.loads((await asks.done()).text) == BLUE
        assert (await stays.done()).text == "stayed"
        assert [len(caller.asked) for caller in (one, two, three, four)] == [0, 0, 1, 0]


@pytest.mark.parametrize("instances", ["shared", "per_principal"])
@virtual_time
async def test_configured_sharing_is_kept(instances: str) -> None:
    async with Gateway(config(instances)) as gate:
        one, _ = await separated(gate)
        assert await process_of(await session(gate)) == await process_of(one)


@virtual_time
async def test_own_processes_are_remembered_over_a_restart_and_a_reload() -> None:
    async with Gateway(config()) as gate:
        await separated(gate)
        await gate.restart()
        one, two = await session(gate), await session(gate)
        assert await process_of(one) != await process_of(two)
        limits: dict[str, Any] = {"limits": {"instances_per_server": 10}}
        other = {"shop": {**config()["servers"]["shop"], "restart": {"limit": 7}}}
        await gate.reload({**config(**limits), "servers": other})
        assert await process_of(await session(gate)) not in (await process_of(one), await process_of(two))


@virtual_time
async def test_another_program_of_the_same_name_is_shared_again() -> None:
    async with Gateway(config()) as gate:
        await separated(gate)
        changed = {"shop": {**config()["servers"]["shop"], "args": [str(SERVER), "changed"]}}
        await gate.reload({"servers": changed})
        one, two = await gate.caller("2025"), await gate.caller("2025")
        assert await process_of(one) == await process_of(two)


@virtual_time
async def test_beyond_the_limit_processes_are_shared_again_and_kept() -> None:
    async with Gateway(config(limits={"instances_per_server": 2})) as gate:
        one, _ = await separated(gate)
        others = [await session(gate) for _ in range(4)]
        pids = [await process_of(caller) for caller in others]
        shared = await process_of(one)
        assert shared not in pids[:2]
        assert pids[0] != pids[1]
        assert pids[2:] == [shared, shared]
        await others[0].close()
        await gate.advance(1)
        assert await process_of(others[2]) == shared
        assert await process_of(await session(gate)) not in (shared, pids[1])


@virtual_time
async def test_process_ends_with_its_session_and_shared_one_stays() -> None:
    async with Gateway(config()) as gate:
        one, _ = await separated(gate)
        three = await session(gate)
        await process_of(three)
        assert running(gate) == 2
        await three.close()
        await gate.advance(5)
        assert running(gate) == 1
        assert await process_of(one)


@virtual_time
async def test_conversation_gets_own_process_when_the_shared_one_has_died() -> None:
    async with Gateway(config()) as gate:
        one, two = await separated(gate)
        await one.call("shop__die")
        await gate.advance(30)
        assert await process_of(one) != await process_of(two)


@virtual_time
async def test_stateless_conversation_keeps_its_process_until_it_is_idle() -> None:
    async with Gateway(config()) as gate:
        await separated(gate)
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        desk, lab = ({"_meta": {"taskgate/client": name}} for name in ("desk", "lab"))
        pids = [await process_of(caller, **named) for named in (desk, lab, desk, lab)]
        assert pids[:2] == pids[2:]
        assert len(set(pids)) == 2
        before = running(gate)
        for _ in range(4):
            await gate.advance(600)
            await process_of(caller, **desk)
        assert await process_of(caller, **desk) == pids[0]
        assert running(gate) == before - 1
        assert await process_of(caller, **lab) != pids[1]


@virtual_time
async def test_calls_without_a_conversation_have_a_process_each_while_they_are_open() -> None:
    """The first question of such a call shows that the next could be lost, so no second one is."""
    async with Gateway(config()) as gate:
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        first = await process_of(caller)
        asked = (await caller.call("shop__ask")).result
        await caller.call("shop__ask", requestState=asked["requestState"], inputResponses=matches_hint(asked))
        assert await process_of(caller) == first
        caller.begin_call("shop__stay")
        await gate.advance(1)
        asked = (await caller.call("shop__ask")).result
        reply = await caller.call("shop__ask", requestState=asked["requestState"], inputResponses=matches_hint(asked))
        assert json.loads(reply.text) == BLUE
        assert running(gate) == 2
        assert (await gate.operator("GET", "/api/questions")).json() == []
        await gate.advance(600)
        assert running(gate) == 1


@virtual_time
async def test_caller_without_a_conversation_follows_resources_of_the_process_that_it_calls() -> None:
    async with Gateway(config()) as gate:
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        asked = (await caller.call("shop__ask")).result
        await caller.call("shop__ask", requestState=asked["requestState"], inputResponses=matches_hint(asked))
        stream = caller.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["memo://one"]}})
        await gate.advance(2)
        await caller.call("shop__update")
        await gate.advance(2)
        received = [message.get("method") for message in stream.reply.messages]
        assert "notifications/resources/updated" in received
        assert running(gate) == 1


def matches_hint(asked: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(asked["inputRequests"], BLUE)


@virtual_time
async def test_calls_without_a_conversation_share_beyond_the_limit() -> None:
    async with Gateway(config(limits={"instances_per_server": 1})) as gate:
        await separated(gate)
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        for _ in range(4):
            caller.begin_call("shop__stay")
            await gate.advance(2)
        assert running(gate) == 2


@virtual_time
async def test_task_runs_in_the_process_of_its_conversation() -> None:
    async with Gateway(config(tokens=tokens("ann"))) as gate:
        one, two = await gate.caller("2025", token="ann-token"), await gate.caller("2025", token="ann-token")
        stays, asks = await ask_beside(gate, one, two)
        rows = (await gate.operator("GET", "/api/questions")).json()
        assert [row["caller"] for row in rows] == ["ann"]
        await gate.operator("POST", f"/api/questions/{rows[0]['request_id']}", BLUE)
        await stays.done()
        await asks.done()
        three = await session(gate, "ann-token")
        made = (await three.call("shop__process", task={"ttl": 600_000})).result["task"]
        text = (await three.request("tasks/result", {"taskId": made["taskId"]})).result["content"][0]["text"]
        assert text == await process_of(three)
        assert text != await process_of(one)


def running(gate: Gateway) -> int:
    """How many processes of the server run."""
    upstream = gate.life.app.gateway.console.servers.upstreams.value["shop"]
    return sum(1 for link in upstream._links.values() if link.alive)  # type: ignore[attr-defined, misc]


@virtual_time
async def test_first_questions_of_two_sessions_at_the_same_time_reach_their_own_clients() -> None:
    async with Gateway(config()) as gate:
        one, two = await session(gate), await session(gate)
        calls = [caller.begin_call("shop__ask", {}) for caller in (one, two)]
        assert [json.loads((await call.done()).text) for call in calls] == [BLUE, BLUE]
        assert [len(caller.asked) for caller in (one, two)] == [1, 1]
        assert await process_of(one) != await process_of(two)
        assert (await gate.operator("GET", "/api/questions")).json() == []


@virtual_time
async def test_sessions_that_cannot_be_asked_share_a_process_also_with_one_that_can() -> None:
    async with Gateway(config()) as gate:
        callers = [await gate.caller("2025"), await session(gate), await gate.caller("2025")]
        assert len({await process_of(caller) for caller in callers}) == 1


@virtual_time
async def test_named_stateless_clients_that_can_be_asked_have_a_process_each_until_they_are_idle() -> None:
    async with Gateway(config()) as gate:
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        names = [{"_meta": {"taskgate/client": name}} for name in ("one", "two", "three", "one")]
        pids = [await process_of(caller, **named) for named in names]
        assert len(set(pids)) == 3
        assert pids[0] == pids[3]
        await gate.advance(1900)
        assert await process_of(caller, _meta={"taskgate/client": "four"}) == pids[0]


@virtual_time
async def test_process_of_an_ended_session_serves_the_next_one_that_can_be_asked() -> None:
    async with Gateway(config()) as gate:
        one, two = await session(gate), await session(gate)
        pids = [await process_of(one), await process_of(two)]
        await one.close()
        await gate.advance(1)
        assert await process_of(await session(gate)) == pids[0]
        assert await process_of(two) == pids[1]


@virtual_time
async def test_server_that_asks_nothing_is_shared_until_its_first_question() -> None:
    async with Gateway(config()) as gate:
        for caller in [await gate.caller("2025") for _ in range(2)]:
            for _ in range(ASKS_NOTHING_AFTER // 2):
                shared = await process_of(caller)
        one, two = await session(gate), await session(gate)
        assert (await process_of(one), await process_of(two)) == (shared, shared)
        assert json.loads((await one.call("shop__ask", {})).text) == BLUE
        assert await process_of(two) == shared, "its process may hold its state"
        assert await process_of(await session(gate)) != shared
        # The one that came last is gone, the other one can still be asked there.
        await two.close()
        await gate.advance(1)
        assert await process_of(await session(gate)) != shared
        await one.close()
        await gate.advance(1)
        assert await process_of(await session(gate)) == shared


@virtual_time
async def test_one_conversation_alone_does_not_show_that_a_server_asks_nothing() -> None:
    async with Gateway(config()) as gate:
        one = await session(gate)
        for _ in range(ASKS_NOTHING_AFTER):
            shared = await process_of(one)
        assert await process_of(await session(gate)) != shared


@virtual_time
async def test_calls_that_are_open_do_not_show_that_a_server_asks_nothing() -> None:
    async with Gateway(config()) as gate:
        for caller in [await gate.caller("2025") for _ in range(2)]:
            await process_of(caller)
            for _ in range(ASKS_NOTHING_AFTER // 2):
                caller.begin_call("shop__stay")
        await gate.advance(1)
        one, two = await session(gate), await session(gate)
        assert await process_of(one) != await process_of(two)


@virtual_time
async def test_first_call_of_a_conversation_counts_once() -> None:
    async with Gateway(config()) as gate:
        for _ in range(ASKS_NOTHING_AFTER // 2):
            await process_of(await gate.caller("2025"))
        one, two = await session(gate), await session(gate)
        assert await process_of(one) != await process_of(two)


@virtual_time
async def test_sessions_that_can_be_asked_share_beyond_the_limit() -> None:
    async with Gateway(config(limits={"instances_per_server": 2})) as gate:
        pids = [await process_of(await session(gate)) for _ in range(5)]
        assert len(set(pids)) == 3
        assert pids[3:] == [pids[0], pids[0]]


@virtual_time
async def test_calls_without_a_conversation_share_a_process_with_one_that_can_be_asked() -> None:
    async with Gateway(config()) as gate:
        pids = [await process_of(await session(gate))]
        caller = await gate.caller("2026", capabilities=CAN_ANSWER)
        pids += [await process_of(caller), await process_of(caller)]
        assert len(set(pids)) == 1
