"""A bare caller of the gateway in either generation, so that a test sees exactly what goes over the wire.

`ScopeClient` opens a session or stream as its generation does, lists, calls and receives notifications. It asserts nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

SERVER = Path(__file__).with_name("tool_server.py")
STATEFUL, STATELESS = "2025-11-25", "2026-07-28"
GENERATIONS = (STATEFUL, STATELESS)
LIST_CHANGED = "notifications/tools/list_changed"
_META = "io.modelcontextprotocol/"


def server(name: str, *tools: str, **more: Any) -> dict[str, Any]:
    """The `servers` entry of an upstream with these tools; one process for all callers."""
    return {"command": sys.executable, "args": [str(SERVER), name, *tools], "instances": "shared", **more}


def scope(*servers: str, **more: Any) -> dict[str, Any]:
    return {"default_servers": list(servers), "helper_tools": "never", **more}


@dataclass(frozen=True, slots=True)
class ScopeReply:
    """One answer: the HTTP status and headers, and the JSON-RPC message."""

    status: int
    headers: Mapping[str, str]
    message: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        result: dict[str, Any] = self.message["result"]
        return result

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.message, self.message
        error: dict[str, Any] = self.message["error"]
        return error

    @property
    def text(self) -> str:
        return str(self.result["content"][0]["text"])


@dataclass(slots=True)
class ScopeClient:
    url: str
    version: str
    http: httpx2.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def open(self, meta: dict[str, Any] | None = None) -> ScopeReply | None:
        """Initialize, where the generation has such a thing."""
        if self.version == STATELESS:
            return None
        params: dict[str, Any] = {
            "protocolVersion": self.version,
            "capabilities": {},
            "clientInfo": {"name": "talker", "version": "1"},
        }
        reply = await self.ask("initialize", {**params, "_meta": meta} if meta else params)
        if "mcp-session-id" in reply.headers:
            self.headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self.http.post(self.url, json=note, headers=self._headers())
        return reply

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> ScopeReply:
        body = {"jsonrpc": "2.0", "id": next(self.numbers), "method": method, "params": self._params(params or {})}
        reply = await self.http.post(self.url, json=body, headers=self._headers(method, params or {}))
        text = reply.text
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[6:] for line in text.splitlines() if line.startswith("data: ") and '"id"' in line][-1]
        return ScopeReply(reply.status_code, reply.headers, json.loads(text))

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.ask("tools/list")).result["tools"]]

    async def call(self, name: str, /, **arguments: Any) -> ScopeReply:
        return await self.ask("tools/call", {"name": name, "arguments": arguments})

    @asynccontextmanager
    async def listening(self, *methods: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when one of these notifications arrives; the stream is open from the start."""
        received, opened = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(self._listen(methods, received, opened))
        try:
            await asyncio.wait_for(opened.wait(), 120)
            yield received
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self, methods: tuple[str, ...], received: asyncio.Event, opened: asyncio.Event) -> None:
        if self.version == STATEFUL:
            request = self.http.stream("GET", self.url, headers={**self._headers(), "Accept": "text/event-stream"})
        else:
            method = "subscriptions/listen"
            params = self._params({"notifications": {"toolsListChanged": True}})
            body = {"jsonrpc": "2.0", "id": next(self.numbers), "method": method, "params": params}
            request = self.http.stream("POST", self.url, json=body, headers=self._headers(method))
        async with request as reply:
            if self.version == STATEFUL:
                opened.set()
            async for line in reply.aiter_lines():
                opened.set()
                if any(f'"{method}"' in line for method in methods):
                    received.set()

    def _params(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.version == STATEFUL:
            return params
        info = {"name": "talker", "version": "1"}
        envelope = {f"{_META}protocolVersion": self.version, f"{_META}clientCapabilities": {}}
        return {**params, "_meta": {**envelope, f"{_META}clientInfo": info}}

    def _headers(self, method: str = "", params: Mapping[str, Any] | None = None) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream", **self.headers}
        if self.version == STATELESS:
            headers |= {"MCP-Protocol-Version": self.version, "Mcp-Method": method}
            if "name" in (params or {}):
                headers["Mcp-Name"] = (params or {})["name"]
        return headers


@asynccontextmanager
async def unopened_client(
    url: str, version: str, token: str | None = None, **headers: str
) -> AsyncIterator[ScopeClient]:
    """A caller that is not open yet."""
    chosen = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        chosen["Authorization"] = f"Bearer {token}"
    limits = httpx2.Limits(max_connections=500)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as http:
        yield ScopeClient(url, version, http, chosen)


@asynccontextmanager
async def opened(url: str, version: str, token: str | None = None, **headers: str) -> AsyncIterator[ScopeClient]:
    async with unopened_client(url, version, token, **headers) as client:
        reply = await client.open()
        assert reply is None or "result" in reply.message, reply
        yield client
