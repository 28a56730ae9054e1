"""Bare callers for tests: they use JSON-RPC over HTTP or stdio, in either generation, and declare the given capabilities. No
SDK is involved, so a test sees exactly what a tools-only client sees.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.replies import messages

PREFIX = "io.modelcontextprotocol/"
TIMEOUT_S = 120.0


class Failed(Exception):
    """The gateway answered with a JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.error = error


class Caller(Protocol):
    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


async def call(caller: Caller, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its whole result."""
    return await caller.ask("tools/call", {"name": name, "arguments": arguments})


async def call_json(caller: Caller, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool of the gateway and read its JSON blocks as one object."""
    return read(await call(caller, name, **arguments))


async def task_result(caller: Caller, task_id: str) -> dict[str, Any]:
    """The result of a task, polled until it is available."""
    async with asyncio.timeout(120):
        while True:
            result = await call(caller, "get_task_result", task_id=task_id)
            if "still working" not in result["content"][0]["text"]:
                return result


def read(result: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON blocks of a reply, merged; sentences come under "text"."""
    found: dict[str, Any] = {"isError": result.get("isError", False)}
    for block in result.get("content", []):
        try:
            value = json.loads(block.get("text", ""))
        except ValueError:
            found["text"] = block.get("text")
            continue
        found.update(value if isinstance(value, dict) else {"text": block["text"]})
    return found


async def tool_names(caller: Caller) -> list[str]:
    return [tool["name"] for tool in (await caller.ask("tools/list"))["tools"]]


class HttpSession:
    """A caller of the 2025 generation over HTTP."""

    def __init__(self, http: httpx2.AsyncClient, url: str, token: str | None = None) -> None:
        self.headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self._http, self._url = http, url
        self._ids = itertools.count(1)

    async def open(self, capabilities: Mapping[str, Any]) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "bare", "version": "1"},
        }
        await self.ask("initialize", params)
        await self.notify("notifications/initialized")

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        body = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        await self._http.post(self._url, json=body, headers=self.headers)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        async with self._http.stream("POST", self._url, json=body, headers=self.headers, timeout=TIMEOUT_S) as reply:
            if "mcp-session-id" in reply.headers:
                self.headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
            async for message in messages(reply):
                if message.get("id") == number and "method" not in message:
                    return result_of(message)
                if "method" in message and "id" in message:
                    await self._answer(message)
        raise AssertionError(f"{method} was not answered")

    async def _answer(self, message: Mapping[str, Any]) -> None:
        self.asked.append(dict(message))
        body = {"jsonrpc": "2.0", "id": message["id"], "result": self.answers[message["method"]]}
        await self._http.post(self._url, json=body, headers=self.headers)


class HttpStateless:
    """A caller of the 2026 generation over HTTP."""

    def __init__(self, http: httpx2.AsyncClient, url: str, capabilities: Mapping[str, Any], client: str) -> None:
        self._http, self._url, self._capabilities, self._client = http, url, capabilities, client
        self._ids = itertools.count(1)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        meta = {
            f"{PREFIX}protocolVersion": "2026-07-28",
            f"{PREFIX}clientCapabilities": self._capabilities,
            f"{PREFIX}clientInfo": {"name": "bare", "version": "1"},
            "taskgate/client": self._client,
        }
        given = dict(params or {})
        body = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {**given, "_meta": {**meta, **given.get("_meta", {})}},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }
        name = given.get("name") or given.get("uri") or given.get("taskId")
        if name:
            headers["Mcp-Name"] = name
        async with self._http.stream("POST", self._url, json=body, headers=headers, timeout=TIMEOUT_S) as reply:
            async for message in messages(reply):
                if message.get("id") == number:
                    return result_of(message)
        raise AssertionError(f"{method} was not answered")


class Stdio:
    """A caller over the standard streams of `taskgate stdio`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def open(self, capabilities: Mapping[str, Any]) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "bare", "version": "1"},
        }
        await self.ask("initialize", params)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        try:
            return result_of(await asyncio.wait_for(answer, TIMEOUT_S))
        finally:
            del self._waiting[number]

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            waiting = self._waiting.get(message.get("id"))
            if waiting is not None and "method" not in message and not waiting.done():
                waiting.set_result(message)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(AssertionError("the gateway ended before it answered"))

    async def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), TIMEOUT_S)
        await self._reading


def result_of(message: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in message:
        raise Failed(message["error"])
    result: dict[str, Any] = message["result"]
    return result


@asynccontextmanager
async def http_session(
    gateway: Gateway, scope: str = "", capabilities: Mapping[str, Any] | None = None
) -> AsyncIterator[HttpSession]:
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http:
        caller = HttpSession(http, f"{gateway.url}/{scope}" if scope else gateway.url)
        await caller.open(capabilities or {})
        yield caller


@asynccontextmanager
async def http_stateless(
    gateway: Gateway, scope: str = "", capabilities: Mapping[str, Any] | None = None, client: str = "one"
) -> AsyncIterator[HttpStateless]:
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http:
        url = f"{gateway.url}/{scope}" if scope else gateway.url
        yield HttpStateless(http, url, capabilities or {}, client)


@asynccontextmanager
async def stdio_session(
    folder: Path, scope: str = "default", capabilities: Mapping[str, Any] | None = None, more: Sequence[str] = ()
) -> AsyncIterator[Stdio]:
    """A separate gateway on standard streams; its configuration is in the folder."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "taskgate",
            "stdio",
            "-c",
            str(folder / "taskgate.yaml"),
            "--scope",
            scope,
            "--alone",
            *more,
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=(folder / "stdio.log").open("ab"),
        env={**os.environ, "TASKGATE_STATE_DIR": str(folder / "state")},
        limit=16 * 1024 * 1024,
    )
    caller = Stdio(process)
    try:
        await caller.open(capabilities or {})
        yield caller
    finally:
        await caller.close()
