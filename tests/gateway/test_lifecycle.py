"""Starting, reloading, losing servers, draining: what a running gateway survives without losing an accepted request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.gateway.conftest import MIRROR
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient


def http_server(port: int) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/mcp"}


@asynccontextmanager
async def mirror(port: int, generation: str = "stateful") -> AsyncIterator[None]:
    async with running([sys.executable, MIRROR, generation, str(port)], listening(port)):
        yield


async def eventually(holds: Callable[[], Awaitable[bool]], within: float = 15.0) -> None:
    end = time.monotonic() + within
    while not await holds():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.05)


@pytest.mark.virtual_time
async def test_accepted_requests_are_answered_while_draining(tmp_path: Path) -> None:
    port = free_port()
    async with mirror(port), running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway:
        async with RawClient(gateway.url) as caller:
            await caller.call("a__mirror", {"value": 0})
            calls = [asyncio.create_task(caller.call("a__sleep", {"value": 1.0})) for _ in range(20)]
            await asyncio.sleep(0.3)
            code = await gateway.stop()
            answers = await asyncio.gather(*calls)
    assert code == 0
    assert all(answer.result["vendor/extra"] == 1.0 for answer in answers)


async def test_a_reload_changes_what_is_served_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    port = free_port()
    first = {"schema": 1, "servers": {"a": http_server(port)}}
    async with mirror(port), running_gateway(first, tmp_path) as gateway, RawClient(gateway.url) as caller:

        async def lists(server: str) -> bool:
            tools = (await caller.request("tools/list")).result["tools"]
            return any(tool["name"] == f"{server}__mirror" for tool in tools)

        assert await lists("a")
        await gateway.reload("schema: 1\nservers: {a: {no: sense}}\n")
        await eventually(lambda: _logged(gateway, "the old one stays in force"))
        assert await lists("a")
        await gateway.reload({"schema": 1, "servers": {"b": http_server(port)}})
        await eventually(lambda: lists("b"))
        assert not await lists("a")
        assert (await caller.call("b__mirror", {"value": 1})).result["vendor/extra"] == 1


async def _logged(gateway: Gateway, text: str) -> bool:
    return text in gateway.log


async def test_a_changed_file_is_reloaded(tmp_path: Path) -> None:
    port = free_port()
    async with (
        mirror(port),
        running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway,
    ):
        gateway.write({"schema": 1, "servers": {"later": http_server(port)}})

        async def served() -> bool:
            async with RawClient(gateway.url) as caller:
                tools = (await caller.request("tools/list")).result["tools"]
                return any(tool["name"] == "later__mirror" for tool in tools)

        await eventually(served)


async def test_an_unavailable_server_does_not_affect_others_and_reconnects(tmp_path: Path) -> None:
    up, down = free_port(), free_port()
    servers = {"up": http_server(up), "down": http_server(down)}
    async with mirror(up), running_gateway({"schema": 1, "servers": servers}, tmp_path) as gateway:
        async with RawClient(gateway.url) as caller:
            tools = (await caller.request("tools/list")).result["tools"]
            assert {tool["name"].split("__")[0] for tool in tools if "__" in tool["name"]} == {"up"}
            failed = await caller.call("down__mirror", {"value": 1})
            assert failed.error["data"]["executed"] == "no"
            async with mirror(down):

                async def answers() -> bool:
                    answer = await caller.call("down__mirror", {"value": 5})
                    return answer.reply.get("result", {}).get("vendor/extra") == 5

                await eventually(answers, within=120)


async def test_a_server_that_lost_its_sessions_is_initialized_again(tmp_path: Path) -> None:
    port = free_port()
    async with running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway:
        for number in (1, 2):
            async with mirror(port), RawClient(gateway.url) as caller:

                async def answers(caller: RawClient = caller, number: int = number) -> bool:
                    reply = (await caller.call("a__mirror", {"value": number})).reply
                    return reply.get("result", {}).get("vendor/extra") == number

                await eventually(answers, within=120)


async def test_a_crashed_child_is_restarted_and_none_outlives_a_killed_gateway(tmp_path: Path) -> None:
    servers = {"pipe": {"command": sys.executable, "args": [str(MIRROR), "stdio"]}}
    async with running_gateway({"schema": 1, "servers": servers}, tmp_path) as gateway:
        async with RawClient(gateway.url) as caller:
            await caller.call("pipe__mirror", {"value": 1})
            (child,) = _children(gateway.pid, "mirror_server.py")
            os.kill(child, signal.SIGKILL)

            async def answers() -> bool:
                reply = (await caller.call("pipe__mirror", {"value": 2})).reply
                return reply.get("result", {}).get("vendor/extra") == 2

            await eventually(answers, within=120)
            (child,) = _children(gateway.pid, "mirror_server.py")
        await gateway.kill()
        await eventually(lambda: _gone(child), within=120)


def _children(parent: int, name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[1]) == parent and name in command and fields[0] != "Z":
                found.append(int(entry.name))
    return found


async def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_slow_callers_are_dropped_without_effect_on_others(tmp_path: Path) -> None:
    port = free_port()
    async with mirror(port), running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n")
        async with RawClient(gateway.url) as caller:
            assert (await caller.call("a__mirror", {"value": 1})).result["vendor/extra"] == 1
        assert await asyncio.wait_for(reader.read(), 120) == b""
        writer.close()


async def test_ready_reports_the_state_of_servers(tmp_path: Path) -> None:
    port = free_port()
    async with mirror(port), running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway:
        async with RawClient(gateway.url) as caller:
            await caller.request("tools/list")
        async with httpx2.AsyncClient(timeout=120) as http:
            state = (await http.get(f"{gateway.base}/ready")).json()
    assert state["ready"] is True
    assert state["servers"] == {"a": "connected"}


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["serve", "--help"], ["call", "--help"]])
async def test_the_command_line_has_help(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taskgate", *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    assert out


async def test_several_gateways_on_standard_streams_share_a_state_directory(tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    config.write_text(f"schema: 1\nservers: {{pipe: {{command: {sys.executable}, args: [{MIRROR}, stdio]}}}}\n")
    environment = {**os.environ, "TASKGATE_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-m", "taskgate", "stdio", "--alone", "-c", str(config)]
    opening = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
        b'"clientInfo":{"name":"t","version":"1"}}}\n'
    )
    pipe = asyncio.subprocess.PIPE
    both = [await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write(opening)
    for process in both:
        assert process.stdout is not None
        assert process.stdin is not None
        assert b'"serverInfo"' in await asyncio.wait_for(process.stdout.readline(), 90)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 90) == 0


async def test_settings_of_the_gateway_do_not_restart_a_server_and_a_truncated_file_changes_nothing(
    tmp_path: Path,
) -> None:
    server = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
    config = {"schema": 1, "servers": {"files": server}}
    async with running_gateway(config, tmp_path) as gateway, RawClient(gateway.url) as caller:
        await caller.request("tools/list")
        before = _children(gateway.pid, "taskgate.demo.files")
        assert before
        for harmless in (
            {"tags": ["local"]},
            {"restart": {"limit": 9}},
            {"questions": "refuse"},
            {"budgets": {"max_concurrency": 3}},
        ):
            text = gateway.log.count("configuration reloaded")
            await gateway.reload({"schema": 1, "servers": {"files": {**server, **harmless}}})
            await eventually(lambda text=text: _count_log_lines(gateway, "configuration reloaded", text + 1))  # type: ignore[misc]
            await caller.request("tools/list")
            assert _children(gateway.pid, "taskgate.demo.files") == before, harmless
        await gateway.reload("")
        await eventually(lambda: _logged(gateway, "the file is empty"))
        assert (await caller.request("tools/list")).result["tools"]


async def _count_log_lines(gateway: Gateway, text: str, times: int) -> bool:
    return gateway.log.count(text) >= times
