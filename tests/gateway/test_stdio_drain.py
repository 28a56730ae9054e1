"""A stdio gateway that receives a signal to stop answers every open call: with the result, or with what is known."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.test_lifecycle import http_server, mirror
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port
from tests.harness.raw_client import META, STATELESS

pytestmark = pytest.mark.timeout(240)
WAIT_S = 90.0


class StdioClient:
    """One conversation, line by line."""

    def __init__(self, process: asyncio.subprocess.Process, stateless: bool) -> None:
        self.process = process
        self.stateless = stateless
        self.received: dict[Any, dict[str, Any]] = {}

    def send(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if self.stateless:
            params = {
                **params,
                "_meta": {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}},
            }
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def call(self, request_id: Any, tool: str, value: Any) -> None:
        self.send(request_id, "tools/call", {"name": f"a__{tool}", "arguments": {"value": value}})

    async def answer(self, request_id: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while request_id not in self.received:
                line = await self.process.stdout.readline()
                assert line, f"it ended without an answer to {request_id}"
                message = json.loads(line)
                self.received[message.get("id")] = message
        return self.received[request_id]


@asynccontextmanager
async def stdio_client(folder: Path, stateless: bool, drain: str) -> AsyncIterator[StdioClient]:
    port = free_port()
    Gateway(folder, 0).write(
        {"schema": 1, "servers": {"a": http_server(port)}, "limits": {"drain_timeout": drain}, "validate": "off"}
    )
    async with mirror(port):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "taskgate", "stdio", "--alone", "-c", str(folder / "taskgate.yaml")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TASKGATE_STATE_DIR": str(folder / "state")},
            limit=64 * 1024 * 1024,
        )
        client = StdioClient(process, stateless)
        try:
            if not stateless:
                info = {"name": "t", "version": "1"}
                opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
                client.send("open", "initialize", opening)
                await client.answer("open")
            client.call("first", "mirror", 1)
            await client.answer("first")
            yield client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def refused_as_ending(client: StdioClient) -> dict[str, Any]:
    """The reply to a new call after the signal was handled, which may take a moment."""
    while True:
        client.call("new", "mirror", 2)
        refused: dict[str, Any] = (await client.answer("new")).get("error", {}).get("data", {})
        if refused.get("error_type") == "shutting_down":
            return refused
        client.received.pop("new")


@pytest.mark.parametrize("stateless", [False, True])
async def test_calls_that_end_during_the_drain_are_answered_and_others_get_an_error(
    tmp_path: Path, stateless: bool
) -> None:
    async with stdio_client(tmp_path, stateless, "5s") as client:
        client.call("quick", "sleep", 1)
        client.call("slow", "sleep", 40)
        client.call("large", "mirror", "x" * 500_000)
        await client.answer("large")
        began = time.monotonic()
        client.process.send_signal(signal.SIGTERM)
        refused = await refused_as_ending(client)
        assert (refused["error_type"], refused["executed"]) == ("shutting_down", "no")
        assert (await client.answer("quick"))["result"]["vendor/extra"] == 1
        unknown = (await client.answer("slow"))["error"]["data"]
        assert (unknown["error_type"], unknown["executed"]) == ("outcome_unknown", "maybe")
        assert await asyncio.wait_for(client.process.wait(), WAIT_S) == 0
        assert time.monotonic() - began > 4.9


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    async with stdio_client(tmp_path, False, "40s") as client:
        client.call("slow", "sleep", 40)
        client.call("then", "mirror", 1)
        await client.answer("then")
        client.process.send_signal(signal.SIGTERM)
        await refused_as_ending(client)
        client.process.send_signal(signal.SIGTERM)
        assert (await client.answer("slow"))["error"]["data"]["error_type"] == "outcome_unknown"
        assert await asyncio.wait_for(client.process.wait(), WAIT_S) == 0


async def test_an_idle_stdio_gateway_exits_at_once(tmp_path: Path) -> None:
    async with stdio_client(tmp_path, False, "40s") as client:
        client.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(client.process.wait(), WAIT_S) == 0
