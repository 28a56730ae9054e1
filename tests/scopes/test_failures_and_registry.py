"""What goes wrong with one server or one record stays with it; the folder of records is watched."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.scopes.scope_client import GENERATIONS, SERVER, STATELESS, ScopeClient, opened, scope, server

from taskgate import clock

pytestmark = pytest.mark.virtual_time


async def metrics_of(client: ScopeClient, gateway: Gateway) -> str:
    return str((await client.http.get(f"{gateway.base}/metrics")).text)


async def until_listed(client: ScopeClient, wanted: set[str]) -> None:
    seen: set[str] = set()
    async with asyncio.timeout(20):
        while seen != wanted:
            seen = set(await client.tools())
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_server_that_fails_or_lacks_a_variable_affects_only_itself(version: str) -> None:
    config = {
        "schema": 1,
        "servers": {
            "good": server("good", "read"),
            "absent": {"command": "/nonexistent/program"},
            "silent": server("silent", "mute"),
            "envy": {"url": "http://127.0.0.1:1/${TASKGATE_TEST_UNSET_VARIABLE}"},
            "off": server("off", "read", enabled=False),
        },
        "scopes": {"default": scope("*")},
        "limits": {"tools_fetch_timeout_ms": 700},
    }
    async with running_gateway(config) as gateway, opened(gateway.url, version) as caller:
        assert await caller.tools() == ["good__read"]
        assert (await caller.call("good__read")).text == "good:read"
        began = clock.monotonic()
        assert await caller.tools() == ["good__read"]
        remembered = clock.monotonic() - began
        lost = await caller.call("absent__read")
        metrics = await metrics_of(caller, gateway)
    assert remembered < 0.7
    assert "upstream_unreachable" in json.dumps(lost.message)
    for server_id, reason in [
        ("absent", "list_failed"),
        ("silent", "list_timeout"),
        ("envy", "env_missing"),
        ("off", "disabled"),
    ]:
        assert f'taskgate_mcp_denied_reason_total{{reason="{reason}",server_id="{server_id}"}}' in metrics
    assert 'taskgate_mcp_injection_total{server_id="absent",status="failed"}' in metrics
    assert 'taskgate_mcp_injection_total{server_id="envy",status="denied"}' in metrics
    assert "TASKGATE_TEST_UNSET_VARIABLE" in gateway.log or "env_missing" in gateway.log


async def test_with_plain_names_two_tools_of_one_name_are_both_refused_with_a_warning() -> None:
    servers = {"one": server("one", "read", "write"), "two": server("two", "read")}
    config = {"schema": 1, "servers": servers, "scopes": {"default": scope("*", names="plain")}}
    async with running_gateway(config) as gateway, opened(gateway.url, STATELESS) as caller:
        assert await caller.tools() == ["write"]
        assert (await caller.call("read")).error["data"]["error_type"] == "unknown_tool"
        assert (await caller.call("mcp.one.read")).error["data"]["error_type"] == "unknown_tool"
    assert "all would be called 'read', so none is served" in gateway.log


async def test_a_namespace_replaces_the_id_as_prefix_of_names() -> None:
    servers = {"one": server("one", "read", namespace="fs")}
    config = {"schema": 1, "servers": servers, "scopes": {"default": scope("*")}}
    async with running_gateway(config) as gateway, opened(gateway.url, STATELESS) as caller:
        assert await caller.tools() == ["fs__read"]
        assert (await caller.call("fs__read")).text == "one:read"
        assert (await caller.call("mcp.one.read")).text == "one:read"
        assert (await caller.call("one__read")).error["data"]["error_type"] == "unknown_tool"


def record(name: str, *tools: str, **more: Any) -> str:
    args = [str(SERVER), name, *tools]
    return json.dumps({"command": sys.executable, "args": args, "allowed_tools": ["*"], "instances": "shared", **more})


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.real_processes
async def test_added_changed_and_removed_records_are_loaded(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "mcp.d"
    folder.mkdir()
    (folder / "one.json").write_text(record("one", "read"))
    config = {"schema": 1, "registry_dir": "./mcp.d", "scopes": {"default": scope("*")}}
    async with running_gateway(config, tmp_path) as gateway, opened(gateway.url, version) as caller:
        assert await caller.tools() == ["one__read"]
        (folder / "two.yaml").write_text(record("two", "write", tags=["x"]))
        await until_listed(caller, {"one__read", "two__write"})
        (folder / "two.yaml").write_text(record("two", "write", "delete", allowed_tools=["delete"]))
        await until_listed(caller, {"one__read", "two__delete"})
        (folder / "one.json").unlink()
        await until_listed(caller, {"two__delete"})
        assert (await caller.call("one__read")).error["data"]["error_type"] == "unknown_tool"
        revisions = [int(found) for found in re.findall(r'"revision": "(\d+)-', gateway.log)]
    assert revisions == sorted(revisions)
    assert revisions[-1] > revisions[0]


async def test_hostile_and_broken_records_are_reported_and_the_rest_serve(tmp_path: Path) -> None:
    folder = tmp_path / "mcp.d"
    folder.mkdir()
    (folder / "good.json").write_text(record("good", "read"))
    (folder / "deny.json").write_text(json.dumps({"command": sys.executable, "args": [str(SERVER), "deny", "read"]}))
    (folder / "huge.json").write_text('{"command": "' + "x" * 400_000 + '"}')
    (folder / "bomb.yaml").write_text("a: &a [1,1,1]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nd: [*c,*c,*c]\n")
    (folder / "deep.json").write_text("[" * 50_000)
    (folder / "twice.toml").write_text('id = "good"\ncommand = "x"\nallowed_tools = ["*"]\n')
    (folder / "glob.yaml").write_text('command: x\nallowed_tools: ["[broken"]\n')
    (folder / "name.yaml").write_text('id: "../etc"\ncommand: x\nallowed_tools: ["*"]\n')
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    config = {"schema": 1, "registry_dir": "./mcp.d", "scopes": {"default": scope("*")}}
    async with running_gateway(config, tmp_path) as gateway, opened(gateway.url, STATELESS) as caller:
        assert await caller.tools() == ["good__read"]
        assert (await caller.call("deny__read")).error["data"]["error_type"] == "unknown_tool"
    assert '"deny": "deny_all"' in gateway.log
    for bad in ("huge.json", "bomb.yaml", "deep.json", "twice.toml", "glob.yaml", "name.yaml", "binary.yaml"):
        assert bad in gateway.log


@pytest.mark.real_processes
async def test_a_folder_that_is_created_later_or_moved_is_watched(tmp_path: Path) -> None:
    config = {"schema": 1, "registry_dir": "./later.d", "scopes": {"default": scope("*")}}
    async with running_gateway(config, tmp_path) as gateway, opened(gateway.url, STATELESS) as caller:
        assert await caller.tools() == []
        (tmp_path / "later.d").mkdir()
        async with asyncio.timeout(60):
            while "watched folders changed" not in gateway.log:
                await asyncio.sleep(0.05)
        (tmp_path / "later.d" / "one.json").write_text(record("one", "read"))
        await until_listed(caller, {"one__read"})
        (tmp_path / "other.d").mkdir()
        gateway.write({**config, "registry_dir": "./other.d"})
        await until_listed(caller, set())
        (tmp_path / "other.d" / "two.json").write_text(record("two", "write"))
        await until_listed(caller, {"two__write"})


async def test_a_reload_changes_how_long_lists_may_take_and_how_long_they_may_be() -> None:
    def config(**limits: int) -> dict[str, Any]:
        servers = {"good": server("good", "read", "write"), "silent": server("silent", "mute")}
        return {"schema": 1, "servers": servers, "scopes": {"default": scope("*")}, "limits": limits}

    before = config(tools_fetch_timeout_ms=600_000, tools_per_upstream=1)
    async with running_gateway(before) as gateway, opened(gateway.url, STATELESS) as caller:
        assert await caller.tools() == ["good__read"]
        await gateway.reload(config(tools_fetch_timeout_ms=1000, tools_per_upstream=2))
        await until_listed(caller, {"good__read", "good__write"})
        # A request that runs with the old timeout is sent again with the new one.
        async with asyncio.timeout(20):
            while "list_timeout" not in gateway.log:
                await asyncio.sleep(0.05)
