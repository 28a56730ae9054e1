"""An outdated catalog is reported, one failed list hides no other, and one server that hangs blocks no caller."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.harness.changeable_server import ChangeableServer, changeable, tool
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.virtual_time
PROMPT = {"name": "greet"}
BUSY_MACHINE_S = 4.0
"""What was 5 and 25 seconds must be far less, also where everything takes long."""


def config(*servers: ChangeableServer, **limits: Any) -> dict[str, Any]:
    named = {f"s{number}": {"url": server.url} for number, server in enumerate(servers, 1)}
    return {"schema": 1, "servers": named, "limits": limits}


async def names(caller: RawClient, kind: str = "tools") -> set[str]:
    listed = (await caller.request(f"{kind}/list")).result[kind]
    return {entry["name"] for entry in listed if "__" in entry["name"]}


async def until_named(caller: RawClient, wanted: set[str], kind: str = "tools") -> None:
    async with asyncio.timeout(30):
        while await names(caller, kind) != wanted:
            await asyncio.sleep(0.05)


async def ready_state(gateway: Gateway, caller: RawClient) -> dict[str, Any]:
    found: dict[str, Any] = (await caller.http.get(f"{gateway.base}/ready")).json()
    return found


async def test_a_failing_list_does_not_affect_other_lists_of_its_server() -> None:
    lists = {"tools/list": [tool("echo")], "resources/list": [{"uri": "a://b", "name": "b"}]}
    capabilities: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
    async with changeable(capabilities=capabilities, lists=lists, failing={"prompts/list"}) as server:
        async with running_gateway(config(server)) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s1__echo"}
            uris = [entry["uri"] for entry in (await caller.request("resources/list")).result["resources"]]
            assert "a://b" in uris
            assert await names(caller, "prompts") == set()
            found = (await ready_state(gateway, caller))["catalogs"]["s1"]
            assert (found["tools"], found["resources"], found["generation"]) == (1, 1, "stateful")
            assert "it broke" in found["failed"]["prompts/list"]
            # It is listed again automatically.
            server.lists["prompts/list"] = [PROMPT]
            server.failing.clear()
            await until_named(caller, {"s1__greet"}, "prompts")


async def test_a_hanging_list_delays_no_other_list() -> None:
    lists = {"tools/list": [tool("echo")]}
    async with changeable(capabilities={"tools": {}, "prompts": {}}, lists=lists, hanging={"prompts/list"}) as server:
        async with running_gateway(config(server)) as gateway, RawClient(gateway.url) as caller:
            began = time.monotonic()
            assert await names(caller) == {"s1__echo"}
            assert time.monotonic() - began < 8


async def test_a_server_changed_without_announcement_is_listed_again_by_age() -> None:
    async with changeable(lists={"tools/list": [tool("old")]}) as server:
        async with running_gateway(config(server, list_max_age="2s")) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s1__old"}
            server.capabilities = {"tools": {}, "prompts": {}, "completions": {}}
            server.lists = {"tools/list": [tool("new")], "prompts/list": [PROMPT]}
            await until_named(caller, {"s1__new"})
            await until_named(caller, {"s1__greet"}, "prompts")
            server.answers["completion/complete"] = lambda _params: {"result": {"completion": {"values": ["x"]}}}
            asked = {"ref": {"type": "ref/prompt", "name": "s1__greet"}, "argument": {"name": "a", "value": ""}}
            completed = (await caller.request("completion/complete", asked)).result["completion"]
            assert completed["values"] == ["x"]


async def test_an_unlisted_name_causes_a_new_list_request() -> None:
    async with changeable(lists={"tools/list": [tool("old")]}) as server, changeable(lists={"tools/list": []}) as other:
        async with running_gateway(config(server, other)) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s1__old"}
            # Another gateway may have listed it meanwhile: that our lists are recent is no reason to refuse it. That listing takes
            # a second is none, either.
            server.lists["tools/list"] = [tool("new")]
            server.slow["tools/list"] = 1.0
            before = other.count("tools/list")
            assert (await caller.call("s1__new", {})).result["content"][0]["text"] == "ran new"
            assert other.count("tools/list") == before
            # Unknown names do not cause a list request each time.
            before = server.count("tools/list")
            for number in range(20):
                answer = await caller.call(f"s1__invented{number}", {})
                assert answer.error["data"]["error_type"] == "unknown_tool"
            assert server.count("tools/list") == before


async def test_a_name_newer_than_a_running_list_request_is_found() -> None:
    async with changeable(lists={"tools/list": [tool("old")]}) as server:
        async with running_gateway(config(server, list_max_age="2s")) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s1__old"}
            server.slow["tools/list"] = 1.0
            await server.until_received("tools/list", server.count("tools/list") + 1)
            server.lists["tools/list"] = [tool("new")]
            assert (await caller.call("s1__new", {})).result["content"][0]["text"] == "ran new"


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_server_that_never_lists_delays_no_caller(stateless: bool) -> None:
    async with changeable(hanging={"tools/list"}) as silent, changeable(lists={"tools/list": [tool("echo")]}) as well:
        async with running_gateway(config(silent, well)) as gateway:
            caller = RawClient(gateway.url, stateless=stateless)
            began = time.monotonic()
            await (caller.request("server/discover") if stateless else caller.open())
            assert (await caller.call("s2__echo", {})).result["content"][0]["text"] == "ran echo"
            assert time.monotonic() - began < BUSY_MACHINE_S
            # The first list request waits for a server that has not answered yet; later ones do not.
            listed = await caller.request("tools/list")
            assert "s2__echo" in json.dumps(listed.result)
            if stateless:
                assert listed.result["ttlMs"] == 0
            assert time.monotonic() - began < 8 + BUSY_MACHINE_S
            began = time.monotonic()
            assert await names(caller) == {"s2__echo"}
            assert time.monotonic() - began < BUSY_MACHINE_S
            found = (await ready_state(gateway, caller))["catalogs"]
            assert found["s2"]["listed"] is True
            assert found["s1"]["listed"] is False
            await caller.http.aclose()


async def test_entries_after_a_partial_list_are_announced() -> None:
    async with changeable(hanging={"tools/list"}) as late, changeable(lists={"tools/list": [tool("echo")]}) as well:
        limits = {"tools_fetch_timeout_ms": 3000}
        async with running_gateway(config(late, well, **limits)) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s2__echo"}
            headers = {**caller.headers, "accept": "text/event-stream"}
            async with asyncio.timeout(60), caller.http.stream("GET", gateway.url, headers=headers) as stream:
                late.hanging.clear()
                late.lists["tools/list"] = [tool("late")]
                async for line in stream.aiter_lines():
                    if "notifications/tools/list_changed" in line:
                        break
            assert await names(caller) == {"s1__late", "s2__echo"}


async def test_the_lists_of_the_last_run_are_shown_while_a_server_does_not_answer() -> None:
    offered = [tool("echo", description="as it was")]
    capabilities: dict[str, Any] = {"tools": {}, "prompts": {}}
    lists = {"tools/list": offered, "prompts/list": [PROMPT]}
    async with changeable(capabilities=capabilities, lists=lists, instructions="Be kind.") as server:
        async with running_gateway(config(server)) as gateway:
            async with RawClient(gateway.url) as caller:
                assert await names(caller) == {"s1__echo"}
            await gateway.stop()
            server.hanging = {"initialize", "server/discover"}
            await gateway.start()
            began = time.monotonic()
            caller = RawClient(gateway.url)
            opened = await caller.open()
            assert opened.result["instructions"] == "Be kind."
            listed = (await caller.request("tools/list")).result["tools"]
            assert [entry["description"] for entry in listed if entry["name"] == "s1__echo"] == ["as it was"]
            assert await names(caller, "prompts") == {"s1__greet"}
            assert time.monotonic() - began < BUSY_MACHINE_S
            assert (await ready_state(gateway, caller))["catalogs"]["s1"]["age_s"] >= 0
            assert "lists of the last run are shown" in gateway.log
            await caller.http.aclose()
        # Another server under the same name is not shown what the first one had.
        async with changeable(hanging={"initialize"}) as other:
            gateway.write(config(other))
            await gateway.start()
            async with RawClient(gateway.url) as caller:
                assert await names(caller) == set()
            await gateway.stop()


async def test_servers_are_contacted_at_the_start_and_the_result_is_logged() -> None:
    async with changeable(lists={"tools/list": [tool("echo")]}) as server:
        servers = {**config(server)["servers"], "gone": {"url": "http://127.0.0.1:1/mcp"}}
        async with running_gateway({"schema": 1, "servers": servers}) as gateway, RawClient(gateway.url) as caller:
            await server.until_received("tools/list", 1)
            async with asyncio.timeout(30):
                while "server listed" not in gateway.log or "server not listed" not in gateway.log:
                    await asyncio.sleep(0.05)
            assert "Upstream capabilities: tasks=false sse=false" in gateway.log
            found = (await ready_state(gateway, caller))["catalogs"]
            assert found["s1"]["tools"] == 1
            assert "gone" in found["gone"]["problem"]


async def test_a_lost_session_is_detected_when_lists_are_refreshed() -> None:
    async with changeable(lists={"tools/list": [tool("old")]}, session="one") as server:
        async with running_gateway(config(server, list_max_age="2s")) as gateway, RawClient(gateway.url) as caller:
            assert await names(caller) == {"s1__old"}
            server.session = "two"
            server.capabilities = {"tools": {}, "prompts": {}}
            server.lists = {"tools/list": [tool("new")], "prompts/list": [PROMPT]}
            await until_named(caller, {"s1__new"})
            await until_named(caller, {"s1__greet"}, "prompts")
