"""Approval is the last gate: invalid arguments never reach an approver, and a card states what was not checked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time

SCHEMA = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}


def shop(schema: dict[str, Any] | None = None) -> Upstream:
    server = Upstream("2025")

    async def wipe(call: Call) -> str:
        return "wiped"

    server.tool("wipe", wipe, inputSchema=schema if schema is not None else SCHEMA)
    return server


def held(validate: str, **more: Any) -> dict[str, Any]:
    return {"validate": validate, "governance": {"rules": [{"match": "wipe", "action": "approve"}], **more}}


async def approvals(gate: Gateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gate.operator("GET", "/api/v1/approvals")).json()
    return rows


@pytest.mark.parametrize("validate", ["warn", "enforce"])
@pytest.mark.parametrize("how", ["plain", "task", "2026", "tool"])
@virtual_time
async def test_invalid_call_is_rejected_before_an_approval_is_requested(validate: str, how: str) -> None:
    config = {**held(validate), "scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
    server = shop()
    async with Gateway(config, {"shop": server}) as gate:
        caller = await gate.caller("2026" if how == "2026" else "2025", capabilities=TASKS_EXTENSION)
        more = {"task": {"ttl": 600_000}} if how == "task" else {}
        if how == "tool":
            exchange = caller.begin_call("execute_tool", {"server": "shop", "tool": "wipe", "args": {"disk": 5}})
        else:
            exchange = caller.begin_call("shop__wipe", {"disk": 5}, **more)
        await gate.advance(1)
        assert exchange.is_done
        assert "disk" in exchange.reply.body.decode()
        if how != "tool":
            assert exchange.reply.error["data"]["error_type"] == "invalid_arguments"
            assert exchange.reply.error["data"]["executed"] == "no"
        assert await approvals(gate) == []
        assert (await gate.operator("GET", "/api/v1/tasks?state=all")).json()["tasks"] == []


@pytest.mark.parametrize("validate", ["off", "warn", "enforce"])
@pytest.mark.parametrize("schema", ["usable", "unusable"])
@virtual_time
async def test_card_states_whether_the_arguments_were_validated(validate: str, schema: str) -> None:
    unusable = {"type": "object", "properties": {"disk": {"$ref": "https://example.test/disk.json"}}}
    async with Gateway(held(validate), {"shop": shop(SCHEMA if schema == "usable" else unusable)}) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("shop__wipe", {"disk": "a"})
        await gate.advance(1)
        (row,) = await approvals(gate)
        shown = (await gate.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
        assert bool(shown["not_validated"]) is (validate == "off" or schema == "unusable")
        await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})
        assert (await call.done()).text == "wiped"


@virtual_time
async def test_unusable_schema_still_refuses_a_call_that_no_person_sees() -> None:
    unusable = {"type": "object", "properties": {"disk": {"$ref": "https://example.test/disk.json"}}}
    config = {"validate": "enforce", "profile": "development", "governance": held("enforce")["governance"]}
    async with Gateway(config, {"shop": shop(unusable)}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("shop__wipe", {"disk": "a"})
        assert "unusable_schema" in reply.body.decode()


@virtual_time
async def test_invalid_arguments_are_only_a_warning_for_a_call_without_approval() -> None:
    async with Gateway({"validate": "warn"}, {"shop": shop()}) as gate:
        assert (await (await gate.caller("2025")).call("shop__wipe", {"disk": 5})).text == "wiped"


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_first_progress_of_a_held_call_names_its_task_and_page_at_once(generation: str) -> None:
    async with Gateway(held("warn"), {"shop": shop()}) as gate:
        caller = await gate.caller(generation)
        params = {"name": "shop__wipe", "arguments": {"disk": "a"}, "_meta": {"progressToken": "t"}}
        exchange = caller.begin("tools/call", params)
        await gate.advance(0.1)
        (row,) = await approvals(gate)
        (first,) = exchange.reply.messages
        assert first["method"] == "notifications/progress"
        meta = first["params"]["_meta"]
        assert meta["taskgate/approval"] == {"id": row["id"], "url": row["url"]}
        assert meta["io.modelcontextprotocol/related-task"] == {"taskId": row["task_id"]}


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_progress_of_an_approved_call_no_longer_names_the_approval(generation: str) -> None:
    server, release = Upstream("2025"), asyncio.Event()

    async def wipe(call: Call) -> str:
        await release.wait()
        return "wiped"

    server.tool("wipe", wipe, inputSchema=SCHEMA)
    async with Gateway(held("warn"), {"shop": server}) as gate:
        caller = await gate.caller(generation)
        params = {"name": "shop__wipe", "arguments": {"disk": "a"}, "_meta": {"progressToken": "t"}}
        exchange = caller.begin("tools/call", params)
        await gate.advance(0.1)
        (row,) = await approvals(gate)
        assert (await gate.operator("POST", f"/api/v1/approvals/{row['id']}/approve", {})).json()["starts"] is True
        seen = len(exchange.reply.messages)
        await gate.advance(40)
        later = exchange.reply.messages[seen:]
        assert later
        assert not any("taskgate/approval" in message["params"].get("_meta", {}) for message in later)
        release.set()
        assert (await exchange.done()).text == "wiped"
