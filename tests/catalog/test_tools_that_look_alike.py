"""Two tools of one server whose names look alike are both served, with the strictest decision of either, and are marked."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.catalog.test_omitted_tools import PLAIN, calls_of, definition, server
from tests.virtual_time import Call, Gateway, virtual_time

WIDE = "ｒｅａｄ"


async def listed_names(caller: Any) -> set[str]:
    found = {tool["name"] for tool in await caller.tools()}
    return {name for name in found if name.casefold().startswith(("read", "a__", "ｒ", "other"))}


def rules(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**PLAIN, "governance": {"rules": list(rows)}, **more}


async def fetched_again(gate: Gateway, caller: Any) -> None:
    """Let the lists exceed their age, and be fetched in the background."""
    await gate.advance(30)
    await caller.tools()
    await gate.advance(30)


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("other", ["READ", WIDE])
async def test_both_are_served(other: str, generation: str) -> None:
    upstream = server(definition("read"), definition(other), definition("other"), generation=generation)
    async with Gateway(PLAIN, {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        assert await listed_names(caller) == {"read", other, "other"}
        for name in ("read", other):
            assert (await caller.call(name)).text == f"ran {name}"
            assert calls_of(upstream, name) == 1


@virtual_time
async def test_both_are_served_with_prefixes() -> None:
    upstream = server(definition("read"), definition("READ"))
    async with Gateway({}, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert await listed_names(caller) == {"a__read", "a__READ"}
        assert (await caller.call("a__READ")).text == "ran READ"


@virtual_time
async def test_tools_of_different_servers_that_look_alike_are_not_served() -> None:
    """The control: one server could otherwise take the calls of the other."""
    servers = {"a": server(definition("read")), "b": server(definition("READ"), definition("other"))}
    async with Gateway(PLAIN, servers) as gate:
        assert await listed_names(await gate.caller("2025")) == {"other"}


@virtual_time
@pytest.mark.parametrize("denied", ["read", "READ"])
async def test_rule_that_denies_one_denies_the_other(denied: str) -> None:
    upstream = server(definition("read"), definition("READ"), definition("other"))
    async with Gateway(rules({"match": denied, "action": "deny"}), {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert await listed_names(caller) == {"other"}
        for name in ("read", "READ"):
            assert (await caller.call(name)).error["data"]["error_type"] in ("policy_denied", "unknown_tool")
            assert calls_of(upstream, name) == 0
        assert (await caller.call("other")).text == "ran other"


@virtual_time
@pytest.mark.parametrize("approved", ["read", "READ"])
async def test_rule_that_holds_one_holds_the_other_and_the_card_names_both(approved: str) -> None:
    upstream = server(definition("read"), definition("READ"), definition("other"))
    async with Gateway(rules({"match": approved, "action": "approve"}), {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        for name, another in (("read", "READ"), ("READ", "read")):
            waiting = caller.begin_call(name)
            await gate.advance(50)
            assert waiting.reply is not None
            rows = (await gate.operator("GET", "/api/approvals")).json()
            (row,) = [each for each in rows if each["tool"] == name]
            shown = (await gate.operator("GET", f"/api/approvals/{row['id']}")).json()
            assert any(another in mark for mark in shown["deceptive"])
            assert calls_of(upstream, name) == 0
        assert (await caller.call("other")).text == "ran other"


@virtual_time
@pytest.mark.parametrize("mode", ["enforce", "warn"])
async def test_look_alike_that_appears_later_is_a_changed_definition(mode: str) -> None:
    definitions = [definition("read"), definition("other")]
    upstream = server()

    async def listed(call: Call) -> dict[str, Any]:
        call.reply.send(
            200,
            f'{{"jsonrpc":"2.0","id":{call.message["id"]},"result":{{"tools":[{",".join(definitions)}]}}}}'.encode(),
            {"content-type": "application/json"},
        )
        return {}

    upstream.on("tools/list", listed)
    config = {**rules(pins=mode), "limits": {"list_max_age": "5s"}}
    async with Gateway(config, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        assert await listed_names(caller) == {"read", "other"}
        definitions.append(definition("READ"))
        await fetched_again(gate, caller)
        (row,) = (await gate.operator("GET", "/api/pins")).json()
        assert (row["tool"], row["quarantined"]) == ("read", mode == "enforce")
        assert "READ" in str(row["changes"])
        seen = {"other"} if mode == "enforce" else {"read", "READ", "other"}
        assert await listed_names(caller) == seen
        body = {"server": "a", "tool": "read", "digest": row["digest"]}
        await gate.operator("POST", "/api/pins/accept", body)
        assert await listed_names(caller) == {"read", "READ", "other"}
        # That it is gone, or back again, is no change of what was accepted.
        removed = definitions.pop()
        await fetched_again(gate, caller)
        assert await listed_names(caller) == {"read", "other"}
        assert (await gate.operator("GET", "/api/pins")).json() == []
        definitions.append(removed)
        await fetched_again(gate, caller)
        assert await listed_names(caller) == {"read", "READ", "other"}
        assert (await gate.operator("GET", "/api/pins")).json() == []


@virtual_time
@pytest.mark.parametrize("denied", ["READ", "other"])
async def test_held_call_is_not_sent_after_a_rule_denies_what_it_looks_like(denied: str) -> None:
    """The control denies a tool that does not look like it, and the call is sent."""
    upstream = server(definition("read"), definition("READ"), definition("other"))
    held = {"match": "read", "action": "approve"}
    async with Gateway(rules(held), {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        waiting = caller.begin_call("read")
        await gate.advance(50)
        task_id = re.findall(r"tg_\w+", waiting.reply.text)[0]
        (row,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.reload(rules({"match": denied, "action": "deny"}, held))
        await gate.operator("POST", f"/api/approvals/{row['id']}/approve", {"reason": "agreed"})
        await caller.request("tasks/get", {"taskId": task_id})
        await gate.advance(30)
        assert calls_of(upstream, "read") == (0 if denied == "READ" else 1)
