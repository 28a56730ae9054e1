"""What callers are shown, kept small in search mode, and what is recorded about it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.store.operations.audit import AuditRows

SEARCH = {"scopes": {"default": {"default_servers": ["*"], "mode": "search"}}}
OWN = ["search_tools", "describe_tool", "call_tool"]


def server(*names: str) -> Upstream:
    made = Upstream("both")
    for name in names:

        @made.tool(name)
        async def tool(call: Call, seconds: float = 100 if name == "slow" else 0) -> str:
            await call.sleep(seconds)
            return "done"

    return made


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_search_lists_three_tools_to_ordinary_clients(generation: str) -> None:
    async with Gateway(SEARCH, {"notes": server("slow")}) as gate:
        caller = await gate.caller(generation)
        tools = await caller.tools()
        assert [tool["name"] for tool in tools] == OWN
        assert len(json.dumps(tools, separators=(",", ":"))) < 1_900


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_call_that_became_a_task_is_followed_through_call_tool(generation: str) -> None:
    """The notice names a tool that is not listed; a client that calls only what is listed reaches it all the same."""
    async with Gateway(SEARCH, {"notes": server("slow")}) as gate:
        caller = await gate.caller(generation)
        promoted = await caller.call("call_tool", {"name": "notes__slow"})
        task_id = re.findall(r"tg_\w{26}", promoted.text)[0]
        described = await caller.call("describe_tool", {"name": "get_task_result"})
        assert "task_id" in described.text
        await gate.advance(100)
        ended = await caller.call("call_tool", {"name": "get_task_result", "arguments": {"task_id": task_id}})
        assert "done" in ended.text


@virtual_time
async def test_a_scope_without_helpers_has_none_through_call_tool_either() -> None:
    scope = {"default_servers": ["*"], "mode": "search", "helper_tools": "never"}
    async with Gateway({"scopes": {"default": scope}}, {"notes": server("slow")}) as gate:
        caller = await gate.caller("2025")
        assert "no tool 'list_tasks'" in (await caller.call("call_tool", {"name": "list_tasks"})).text


async def logged_sets(gate: Gateway) -> list[dict[str, Any]]:
    rows = await gate.life.app.store.ask(AuditRows())
    return [json.loads(row.entry.reason) for row in rows if row.entry.event == "scope_tools"]


@virtual_time
async def test_the_tools_that_were_shown_and_the_reason_for_each_other_one_are_in_the_audit_log() -> None:
    config: dict[str, Any] = {
        "governance": {"rules": [{"match": "drop", "action": "deny"}]},
        "scopes": {"default": {"default_servers": ["*"], "tool_denylist": ["erase"]}},
    }
    async with Gateway(config, {"notes": server("read", "drop", "erase")}) as gate:
        for _ in range(3):
            caller = await gate.caller("2025")
            await caller.tools()
        await gate.advance(2)
        assert await logged_sets(gate) == [
            {
                "tools": {"notes": ["echo", "read"]},
                "excluded": {"notes:drop": "rule_denied", "notes:erase": "tool_denied"},
            }
        ]
        await gate.reload({**config, "governance": {"rules": []}})
        await caller.tools()
        await gate.advance(2)
        assert (await logged_sets(gate))[1]["tools"] == {"notes": ["echo", "read", "drop"]}


async def injected(gate: Gateway) -> dict[tuple[str, str], float]:
    text = (await gate.http("GET", "/metrics").done()).body.decode()
    found = re.findall(r'taskgate_mcp_injection_total\{server_id="(\w+)",status="(\w+)"\} ([\d.]+)', text)
    return {(name, status): float(count) for name, status, count in found}


@virtual_time
async def test_success_failure_and_denial_are_counted_at_the_same_point() -> None:
    config = {
        "servers": {"gone": {"url": "http://127.0.0.1:9/mcp"}},
        "scopes": {"default": {"default_servers": ["notes", "gone"]}},
    }
    async with Gateway(config, {"notes": server("read"), "mail": server("send")}) as gate:
        await (await gate.caller("2025")).tools()
        await gate.advance(1)
        counts = await injected(gate)
        assert set(counts) == {("notes", "success"), ("gone", "failed"), ("mail", "denied")}
        assert len(set(counts.values())) == 1, counts
