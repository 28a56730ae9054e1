"""MCP Apps of several servers: each interface is read from the server whose tool declares it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.extensions.app_server import APP_MIME, RENDERS_APPS, UI, AppServer
from tests.virtual_time import Gateway, Upstream, until, virtual_time

CARD = "ui://taskgate/task-card.html"
BOTH = pytest.mark.parametrize("generation", ["2025", "2026"])


async def interfaces(caller: Any) -> dict[str, str]:
    """The address of the interface of each tool of a server."""
    declared = {tool["name"]: tool.get("_meta", {}).get("ui", {}).get("resourceUri") for tool in await caller.tools()}
    return {name: uri for name, uri in declared.items() if uri not in (None, CARD)}


async def html(caller: Any, uri: str) -> str:
    (content,) = (await caller.request("resources/read", {"uri": uri})).result["contents"]
    assert content["uri"] == uri
    assert content["mimeType"] == APP_MIME
    return str(content["text"])


@BOTH
@virtual_time
async def test_unlisted_interfaces_of_two_servers_are_read_from_their_own(generation: str) -> None:
    maps, clock = AppServer(), AppServer()
    maps.app("show", "ui://maps/show.html", "<p>map</p>")
    clock.app("time", "ui://clock/time.html", "<p>clock</p>")
    async with Gateway({}, {"maps": maps, "clock": clock}) as gate:
        caller = await gate.caller(generation, capabilities=RENDERS_APPS)
        assert await interfaces(caller) == {
            "maps__show": "ui://maps/show.html",
            "clock__time": "ui://clock/time.html",
        }
        assert await html(caller, "ui://maps/show.html") == "<p>map</p>"
        assert await html(caller, "ui://clock/time.html") == "<p>clock</p>"
        assert maps.reads("ui://clock/time.html") == clock.reads("ui://maps/show.html") == 0


@pytest.mark.parametrize("key", ["ui/resourceUri", "openai/outputTemplate"])
@virtual_time
async def test_older_keys_declare_interfaces_too(key: str) -> None:
    maps, clock = AppServer(), AppServer()
    maps.app("show", "ui://maps/show.html", "<p>map</p>", meta={key: "ui://maps/show.html"})
    clock.app("time", "ui://clock/time.html")
    async with Gateway({}, {"maps": maps, "clock": clock}) as gate:
        caller = await gate.caller("2025")
        assert await html(caller, "ui://maps/show.html") == "<p>map</p>"


@pytest.mark.parametrize("listed", [False, True])
@BOTH
@virtual_time
async def test_colliding_addresses_are_rewritten_and_lead_to_their_servers(generation: str, listed: bool) -> None:
    one, two = AppServer(listed=listed), AppServer(listed=listed)
    for server, text in ((one, "one"), (two, "two")):
        meta = {"ui": {"resourceUri": "ui://app/main.html"}, "ui/resourceUri": "ui://app/main.html"}
        server.app("show", "ui://app/main.html", text, meta=meta)
    async with Gateway({}, {"one": one, "two": two}) as gate:
        caller = await gate.caller(generation)
        shown = await interfaces(caller)
        assert shown == {
            "one__show": "ui://one.taskgate/app/main.html",
            "two__show": "ui://two.taskgate/app/main.html",
        }
        tools = {tool["name"]: tool for tool in await caller.tools()}
        assert tools["one__show"]["_meta"]["ui/resourceUri"] == shown["one__show"]
        assert await html(caller, shown["one__show"]) == "one"
        assert await html(caller, shown["two__show"]) == "two"
        resources = {r["uri"] for r in (await caller.request("resources/list")).result["resources"]}
        assert (set(shown.values()) <= resources) is listed
        assert "ui://app/main.html" not in resources
        plain = await caller.request("resources/read", {"uri": "ui://app/main.html"})
        assert plain.error["data"]["error_type"] == "unknown_resource"


@virtual_time
async def test_an_address_that_was_handed_out_stays_with_its_server() -> None:
    """A client may hold it: a server that comes later with the same address must not take its place."""
    one, two = AppServer(), AppServer()
    one.app("show", "ui://app/main.html", "one")
    async with Gateway({}, {"one": one, "two": two}) as gate:
        caller = await gate.caller("2025")
        assert await interfaces(caller) == {"one__show": "ui://app/main.html"}
        two.app("show", "ui://app/main.html", "two")
        two.notify("notifications/tools/list_changed")

        async def both() -> dict[str, str]:
            return await interfaces(caller)

        await gate.advance(1)
        assert await both() == {"one__show": "ui://app/main.html", "two__show": "ui://two.taskgate/app/main.html"}
        assert await html(caller, "ui://app/main.html") == "one"
        one.withdraw("show")
        one.notify("notifications/tools/list_changed")
        await gate.advance(1)
        assert await both() == {"two__show": "ui://two.taskgate/app/main.html"}
        assert await html(caller, "ui://app/main.html") == "one"
        assert await html(caller, "ui://one.taskgate/app/main.html") == "one"


@virtual_time
async def test_no_server_can_take_another_servers_or_the_gateways_address() -> None:
    good, evil = AppServer(), AppServer(listed=True)
    good.app("show", "ui://app/main.html", "good")
    evil.app("show", "ui://app/main.html", "evil")
    evil.app("fake", "ui://good.taskgate/app/main.html", "evil")
    evil.app("card", "ui://taskgate/task-card.html", "evil")
    async with Gateway({}, {"good": good, "evil": evil}) as gate:
        caller = await gate.caller("2025")
        shown = await interfaces(caller)
        assert await html(caller, shown["good__show"]) == "good"
        assert shown["evil__fake"] == "ui://evil.taskgate/good.taskgate/app/main.html"
        assert await html(caller, shown["evil__fake"]) == "evil"
        assert shown["evil__card"] == "ui://evil.taskgate/taskgate/task-card.html"


@BOTH
@virtual_time
async def test_a_rewritten_resource_is_subscribed_by_its_shown_address(generation: str) -> None:
    one, two = AppServer(listed=True), AppServer(listed=True)
    one.app("show", "ui://app/main.html")
    two.app("show", "ui://app/main.html")
    async with Gateway({}, {"one": one, "two": two}) as gate:
        caller = await gate.caller(generation)
        uri = (await interfaces(caller))["two__show"]
        if generation == "2025":
            stream = await caller.listen()
            await caller.request("resources/subscribe", {"uri": uri})
        else:
            stream = await caller.listen(resourceSubscriptions=[uri])
        for server in (one, two):
            server.notify("notifications/resources/updated", {"uri": "ui://app/main.html"})

        def updated() -> list[str]:
            news = [m for m in stream.reply.messages if m.get("method") == "notifications/resources/updated"]
            return [m["params"]["uri"] for m in news]

        await until(lambda: bool(updated()), "the update")
        await gate.advance(1)
        assert set(updated()) == {uri}


@virtual_time
async def test_rules_about_resources_hold_for_interfaces() -> None:
    maps, clock = AppServer(), AppServer()
    maps.app("show", "ui://maps/show.html")
    clock.app("time", "ui://clock/time.html")
    rules = {"governance": {"rules": [{"match": "resource:ui://maps/*", "action": "deny"}]}}
    async with Gateway(rules, {"maps": maps, "clock": clock}) as gate:
        caller = await gate.caller("2025")
        assert await interfaces(caller) == {"clock__time": "ui://clock/time.html"}
        await gate.advance(1)
        before = maps.reads("ui://maps/show.html")
        refused = await caller.request("resources/read", {"uri": "ui://maps/show.html"})
        assert refused.error["data"]["error_type"] == "unknown_resource"
        assert maps.reads("ui://maps/show.html") == before


@virtual_time
async def test_a_scope_sees_the_interfaces_of_its_servers_only() -> None:
    one, two = AppServer(), AppServer()
    one.app("show", "ui://app/main.html", "one")
    two.app("show", "ui://app/main.html", "two")
    scopes = {"default": {"default_servers": ["one"]}, "other": {"default_servers": ["two"]}}
    async with Gateway({"scopes": scopes}, {"one": one, "two": two}) as gate:
        first, second = await gate.caller("2025"), await gate.caller("2025", scope="other")
        assert await interfaces(first) == {"one__show": "ui://app/main.html"}
        assert await html(first, "ui://app/main.html") == "one"
        assert await html(second, "ui://app/main.html") == "two"
        outside = await first.request("resources/read", {"uri": "ui://two.taskgate/app/main.html"})
        assert outside.error["data"]["error_type"] == "unknown_resource"


@BOTH
@virtual_time
async def test_the_extension_is_declared_to_callers_and_to_servers(generation: str) -> None:
    maps = AppServer(generation)
    maps.app("show", "ui://maps/show.html")
    async with Gateway({}, {"maps": maps, "plain": Upstream("2025")}) as gate:
        caller = await gate.caller(generation, capabilities=RENDERS_APPS)
        if generation == "2025":
            described = await caller.request(
                "initialize",
                {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
                {"mcp-session-id": ""},
            )
        else:
            described = await caller.request("server/discover")
        assert described.result["capabilities"]["extensions"][UI] == {}
        await caller.call("maps__show")
        declared = [
            (m["params"].get("capabilities") or m["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"])
            for m in maps.received
            if m.get("method") == "initialize"
            or (generation == "2026" and m.get("method") in ("tools/list", "tools/call"))
        ]
        assert len(declared) >= 2
        assert all(APP_MIME in each["extensions"][UI]["mimeTypes"] for each in declared)
