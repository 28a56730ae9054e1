"""Calls on record and usage, as the store has them after real calls through the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.usage import UsageRow, summed
from taskgate.gateway.governance import round_of_calls
from taskgate.store.operations.usage import RecordedCalls, UsageBetween

RULES = [{"match": "drop", "action": "deny"}, {"match": "pay", "action": "approve"}]


def notes() -> Upstream:
    server = Upstream("2025")

    @server.tool("echo")
    async def echo(call: Call) -> str:
        await call.sleep(2)
        return "hi"

    @server.tool("drop")
    async def drop(_call: Call) -> str:
        return "gone"

    @server.tool("pay")
    async def pay(_call: Call) -> str:
        return "paid"

    @server.tool("pings")
    async def pings(_call: Call) -> str:
        return "pong"

    @server.tool("waits")
    async def waits(_call: Call) -> str:
        return "done"

    return server


async def recorded(gate: Gateway) -> list[RecordedCall]:
    await gate.advance(2)
    return list((await gate.life.app.gateway.console.calls.tasks.store.ask(RecordedCalls(0))).calls)


def config(**record: Any) -> dict[str, Any]:
    return {"governance": {"rules": RULES, "record": record}, "profile": "production"}


@virtual_time
async def test_nothing_is_recorded_unless_configured() -> None:
    async with Gateway({"governance": {"rules": RULES}}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__echo", {"a": 1})
        await caller.call("notes__drop", {"a": 1})
        assert await recorded(gate) == []


@virtual_time
async def test_plain_denied_and_held_calls_are_recorded_with_redacted_arguments() -> None:
    async with Gateway(config(redact=["token"]), {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__echo", {"a": 1, "token": "s3cret"})
        await caller.call("notes__drop", {"b": 2})
        caller.begin_call("notes__pay", {"c": 3})
        found = await recorded(gate)
        shown = {call.name: (call.before.value, call.arguments, call.hidden) for call in found}
        assert shown == {
            "echo": ("forward", '{"a":1,"token":"[hidden]"}', ("token",)),
            "drop": ("deny", '{"b":2}', ()),
            "pay": ("approve", '{"c":3}', ()),
        }
        assert all(call.scope == "default" and call.at_ms and call.listed for call in found)


@virtual_time
async def test_a_call_that_becomes_a_task_is_recorded_once_from_the_start_or_later() -> None:
    async with Gateway(config() | {"tasks": {"promote_after_ms": 1000}}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        await caller.request("tools/call", {"name": "notes__echo", "arguments": {"a": 1}, "task": {}})
        await gate.advance(5)
        assert [(call.name, call.arguments) for call in await recorded(gate)] == [("echo", '{"a":1}')]
        await caller.call("notes__echo", {"b": 2})
        await gate.advance(5)
        assert [call.arguments for call in await recorded(gate)] == ['{"a":1}', '{"b":2}']
        await caller.request("tools/call", {"name": "notes__pay", "arguments": {"c": 3}, "task": {}})
        await gate.advance(5)
        assert [call.arguments for call in await recorded(gate)] == ['{"a":1}', '{"b":2}', '{"c":3}']


@virtual_time
async def test_calls_that_are_not_sampled_are_counted() -> None:
    async with Gateway(config(sample=0.25), {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        for _ in range(8):
            await caller.call("notes__drop", {})
        await gate.advance(70)
        found = await recorded(gate)
        assert sum(call.count for call in found if call.server) == 2
        assert sum(call.count for call in found if not call.server) == 6


@virtual_time
async def test_recorded_calls_are_deleted_after_their_retention_or_when_disabled() -> None:
    async with Gateway(config(keep="1h"), {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__drop", {})
        assert len(await recorded(gate)) == 1
        await gate.advance(3_700)
        assert await recorded(gate) == []
        await (await gate.caller("2025")).call("notes__drop", {})
        assert len(await recorded(gate)) == 1
        await gate.reload({"governance": {"rules": RULES}})
        await gate.advance(120)
        assert await recorded(gate) == []


async def used(gate: Gateway) -> list[UsageRow]:
    await gate.advance(12)
    return summed(
        await gate.life.app.gateway.console.calls.tasks.store.ask(UsageBetween("2000-01-01", "2999-01-01")),
        ("server", "tool"),
    )


@virtual_time
async def test_calls_and_tasks_are_counted_with_seconds_and_bytes() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__echo", {"a": "x" * 100})
        await caller.call("notes__echo", {})
        (echo,) = await used(gate)
        assert (echo.server, echo.tool, echo.calls, echo.errors) == ("notes", "echo", 2, 0)
        assert 4 <= round(echo.seconds, 6) < 4.5
        assert echo.bytes_in > 100
        assert echo.bytes_out > 10
        await caller.request("tools/call", {"name": "notes__echo", "arguments": {}, "task": {}})
        (echo,) = await used(gate)
        assert echo.calls == 3
        assert 6 <= round(echo.seconds, 6) < 7
        metrics = (await gate.http("GET", "/metrics").done()).body.decode()
        assert 'taskgate_usage_calls_total{server="notes"} 3.0' in metrics


@virtual_time
async def test_errors_of_tools_are_counted_among_the_calls() -> None:
    server = notes()

    @server.tool("fails")
    async def fails(_call: Call) -> Any:
        return {"content": [], "isError": True}

    async with Gateway({}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        for _ in range(2):
            await caller.call("notes__fails", {})
        await caller.call("notes__echo", {})
        assert [(row.tool, row.calls, row.errors) for row in await used(gate)] == [("fails", 2, 2), ("echo", 1, 0)]


@virtual_time
async def test_calls_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_of_calls, "MAX_TALLIES", 1)  # in a round, and these calls are in one
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        for name in ("pings", "drop", "waits", "drop"):
            await caller.call(f"notes__{name}", {})
        rows = [(row.server, row.tool, row.calls) for row in await used(gate)]
        assert rows == [("(others)", "(others)", 3), ("notes", "pings", 1)]


@virtual_time
async def test_usage_survives_a_restart() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        await (await gate.caller("2025")).call("notes__echo", {})
        await gate.restart()
        await (await gate.caller("2025")).call("notes__echo", {})
        assert [(row.tool, row.calls) for row in await used(gate)] == [("echo", 2)]


def test_recorded_calls_are_json() -> None:
    import msgspec

    assert json.loads(msgspec.json.encode(RecordedCall(5, count=2))) == {"at_ms": 5, "count": 2}
