"""A scope in search mode: three tools replace the catalog, and all gates apply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, Caller, every_third
from tests.scopes.scope_client import GENERATIONS, STATEFUL, ScopeClient, ScopeReply, opened, scope, server

OWN = ["search_tools", "describe_tool", "call_tool"]
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {
        "git": server("git", "create_branch", "list_commits", "merge_branch", "slow"),
        "mail": server("mail", "send_letter", "drop_letter", "list_letters"),
        "bank": server("bank", "pay_invoice"),
        "thief": server("thief", "call_tool", "search_tools"),
    },
    "governance": {"rules": [{"match": "drop_*", "action": "deny"}]},
    "scopes": {
        "find": scope("git", "mail", mode="search", tool_denylist=["merge_*"]),
        "plain": scope("git", "thief", mode="search", names="plain"),
    },
}
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


async def found(client: ScopeClient, query: str, **more: Any) -> list[str]:
    reply = await client.call("search_tools", query=query, **more)
    return [tool["name"] for tool in json.loads(reply.text)["tools"]]


def refused(text: ScopeReply) -> str:
    assert text.result["isError"] is True
    assert text.result["_meta"]["taskgate/error"]["error_type"] == "unknown_tool"
    assert text.result["_meta"]["taskgate/error"]["executed"] == "no"
    return text.text


@pytest.mark.parametrize("version", GENERATIONS)
async def test_three_tools_are_listed_and_lead_to_all_others(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/find", version) as caller:
        assert await caller.tools() == OWN
        assert (await found(caller, "create a branch"))[0] == "git__create_branch"
        described = json.loads((await caller.call("describe_tool", name="git__create_branch")).text)
        assert described["name"] == "git__create_branch"
        assert described["inputSchema"]["properties"]["path"] == {"type": "string", "description": "Where."}
        called = await caller.call("call_tool", name="git__create_branch", arguments={"path": "/x"})
        assert called.text == "git:create_branch"


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("send lettre", "mail__send_letter"),
        ("crate brnach", "git__create_branch"),
        ("listCommits", "git__list_commits"),
        ("SEND_LETTER", "mail__send_letter"),
    ],
)
async def test_searches_tolerate_typos_and_spellings(gateway: Gateway, version: str, query: str, first: str) -> None:
    async with opened(f"{gateway.url}/find", version) as caller:
        assert (await found(caller, query))[0] == first


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize(
    "hidden", ["bank__pay_invoice", "git__merge_branch", "mail__drop_letter", "mcp.bank.pay_invoice"]
)
async def test_hidden_tools_are_neither_found_nor_described_nor_called(
    gateway: Gateway, version: str, hidden: str
) -> None:
    async with opened(f"{gateway.url}/find", version) as caller:
        everything = await found(caller, hidden.replace("__", " "), limit=100)
        assert hidden not in everything
        texts = {refused(await caller.call(tool, name=hidden)) for tool in ("describe_tool", "call_tool")}
        direct = (await caller.call(hidden)).error["data"]
    assert len(texts) == 1
    assert hidden not in texts.pop().partition(" here.")[2]
    assert direct["error_type"] in ("unknown_tool", "policy_denied")
    assert direct["executed"] == "no"


@pytest.mark.parametrize("version", GENERATIONS)
async def test_an_unknown_name_error_suggests_the_nearest_one(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/find", version) as caller:
        assert "'git__create_branch'" in refused(await caller.call("call_tool", name="git__creat_branch"))


async def test_a_search_can_be_limited(gateway: Gateway) -> None:
    async with opened(f"{gateway.url}/find", STATEFUL) as caller:
        assert len(await found(caller, "list", limit=1)) == 1
        assert await found(caller, "list", server="mail") == ["mail__list_letters"]
        assert await found(caller, "zzzzqqq") == []
        assert (await caller.call("search_tools", query=7)).result["isError"] is True
        assert (await caller.call("search_tools", query="x", limit=1000)).result["isError"] is True
        assert (await caller.call("search_tools", query="x" * 9000)).result["isError"] is False


async def test_a_server_cannot_take_the_place_of_the_three_tools(gateway: Gateway) -> None:
    async with opened(f"{gateway.url}/plain", STATEFUL) as caller:
        assert await caller.tools() == OWN
        assert (await caller.call("call_tool", name="create_branch")).text == "git:create_branch"
        assert "There is no tool" in refused(await caller.call("call_tool", name="call_tool"))


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_session_that_narrows_searches_less(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/find?servers=mail", version) as caller:
        assert await found(caller, "create branch") == []
        refused(await caller.call("call_tool", name="git__create_branch"))


@pytest.mark.parametrize(
    "caller", every_third(pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer)) for c in CALLERS)
)
@pytest.mark.real_processes
async def test_a_real_client_searches_describes_and_calls(gateway: Gateway, caller: Caller) -> None:
    script: list[dict[str, Any]] = [
        {"op": "tools"},
        {"op": "call", "name": "search_tools", "arguments": {"query": "comits"}},
        {"op": "call", "name": "describe_tool", "arguments": {"name": "git__list_commits"}},
        {"op": "call", "name": "call_tool", "arguments": {"name": "git__list_commits", "arguments": {}}},
        {"op": "call", "name": "call_tool", "arguments": {"name": "bank__pay_invoice", "arguments": {}}},
    ]
    listed, searched, described, called, denied = await caller.play(script, url=f"{gateway.url}/find")
    assert listed["value"] == OWN
    assert "git__list_commits" in str(searched["value"])
    assert "inputSchema" in str(described["value"])
    assert "git:list_commits" in str(called["value"])
    assert "unknown_tool" in str(denied["value"])


async def test_inner_calls_respect_the_limits_of_their_server() -> None:
    servers = {**CONFIG["servers"], "git": {**CONFIG["servers"]["git"], "budgets": {"max_concurrency": 1}}}
    config = {**CONFIG, "servers": servers, "limits": {"queue_per_server": 1}}
    async with running_gateway(config) as gateway, opened(f"{gateway.url}/find", STATEFUL) as caller:
        calls = [caller.call("call_tool", name="git__slow", arguments={"seconds": 0.5}) for _ in range(6)]
        replies = await asyncio.gather(*calls)
    errors = [one.result["_meta"]["taskgate/error"]["error_type"] for one in replies if one.result["isError"]]
    assert errors == ["overloaded"] * 4
