"""Before a script runs: signatures of tools, refused sources, and the plan."""

from __future__ import annotations

import ast
import asyncio
import json
import threading
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.gateway.scripts.script_sources import ScriptSources

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


@virtual_time
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
        content = json.loads(facts)
        assert (content["tools"], content["bytes"]) == (4, len(stubs.encode()))
        assert content["bytes_in_tools_list"] > content["bytes"]


@virtual_time
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


@virtual_time
async def test_invalid_source_is_refused_before_anything_runs() -> None:
    store = shop()
    async with Gateway(ON, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        result = (await caller.call("run_script", {"code": "await shop.buy()\ndel x"})).result
        assert result["isError"]
        problem = result["_meta"]["taskgate/error"]
        assert problem["error_type"] == "invalid_params"
        assert [fault["line"] for fault in problem["faults"]] == [2]
        assert store.count("buy") == 0


@virtual_time
async def test_plan_lists_tools_and_their_decisions_without_a_call() -> None:
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
        assert (plan["computed_names_on_lines"], plan["questions_on_lines"]) == ([3], [5])
        assert [(fault["line"], fault["problem"]) for fault in plan["faults"]] == [(4, "shop has no tool nope")]
        assert store.count("read") == store.count("buy") == 0


def large(count: int) -> Upstream:
    """A server with many tools, listed in no order of their names."""
    upstream = Upstream("2025")
    for n in range(count):
        number = (n * 7) % count

        async def answer(call: Call) -> str:
            return "done"

        upstream.tool(f"tool_{number:04}", description=f"Handles the invoices of region {number}. " + "x" * 200)(answer)
    return upstream


def functions(stubs: str) -> list[str]:
    [namespace] = ast.parse(stubs).body
    assert isinstance(namespace, ast.ClassDef)
    return [part.name for part in namespace.body if isinstance(part, ast.AsyncFunctionDef)]


@virtual_time
async def test_large_scope_is_described_in_a_stable_order_and_found_by_search() -> None:
    async with Gateway(ON, {"shop": large(400)}) as gate:
        caller = await gate.caller("2025")
        stubs, facts = texts((await caller.call("describe_tools", {})).result)
        content = json.loads(facts)
        assert len(stubs.encode()) == content["bytes"] <= 60_000
        assert functions(stubs) == sorted(functions(stubs))
        assert content["tools"] + content["omitted_count"] == 401, "with the tool that every server of the tests has"
        assert len(content["omitted"]) <= 200
        assert stubs == texts((await (await gate.caller("2026")).call("describe_tools", {})).result)[0]
        last = content["omitted"][-1].removeprefix("shop__")
        region = int(last.removeprefix("tool_"))
        found = texts((await caller.call("describe_tools", {"search": f"invoices region {region}"})).result)[0]
        assert last in functions(found)
        size = (await gate.operator("GET", "/api/v1/scopes/default/tools")).json()["script_stubs"]
        assert size["tools"] == 401
        assert size["tokens"] == size["bytes"] // 4 > content["bytes"] // 4


@virtual_time
async def test_tools_are_described_that_scripts_may_call() -> None:
    rules = [
        {"match": "buy", "from": "script", "action": "forward"},
        {"match": "buy", "action": "deny"},
        {"match": "read", "from": "script", "action": "deny"},
    ]
    async with Gateway({**ON, "governance": {"rules": rules}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        names = {tool["name"] for tool in await caller.tools()}
        assert "shop__buy" not in names
        assert "shop__read" in names
        stubs, facts = texts((await caller.call("describe_tools", {})).result)
        assert functions(stubs) == ["buy", "buy_now", "echo"]
        assert functions(texts((await caller.call("describe_tools", {"search": "buy"})).result)[0])[0] == "buy"
        size = (await gate.operator("GET", "/api/v1/scopes/default/tools")).json()["script_stubs"]
        assert (size["tools"], size["bytes"]) == (3, json.loads(facts)["bytes"])


@virtual_time
async def test_scope_without_scripts_has_no_size_of_stubs() -> None:
    async with Gateway({}, {"shop": shop()}) as gate:
        assert (await gate.operator("GET", "/api/v1/scopes/default/tools")).json()["script_stubs"] is None


@virtual_time
@pytest.mark.parametrize("more", [{}, {"dry_run": True}])
async def test_source_is_parsed_once_and_never_beside_another(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Also if it is held for approval and passes on large results, which depends on the source as well."""
    parsed: list[str] = []
    really = ast.parse

    def parse(code: str) -> ast.Module:
        parsed.append(code)
        return really(code)

    monkeypatch.setattr(ast, "parse", parse)
    held = {**ON, "governance": {"rules": [{"match": "taskgate__run_script", "action": "approve"}]}}
    async with Gateway(held, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = "x = await shop.echo(text='a' * 5000)\nx"
        params = {"name": "run_script", "arguments": {"code": code, **more}, "task": {"ttl": 3_600_000}}
        await caller.request("tools/call", params)
        for one in (await gate.operator("GET", "/api/approvals")).json():
            await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {})
        await gate.advance(10)
        assert parsed == [code]


async def test_sources_are_read_one_after_the_other_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that read sources at the same time would each delay the event loop."""
    threads: set[str] = set()
    really = ast.parse

    def parse(code: str) -> ast.Module:
        threads.add(threading.current_thread().name)
        return really(code)

    monkeypatch.setattr(ast, "parse", parse)
    sources = ScriptSources()
    found = await asyncio.gather(*(sources.read(f"x = {n}\nx", (), f"c{n}") for n in range(50)))
    sources.close()
    assert all(read.faults == () for read in found)
    assert len(threads) == 1
    assert threading.current_thread().name not in threads
