"""A call of a server that could never be reached is recorded in history and in the audit log."""

from __future__ import annotations

import traceback
from collections import Counter

import pytest
from tests.virtual_time import Gateway, Upstream, virtual_time

LOST = {"lost": {"url": "http://127.0.0.1:9/mcp"}}
FACADE = {"default": {"default_servers": ["*"], "mode": "facade"}}


async def recorded(gate: Gateway) -> dict[tuple[str, str, str], int]:
    """The failed calls of history, by server, tool and whether they were executed."""
    await gate.advance(90)
    rows = (await gate.operator("GET", "/api/v1/history?outcome=failed")).json()["rows"]
    found = Counter[tuple[str, str, str]]()
    for row in rows:
        found[row["server"], row["tool"], row["executed"]] += row["count"]
    return dict(found)


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_equal_calls_are_recorded(generation: str) -> None:
    async with Gateway({"servers": LOST}, {"s": Upstream("2025")}) as gate:
        caller = await gate.caller(generation)
        replies = [await caller.call("lost__report", {}) for _ in range(3)]
        assert all("not executed" in str(reply.last) for reply in replies)
        assert await recorded(gate) == {("lost", "report", "no"): 3}
        audit = (await gate.operator("GET", "/api/v1/audit?server=lost")).json()["rows"]
        assert [(line["name"], line["outcome"]) for line in audit if line["event"] == "call"] == [
            ("report", "error")
        ] * 3


@virtual_time
async def test_calls_of_a_facade_are_recorded_and_other_requests_are_not() -> None:
    async with Gateway({"servers": LOST, "scopes": FACADE}, {"s": Upstream("2025")}) as gate:
        caller = await gate.caller("2025")
        listed = (await caller.call("list_tools", {"server": "lost"})).text
        assert "The server lost" in listed
        assert "executed" not in listed
        arguments = {"server": "lost", "tool": "report", "args": {"tool": "other"}}
        assert "not executed" in (await caller.call("execute_tool", arguments)).text
        assert await recorded(gate) == {("lost", "report", "no"): 1}


@virtual_time
async def test_each_call_gets_an_error_of_its_own() -> None:
    """A shared exception would keep the frames of every call that raised it, with their arguments."""
    async with Gateway({"servers": LOST}, {"s": Upstream("2025")}) as gate:
        caller = await gate.caller("2025")
        for _ in range(20):
            await caller.call("lost__report", {})
        failure = gate.life.app.gateway.console.servers.catalogs.failure("lost")
        assert failure is not None
        assert "_find_after_listing" not in [frame.name for frame in traceback.extract_tb(failure.__traceback__)]


@virtual_time
async def test_a_lost_server_is_described_without_a_call() -> None:
    async with Gateway({"servers": LOST}, {"s": Upstream("2025")}) as gate:
        await gate.advance(5)
        (shown,) = [each for each in (await gate.operator("GET", "/api/v1/servers")).json() if each["name"] == "lost"]
        logged = [str(line.facts) for line in gate.log if line.event == "server not listed"]
        assert logged
        assert "The server lost" in shown["last_error"]
        assert "executed" not in str([shown["last_error"], *logged])
