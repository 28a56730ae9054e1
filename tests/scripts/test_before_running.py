"""Before a script runs: signatures of tools, refused sources, and the plan."""

from __future__ import annotations

import ast
import json
from typing import Any

from tests.seam import Call, Gateway, Upstream, seam

ON = {"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}
GOVERNED = {**ON, "governance": {"rules": [{"match": "buy", "action": "approve"}]}}


def shop() -> Upstream:
    upstream = Upstream("2025")

    @upstream.tool("read")
    async def read(call: Call) -> str:
        return "read"

    @upstream.tool("buy-now")
    async def buy_now(call: Call) -> str:
        return "bought"

    @upstream.tool("buy")
    async def buy(call: Call) -> str:
        return "bought"

    return upstream


def texts(result: dict[str, Any]) -> list[str]:
    return [block["text"] for block in result["content"]]


@seam
async def test_tools_are_described_as_python() -> None:
    async with Gateway(ON, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        stubs, facts = texts((await caller.call("describe_tools", {})).result)
        [namespace] = ast.parse(stubs).body
        assert isinstance(namespace, ast.ClassDef)
        assert namespace.name == "shop"
        assert [part.name for part in namespace.body if isinstance(part, ast.AsyncFunctionDef)] == [
            "buy",
            "buy_now",
            "echo",
            "read",
        ]
        told = json.loads(facts)
        assert (told["tools"], told["bytes"]) == (4, len(stubs.encode()))
        assert told["bytes_in_tools_list"] > told["bytes"]


@seam
async def test_some_tools_are_described_by_name_or_search() -> None:
    async with Gateway(ON, {"shop": shop()}) as gate:
        caller = await gate.caller("2026")
        for given, count in (
            ({"names": ["shop.read"]}, 1),
            ({"names": ["shop__buy-now", "shop.buy_now"]}, 1),
            ({"names": ["shop"]}, 4),
            ({"search": "read"}, 1),
            ({"names": ["nothing"]}, 0),
        ):
            _, facts = texts((await caller.call("describe_tools", given)).result)
            assert json.loads(facts)["tools"] == count, given


@seam
async def test_source_that_cannot_run_is_refused_before_anything_is_done() -> None:
    store = shop()
    async with Gateway(ON, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        result = (await caller.call("run_script", {"code": "await shop.buy()\ndel x"})).result
        assert result["isError"]
        problem = result["_meta"]["taskgate/error"]
        assert problem["error_type"] == "invalid_params"
        assert [fault["line"] for fault in problem["faults"]] == [2]
        assert store.count("buy") == 0


@seam
async def test_plan_lists_tools_and_what_they_meet_without_a_call() -> None:
    store = shop()
    code = "await shop.read()\nawait shop.buy()\nawait call_tool(name)\nawait shop.nope()\nawait ask('x')"
    async with Gateway(GOVERNED, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        [plan] = [
            json.loads(text)
            for text in texts((await caller.call("run_script", {"code": code, "dry_run": True})).result)
        ]
        assert [(tool["tool"].rpartition("__")[2], tool["lines"], tool["meets"]) for tool in plan["tools"]] == [
            ("read", [1], "forward"),
            ("buy", [2], "approval"),
        ]
        assert [tool["tool"] for tool in plan["unknown_tools"]] == ["shop.nope"]
        assert (plan["computed_names_on_lines"], plan["questions_on_lines"], plan["faults"]) == ([3], [5], [])
        assert store.count("read") == store.count("buy") == 0
