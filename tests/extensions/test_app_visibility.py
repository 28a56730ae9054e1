"""Tools that are for apps and not for the model: hidden where the gateway lists tools for the model, callable for apps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.extensions.app_server import AppServer
from tests.virtual_time import Gateway, virtual_time

BOTH = pytest.mark.parametrize("generation", ["2025", "2026"])
OLD_PRIVATE = {"openai/outputTemplate": "ui://board/main.html", "openai/visibility": "private"}


def board() -> AppServer:
    server = AppServer()
    server.app("show", "ui://board/main.html")
    server.app("refresh", "ui://board/main.html", visibility=["app"])
    server.app("reload", "ui://board/main.html", meta=OLD_PRIVATE)
    server.app("summary", "ui://board/main.html", visibility=["model"])
    return server


def scope(mode: str) -> dict[str, Any]:
    return {"scopes": {"default": {"default_servers": ["*"], "mode": mode}}}


@BOTH
@virtual_time
async def test_search_finds_no_tool_that_is_for_apps_only(generation: str) -> None:
    async with Gateway(scope("search"), {"board": board()}) as gate:
        caller = await gate.caller(generation)
        found = await caller.call_json("search_tools", query="show refresh reload summary", limit=20)
        assert {tool["name"] for tool in found["tools"]} == {"board__show", "board__summary"}
        for hidden in ("board__refresh", "board__reload"):
            for tool in ("describe_tool", "call_tool"):
                reply = (await caller.call(tool, {"name": hidden})).result
                assert reply["isError"] is True
                assert reply["_meta"]["taskgate/error"]["error_type"] == "unknown_tool"


@pytest.mark.parametrize("mode", ["facade", "both"])
@virtual_time
async def test_the_facade_shows_and_runs_no_tool_that_is_for_apps_only(mode: str) -> None:
    server = board()
    async with Gateway(scope(mode), {"board": server}) as gate:
        caller = await gate.caller("2025")
        listed = await caller.call_json("list_tools")
        assert {tool["name"] for tool in listed["tools"]} == {"echo", "show", "summary"}
        (row,) = (await caller.call_json("list_servers"))["servers"]
        assert row["tools"] == 3
        for hidden in ("refresh", "reload"):
            refused = (await caller.call("execute_tool", {"server": "board", "tool": hidden})).result
            assert refused["_meta"]["taskgate/error"]["error_type"] == "unknown_tool"
        assert server.count() == 0


@pytest.mark.parametrize("mode", ["direct", "both", "search", "facade"])
@BOTH
@virtual_time
async def test_apps_call_their_servers_tools_by_own_and_shown_names(mode: str, generation: str) -> None:
    """An app uses the names that its server gave the tools; it was written for use without a gateway."""
    server = board()
    async with Gateway(scope(mode), {"board": server, "other": AppServer()}) as gate:
        caller = await gate.caller(generation)
        await caller.tools()
        for name in ("board__refresh", "refresh", "reload"):
            assert "board ran" in (await caller.call(name)).text
        assert [ran.tool for ran in server.ran] == ["refresh", "refresh", "reload"]


@virtual_time
async def test_in_the_facade_only_tools_for_apps_are_called_directly() -> None:
    server = board()
    async with Gateway(scope("facade"), {"board": server}) as gate:
        caller = await gate.caller("2025")
        for name in ("board__show", "show", "summary", "board__echo"):
            assert (await caller.call(name)).error["data"]["error_type"] == "unknown_tool"
        assert server.count() == 0


@virtual_time
async def test_an_own_name_of_two_servers_with_apps_is_refused() -> None:
    one, two = board(), board()
    async with Gateway({}, {"one": one, "two": two}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        refused = (await caller.call("refresh")).error["data"]
        assert (refused["error_type"], refused["executed"]) == ("unknown_tool", "no")
        assert refused["candidates"] == ["one__refresh", "two__refresh"]
        assert "one ran refresh" in (await caller.call("one__refresh")).text


@virtual_time
async def test_own_names_are_for_servers_with_apps_and_tools_that_apps_may_call() -> None:
    plain, server = AppServer(), board()
    async with Gateway({}, {"plain": plain, "board": server}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        assert "board" in (await caller.call("show")).text
        assert (await caller.call("summary")).error["data"]["error_type"] == "unknown_tool"
        await caller.call("echo", {"from": "app"})
        assert (plain.count("echo"), server.count("echo")) == (0, 1)


@virtual_time
async def test_rules_hold_for_apps_too() -> None:
    rules = {"governance": {"rules": [{"match": "board:refresh", "action": "deny"}]}}
    server = board()
    async with Gateway(rules, {"board": server, "other": AppServer()}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        for name in ("refresh", "board__refresh"):
            assert json.dumps((await caller.call(name)).error["data"]["executed"]) == '"no"'
        assert server.count("refresh") == 0


@virtual_time
async def test_lists_pass_visibility_on_unchanged() -> None:
    async with Gateway({}, {"board": board()}) as gate:
        caller = await gate.caller("2025")
        shown = {tool["name"]: tool.get("_meta") for tool in await caller.tools()}
        assert shown["board__refresh"] == {"ui": {"resourceUri": "ui://board/main.html", "visibility": ["app"]}}
        assert shown["board__reload"] == OLD_PRIVATE


@BOTH
@virtual_time
async def test_a_script_calls_no_tool_that_is_for_apps_only(generation: str) -> None:
    """Neither by its attribute nor by its listed name. The model wrote the script."""
    server = board()
    scripts = {"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}
    async with Gateway(scripts, {"board": server}) as gate:
        caller = await gate.caller(generation)
        code = """
found = []
for name in ("board__refresh", "board__reload", "board__nothing"):
    try:
        found.append(await call_tool(name))
    except Exception as e:
        found.append([tool_error(e).type, tool_error(e).executed])
found
"""
        reply = await caller.call("run_script", {"code": code})
        assert reply.result["structuredContent"]["result"] == [["unknown_tool", "no"]] * 3
        for hidden in ("refresh", "reload"):
            refused = (await caller.call("run_script", {"code": f"await board.{hidden}()"})).result
            assert refused["isError"] is True
        assert server.count() == 0
        (shown,) = [await caller.call("run_script", {"code": "await board.summary()"})]
        assert not shown.result.get("isError")
        assert server.count("summary") == 1
