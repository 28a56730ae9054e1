"""Published programs, unmodified: the reference server behind Taskgate, and the Inspector before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.absent import HOME
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end
from tests.harness.wire import caller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
PACKAGES = "node_modules/@modelcontextprotocol"


def configuration() -> dict[str, Any]:
    program = HOME / "everything" / PACKAGES / "server-everything/dist/index.js"
    server = {"command": str(HOME / "node"), "args": [str(program), "stdio"]}
    scope = {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}
    return {"schema": 1, "servers": {"everything": server}, "scopes": {"default": scope}}


@pytest.mark.peers("everything")
@pytest.mark.parametrize("stateless", [False, True], ids=["2025", "2026"])
async def test_the_reference_server_answers_through_the_gateway(stateless: bool) -> None:
    async with running_gateway(configuration()) as gateway, caller(gateway.url, stateless=stateless) as one:
        assert "echo" in [tool["name"] for tool in await one.list_tools()]
        assert (await one.call("echo", message="hello"))["content"] == [{"type": "text", "text": "Echo: hello"}]
        assert (await one.request("prompts/list")).result["prompts"]
        uri = (await one.request("resources/list")).result["resources"][0]["uri"]
        assert (await one.request("resources/read", uri=uri)).result["contents"][0]["uri"] == uri


@pytest.mark.peers("everything", "inspector")
async def test_the_inspector_lists_and_calls_tools_through_the_gateway() -> None:
    inspector: list[str | Path] = [HOME / "node", HOME / "inspector/node_modules/.bin/mcp-inspector", "--cli"]
    async with running_gateway(configuration()) as gateway:
        where: list[str | Path] = [gateway.url, "--transport", "http", "--method"]
        _, listed, complaint = await run_to_end([*inspector, *where, "tools/list"])
        words: list[str | Path] = [*where, "tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"]
        _, called, stderr = await run_to_end([*inspector, *words])
    assert "echo" in [tool["name"] for tool in json.loads(listed)["tools"]], complaint
    assert json.loads(called)["content"] == [{"type": "text", "text": "Echo: hello"}], stderr
