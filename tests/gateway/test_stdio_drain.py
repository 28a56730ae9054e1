"""A gateway on standard streams that is told to stop answers everyone it still can: with the result, or with what is known."""

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


class Talk:
    """One conversation, line by line."""

    def __init__(self, process: asyncio.subprocess.Process, stateless: bool) -> None:
        self.process = process
        self.stateless = stateless
        self.heard: dict[Any, dict[str, Any]] = {}

    def say(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if self.stateless:
            params = {
                **params,
                "_meta": {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}},
            }
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def call(self, request_id: Any, tool: str, value: Any) -> None:
        self.say(request_id, "tools/call", {"name": f"a__{tool}", "arguments": {"value": value}})

    async def answer(self, request_id: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while request_id not in self.heard:
                line = await self.process.stdout.readline()
                assert line, f"it ended without an answer to {request_id}"
                message = json.loads(line)
                self.heard[message.get("id")] = message
        return self.heard[request_id]


@asynccontextmanager
async def talking(folder: Path, stateless: bool, drain: str) -> AsyncIterator[Talk]:
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
        talk = Talk(process, stateless)
        try:
            if not stateless:
                info = {"name": "t", "version": "1"}
                opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
                talk.say("open", "initialize", opening)
                await talk.answer("open")
            talk.call("first", "mirror", 1)
            await talk.answer("first")
            yield talk
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def refused_as_ending(talk: Talk) -> dict[str, Any]:
    """What a new call is told once the signal has been seen, which may take a moment."""
    while True:
        talk.call("new", "mirror", 2)
        refused: dict[str, Any] = (await talk.answer("new")).get("error", {}).get("data", {})
        if refused.get("error_type") == "shutting_down":
            return refused
        talk.heard.pop("new")


@pytest.mark.parametrize("stateless", [False, True])
async def test_calls_that_end_during_the_drain_are_answered_and_others_get_an_error(
    tmp_path: Path, stateless: bool
) -> None:
    async with talking(tmp_path, stateless, "5s") as talk:
        talk.call("quick", "sleep", 1)
        talk.call("slow", "sleep", 40)
        talk.call("large", "mirror", "x" * 500_000)
        await talk.answer("large")
        began = time.monotonic()
        talk.process.send_signal(signal.SIGTERM)
        refused = await refused_as_ending(talk)
        assert (refused["error_type"], refused["executed"]) == ("shutting_down", "no")
        assert (await talk.answer("quick"))["result"]["vendor/extra"] == 1
        unknown = (await talk.answer("slow"))["error"]["data"]
        assert (unknown["error_type"], unknown["executed"]) == ("outcome_unknown", "maybe")
        assert await asyncio.wait_for(talk.process.wait(), WAIT_S) == 0
        assert time.monotonic() - began > 4.9


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    async with talking(tmp_path, False, "40s") as talk:
        talk.call("slow", "sleep", 40)
        talk.call("then", "mirror", 1)
        await talk.answer("then")
        talk.process.send_signal(signal.SIGTERM)
        await refused_as_ending(talk)
        talk.process.send_signal(signal.SIGTERM)
        assert (await talk.answer("slow"))["error"]["data"]["error_type"] == "outcome_unknown"
        assert await asyncio.wait_for(talk.process.wait(), WAIT_S) == 0


async def test_an_idle_stdio_gateway_exits_at_once(tmp_path: Path) -> None:
    async with talking(tmp_path, False, "40s") as talk:
        talk.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(talk.process.wait(), WAIT_S) == 0
