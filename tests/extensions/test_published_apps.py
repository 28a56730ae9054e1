"""Published servers with MCP Apps, in a host on the official kit: directly, and all of them behind one gateway.

One run has something of everything, with few programs; the others, with all servers in both generations, are for `make extensions`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.extensions.apps_host import PEER, AppsHost, an_apps_host
from tests.harness.absent import HOME
from tests.harness.browser import Chromium
from tests.harness.gateway import running_gateway
from tests.harness.peers import PROGRAMS, interpreter
from tests.harness.programs import free_port, listening, running

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser", "apps")]


@dataclass(frozen=True, slots=True)
class AppServer:
    name: str
    program: tuple[str, ...]
    tool: str
    by_port: bool = True
    """Whether the port is an argument; else it is in the environment."""

    def stdio(self) -> dict[str, Any]:
        command, *arguments = self.program
        return {"command": command, "args": arguments + ([] if self.by_port else ["--stdio"])}

    @asynccontextmanager
    async def http(self) -> AsyncIterator[str]:
        port = free_port()
        env = {**os.environ, "PORT": str(port)}
        command = [*self.program, *([str(port)] if self.by_port else [])]
        async with running(command, listening(port), env=env):
            yield f"http://127.0.0.1:{port}/mcp"


def published(package: str, tool: str) -> AppServer:
    program = PEER / "node_modules" / "@modelcontextprotocol" / package / "dist" / "index.js"
    return AppServer(package.removeprefix("server-"), (str(HOME / "node"), str(program)), tool, by_port=False)


VANILLA, PREACT = published("server-basic-vanillajs", "get-time"), published("server-basic-preact", "get-time")
BUDGET, DEBUG = published("server-budget-allocator", "get-budget-data"), published("server-debug", "debug-tool")
SDK = AppServer("clock", (str(interpreter("mcp23")), str(PROGRAMS / "apps_server_23.py")), "get_time")
FASTMCP = AppServer("board", (str(interpreter("fastmcp")), str(PROGRAMS / "apps_server_fastmcp.py")), "show")
CONFIG: dict[str, Any] = {"apps": {"task_card": "held"}, "limits": {"drain_timeout": "1s"}}


@asynccontextmanager
async def a_host(
    chromium: Chromium, folder: Path, *servers: AppServer, direct: tuple[AppServer, ...] | None = None
) -> AsyncIterator[AppsHost]:
    """A host that reaches each server, or only some, by its name, and all of them together behind a gateway as `gate`."""
    async with AsyncExitStack() as stack:
        by_http = servers if direct is None else direct
        targets = {server.name: await stack.enter_async_context(server.http()) for server in by_http}
        config = {**CONFIG, "servers": {server.name: server.stdio() for server in servers}}
        gateway = await stack.enter_async_context(running_gateway(config, folder))
        yield await stack.enter_async_context(an_apps_host(chromium, {**targets, "gate": gateway.url}))


async def shows_its_result_and_calls_its_server(host: AppsHost, tool: str) -> None:
    number = await host.open(tool)
    async with host.inside(number) as app:
        await app.until("/20\\d\\d-/.test(document.getElementById('server-time').textContent)")
        before = await app.run("return document.getElementById('server-time').textContent")
        await app.run("document.getElementById('get-time-btn').click()")
        await app.until(f"document.getElementById('server-time').textContent !== {before!r}")
    assert [call["name"] for call in (await host.seen(number))["calls"]] == ["get-time"]


async def calls_a_tool_for_apps_only(host: AppsHost, tool: str) -> None:
    number = await host.open(tool)
    async with host.inside(number) as app:
        await app.until("document.getElementById('call-debug-refresh-btn') !== null")
        await app.run("document.getElementById('call-debug-refresh-btn').click()")
        await app.until("/server-tool-result/.test(document.getElementById('event-log').textContent)")
    assert "debug-refresh" in {call["name"] for call in (await host.seen(number))["calls"]}


@pytest.mark.peers("mcp23")
async def test_apps_of_several_servers_work_behind_one_gateway(chromium: Chromium, tmp_path: Path) -> None:
    async with a_host(chromium, tmp_path, VANILLA, DEBUG, SDK, direct=(VANILLA,)) as host:
        await host.connect("basic-vanillajs")
        directly = await host.read("get-time")
        await host.connect("gate", "2026")
        assert await host.read("basic-vanillajs__get-time") == directly
        assert (await host.read("clock__get_time"))["uri"] == "ui://clock/app.html"
        assert await host.call("wind") == "wound"
        await host.connect("gate", "2025")
        await shows_its_result_and_calls_its_server(host, "basic-vanillajs__get-time")
        await calls_a_tool_for_apps_only(host, "debug__debug-tool")


@pytest.mark.long
@pytest.mark.peers("mcp23", "fastmcp")
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_interfaces_are_the_same_behind_a_gateway(chromium: Chromium, tmp_path: Path, generation: str) -> None:
    servers = (VANILLA, BUDGET, DEBUG, SDK, FASTMCP)
    async with a_host(chromium, tmp_path, *servers) as host:
        directly = {}
        for server in servers:
            await host.connect(server.name)
            directly[server.name] = await host.read(server.tool)
        await host.connect("gate", generation)
        for server in servers:
            assert await host.read(f"{server.name}__{server.tool}") == directly[server.name]


@pytest.mark.long
@pytest.mark.parametrize("target", ["basic-vanillajs", "gate"])
async def test_an_app_shows_its_result_and_calls_its_server(chromium: Chromium, tmp_path: Path, target: str) -> None:
    async with a_host(chromium, tmp_path, VANILLA, BUDGET) as host:
        await host.connect(target)
        await shows_its_result_and_calls_its_server(
            host, "basic-vanillajs__get-time" if target == "gate" else "get-time"
        )


@pytest.mark.long
@pytest.mark.parametrize("target", ["debug", "gate"])
async def test_an_app_calls_tools_that_are_only_for_apps(chromium: Chromium, tmp_path: Path, target: str) -> None:
    async with a_host(chromium, tmp_path, DEBUG, VANILLA) as host:
        await host.connect(target)
        await calls_a_tool_for_apps_only(host, "debug__debug-tool" if target == "gate" else "debug-tool")


@pytest.mark.long
async def test_two_servers_with_one_address_are_distinguished(chromium: Chromium, tmp_path: Path) -> None:
    """Both examples use `ui://get-time/mcp-app.html` and the tool `get-time`."""
    async with a_host(chromium, tmp_path, VANILLA, PREACT) as host:
        pages = {}
        for server in (VANILLA, PREACT):
            await host.connect(server.name)
            pages[server.name] = (await host.read(server.tool))["text"]
        assert pages["basic-vanillajs"] != pages["basic-preact"]
        await host.connect("gate")
        for server in (VANILLA, PREACT):
            content = await host.read(f"{server.name}__get-time")
            assert content["text"] == pages[server.name]
            assert content["uri"] == f"ui://{server.name}.taskgate/get-time/mcp-app.html"
            number = await host.open(f"{server.name}__get-time")
            async with host.inside(number) as app:
                await app.until("/20\\d\\d-/.test(document.body.innerText)")


@pytest.mark.long
@pytest.mark.peers("mcp23", "fastmcp")
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_own_names_of_tools_for_apps_lead_to_their_servers(
    chromium: Chromium, tmp_path: Path, generation: str
) -> None:
    async with a_host(chromium, tmp_path, SDK, FASTMCP) as host:
        await host.connect("gate", generation)
        assert (await host.read("clock__get_time"))["uri"] == "ui://clock/app.html"
        assert (await host.read("board__show"))["uri"] == "ui://board/main.html"
        assert await host.call("wind") == "wound"
        assert await host.call("refresh") == "fresh"
