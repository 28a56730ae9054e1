"""Servers in the console: their state, and the actions reconnect, drain and enable with permission and audit row."""

from __future__ import annotations

from typing import Any

from tests.console.test_console_routes_and_streams import TOKENS, bearer
from tests.console.test_console_rules_and_usage import HOSTILE, bank, login, page
from tests.virtual_time import Gateway, virtual_time

from taskgate.store.operations.audit import AuditRows

CONFIG: dict[str, Any] = {**TOKENS, "profile": "production"}


async def tools(gate: Gateway) -> list[str]:
    caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
    return sorted(tool["name"] for tool in (await caller.request("tools/list")).result["tools"])


async def events(gate: Gateway) -> list[tuple[str, str, str]]:
    rows = await gate.life.app.gateway.console.calls.tasks.store.ask(AuditRows())
    return [
        (row.entry.event, row.entry.principal, row.entry.server)
        for row in rows
        if row.entry.event.startswith("server_")
    ]


@virtual_time
async def test_a_drained_server_is_in_no_scope_until_it_is_enabled() -> None:
    async with Gateway(CONFIG, {"bank": bank(), "other": bank()}) as gate:
        everything = await tools(gate)
        assert len(everything) > 3
        assert (await gate.operator("POST", "/api/v1/servers/bank/drain", {})).json()["done"] == "drained"
        assert [name for name in await tools(gate) if name.startswith("bank__")] == []
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        refused = await caller.call("bank__read", {})
        assert "no tool" in str(refused.json())
        await gate.reload(CONFIG | {"limits": {"sessions": 50}})
        assert [name for name in await tools(gate) if name.startswith("bank__")] == []
        shown = (await gate.operator("GET", "/api/v1/servers/bank")).json()
        assert (shown["name"], shown["drained"]) == ("bank", True)
        await gate.operator("POST", "/api/v1/servers/bank/enable", {})
        assert await tools(gate) == everything
        assert await events(gate) == [("server_drained", "operator", "bank"), ("server_enabled", "operator", "bank")]


@virtual_time
async def test_a_running_call_ends_while_its_server_is_drained() -> None:
    from tests.virtual_time import Call

    server = bank()

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(10)
        return "done"

    async with Gateway(CONFIG, {"bank": server}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        call = caller.begin_call("bank__slow", {})
        await gate.advance(1)
        await gate.operator("POST", "/api/v1/servers/bank/drain", {})
        assert "done" in (await call.done()).text


@virtual_time
async def test_reconnecting_contacts_a_server_before_its_backoff_ends() -> None:
    server = bank()
    async with Gateway(CONFIG, {"bank": server}) as gate:
        await tools(gate)
        await server.stop()
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        await caller.call("bank__read", {})
        await gate.advance(120)
        assert (await gate.operator("GET", "/api/v1/servers/bank")).json()["state"] == "reconnecting"
        failed = await gate.operator("POST", "/api/v1/servers/bank/reconnect", {})
        assert (failed.status, "bank" in failed.json()["error"]) == (502, True)
        await server.start()
        assert (await gate.operator("POST", "/api/v1/servers/bank/reconnect", {})).status == 200
        assert (await gate.operator("GET", "/api/v1/servers/bank")).json()["state"] == "connected"
        assert await events(gate) == [("server_reconnected", "operator", "bank")] * 2


@virtual_time
async def test_server_actions_require_permission_and_unknown_servers_are_not_found() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        for name, status in (("ann", 403), ("agent", 403)):
            reply = await gate.http("POST", "/api/v1/servers/bank/drain", {}, bearer(name)).done()
            assert reply.status == status
        assert (await gate.http("GET", "/api/v1/servers/bank", headers=bearer("ann")).done()).status == 200
        assert (await gate.operator("GET", "/api/v1/servers/gone")).status == 404
        assert (await gate.operator("POST", "/api/v1/servers/gone/drain", {})).status == 404
        assert (await gate.operator("POST", "/api/v1/servers/bank/drain", {"x": 1})).status == 400
        cookie = await login(gate)
        past = await gate.http("GET", "/servers/gone", headers={"cookie": cookie}).done()
        assert (past.status, past.headers["location"]) == (303, "/tasks?server=gone")
        assert (await page(gate, "/tasks?server=gone"))[0] == 200
        assert await events(gate) == []


@virtual_time
async def test_the_page_of_a_server_with_a_thousand_hostile_tools_is_small() -> None:
    from tests.virtual_time import Call

    server = bank()

    async def nothing(_call: Call) -> str:
        return ""

    for number in range(900):
        server.tool(f"t{number}-{'x' * 60}{HOSTILE}")(nothing)
    async with Gateway(CONFIG, {"bank": server}) as gate:
        await tools(gate)
        for path in ("/servers", "/servers/bank"):
            status, text = await page(gate, path)
            assert status == 200
            assert "<script>alert" not in text
            assert "\u202e" not in text
            assert len(text.encode()) <= 60_000
        assert 'id="more-tools"' in text


@virtual_time
async def test_a_form_drains_a_server_and_the_page_offers_to_enable_it() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        from tests.console.test_console_rules_and_usage import guard_of, login, posted

        cookie = await login(gate)
        guard = await guard_of(gate, "/servers/bank", cookie)
        reply = await posted(gate, "/servers/bank/drain", {"form_token": guard}, cookie)
        assert (reply.status, reply.headers["location"]) == (303, "/servers/bank?done=drain")
        shown = await gate.http("GET", "/servers/bank?done=drain", headers={"cookie": cookie}).done()
        assert "bank is drained." in shown.body.decode()
        assert 'action="/servers/bank/enable"' in shown.body.decode()
        again = await posted(gate, "/servers/bank/drain", {"form_token": "forged"}, cookie)
        assert again.status == 403
        odd = await posted(gate, "/servers/bank/explode", {"form_token": guard}, cookie)
        assert odd.status == 404
