"""A caller that comes while a server is still away finds its prompts and resources when it has come: they were announced."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import running_gateway
from tests.harness.programs import free_port
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.virtual_time
ODD_SERVER = Path(__file__).parent.parent / "peers" / "odd_server.py"
MIRROR = Path(__file__).parent.parent / "peers" / "mirror_server.py"
LISTS = ("tools", "prompts", "resources")


def capabilities_of(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["capabilities"]
    return found


@pytest.mark.parametrize("stateless", [False, True])
async def test_every_list_capability_is_declared_while_a_server_is_unavailable(stateless: bool) -> None:
    config = {"schema": 1, "servers": {"late": {"url": f"http://127.0.0.1:{free_port()}/mcp"}}}
    async with running_gateway(config) as gateway:
        caller = RawClient(gateway.url, stateless=stateless)
        opened = await (caller.request("server/discover") if stateless else caller.open())
        declared = capabilities_of(opened.result)
        assert all(declared[kind]["listChanged"] is True for kind in LISTS)
        assert declared["resources"]["subscribe"] is True
        assert declared["completions"] == declared["logging"] == {}
        for kind in LISTS:
            assert (await caller.request(f"{kind}/list")).result[kind] is not None
        await caller.http.aclose()


async def test_late_lists_are_announced_to_callers_that_were_answered_without_them(tmp_path: Path) -> None:
    """The server's program ends at once until a file is there; from then on it serves."""
    there = tmp_path / "there"
    program = tmp_path / "late.py"
    serves = f"exec(compile(open({str(ODD_SERVER)!r}).read(), {str(ODD_SERVER)!r}, 'exec'))"
    program.write_text(f"import os, sys\nif not os.path.exists({str(there)!r}):\n    sys.exit(1)\n{serves}\n")
    config = {"schema": 1, "servers": {"late": {"command": sys.executable, "args": [str(program)]}}}
    async with running_gateway(config) as gateway, RawClient(gateway.url) as caller:
        assert (await caller.request("prompts/list")).result["prompts"] == []
        received: list[str] = []
        headers = {**caller.headers, "accept": "text/event-stream"}
        async with asyncio.timeout(30), caller.http.stream("GET", gateway.url, headers=headers) as stream:
            there.touch()
            async for line in stream.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    received.append(json.loads(line[5:])["method"])
                if {f"notifications/{kind}/list_changed" for kind in LISTS} <= set(received):
                    break
        assert [prompt["name"] for prompt in (await caller.request("prompts/list")).result["prompts"]] == [
            "late__greet"
        ]
        assert (await caller.request("resources/templates/list")).result["resourceTemplates"]


async def servers_in(caller: RawClient) -> set[str]:
    """Whose tools are listed, besides the gateway's own."""
    names = [tool["name"] for tool in (await caller.request("tools/list")).result["tools"]]
    return {name.partition("__")[0] for name in names if "__" in name}


async def test_a_server_without_tools_is_healthy() -> None:
    """EC-SEP-004: an empty list is a valid state."""
    config = {
        "schema": 1,
        "servers": {
            "bare": {"command": sys.executable, "args": [str(MIRROR), "stdio", "--empty"]},
            "full": {"command": sys.executable, "args": [str(MIRROR), "stdio"]},
        },
        "scopes": {"default": {"default_servers": ["*"]}, "alone": {"default_servers": ["bare"]}},
    }
    async with running_gateway(config) as gateway, RawClient(f"{gateway.url}/alone") as alone:
        assert await servers_in(alone) == set()
        assert (await alone.call("bare__mirror", {})).error["data"]["error_type"] == "unknown_tool"
        async with RawClient(gateway.url) as caller:
            assert await servers_in(caller) == {"full"}
        assert "server not listed" not in gateway.log


ONLY_2026 = """
import asyncio, json, sys

async def serve():
    with open({starts!r}, "a") as file:
        file.write("started\\n")
    await asyncio.sleep(50)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        method, stamp = asked["method"], {{"resultType": "complete"}}
        if method == "server/discover":
            info = {{"name": "slow", "version": "1"}}
            described = {{"supportedVersions": ["2026-07-28"], "capabilities": {{"tools": {{}}}}, "serverInfo": info}}
            answer = {{"result": {{**stamp, **described}}}}
        elif method == "tools/list":
            answer = {{"result": {{**stamp, "tools": [{{"name": "echo", "inputSchema": {{"type": "object"}}}}]}}}}
        elif method == "tools/call":
            answer = {{"result": {{**stamp, "content": []}}}}
        else:
            answer = {{"error": {{"code": -32601, "message": "Method not found"}}}}
        if "id" in asked:
            sys.stdout.write(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **answer}}) + "\\n")
            sys.stdout.flush()

asyncio.run(serve())
"""


def slow_program(generation: str, starts: Path) -> str:
    if generation == "2026":
        return ONLY_2026.format(starts=str(starts))
    late = (
        "async def late():\n"
        f"    with open({str(starts)!r}, 'a') as file:\n"
        "        file.write('started\\n')\n"
        "    await asyncio.sleep(50)\n"
        "    await OddServer().serve()\n"
    )
    source = ODD_SERVER.read_text().replace("asyncio.run(OddServer().serve())", "asyncio.run(late())")
    return source.replace('if __name__ == "__main__":', f'{late}\n\nif __name__ == "__main__":')


@pytest.mark.parametrize(
    ("generation", "pinned"), [("2025", {}), ("2026", {}), ("2026", {"generation": "2026-07-28"})], ids=str
)
async def test_a_slow_program_is_started_once(tmp_path: Path, generation: str, pinned: dict[str, str]) -> None:
    """As `npx` and `uvx` do when they fetch a server first. Killed and started again, it would never be done."""
    program, starts = tmp_path / "slow.py", tmp_path / "starts"
    program.write_text(slow_program(generation, starts))
    config = {"schema": 1, "servers": {"slow": {"command": sys.executable, "args": [str(program)], **pinned}}}
    async with running_gateway(config) as gateway, RawClient(gateway.url, stateless=generation == "2026") as caller:
        async with asyncio.timeout(300):
            while not any(
                tool["name"] == "slow__echo" for tool in (await caller.request("tools/list")).result["tools"]
            ):
                await asyncio.sleep(1)
        assert "result" in (await caller.call("slow__echo", {"a": 1})).reply
        assert starts.read_text().split() == ["started"]
