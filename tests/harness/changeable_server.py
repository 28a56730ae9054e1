"""An MCP server over HTTP inside the test: what it offers and how it misbehaves are attributes that a test changes.

It implements 2025-11-25 (optionally 2026-07-28) with JSON replies, has no stream for GET, and keeps sessions only if configured to:
the simplest server that is deployed in practice, which gives its clients the least information.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


@dataclass(slots=True)
class ChangeableServer:
    capabilities: dict[str, Any] = field(default_factory=lambda: {"tools": {}})
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By method, for example {"tools/list": [tool("echo")]}."""
    answers: dict[str, Handler] = field(default_factory=dict)
    """How other methods are answered, by method."""
    hanging: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    """Methods whose answer is composed when they are received, and sent after this many seconds."""
    stateless: bool = False
    session: str | None = None
    lost_status: int = 404
    instructions: str | None = None
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    port: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def count(self, method: str) -> int:
        return sum(1 for received, _ in self.requests if received == method)

    async def until_received(self, method: str, times: int) -> None:
        async with asyncio.timeout(120):
            while self.count(method) < times:
                self._woken.clear()
                await self._woken.wait()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # A disconnect of the gateway and the end of the test are expected.
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if not head[0].startswith("POST"):
            return await self._reply(writer, 405, None)
        message = json.loads(body)
        method = message.get("method", "")
        self.requests.append((method, message.get("params") or {}))
        self._woken.set()
        if method in self.hanging:
            await asyncio.Event().wait()
        if self.session is not None and method != "initialize" and headers.get("mcp-session-id") != self.session:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return await self._reply(writer, self.lost_status, {"jsonrpc": "2.0", "id": None, "error": error})
        if "id" not in message:
            return await self._reply(writer, 202, None)
        answer = {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)}
        await asyncio.sleep(self.slow.get(method, 0))
        return await self._reply(writer, 200, answer)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = self._answer_of(message)
        if self.stateless and "result" in answer:
            return {"result": {"resultType": "complete", **answer["result"]}}
        return answer

    def _answer_of(self, message: dict[str, Any]) -> dict[str, Any]:
        method, params = message["method"], message.get("params") or {}
        if method in self.failing:
            return {"error": {"code": -32603, "message": "it broke"}}
        if method == "server/discover" and self.stateless:
            return {"result": {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities}}
        if method == "initialize" and not self.stateless:
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": self.capabilities,
                "serverInfo": {"name": "changeable", "version": "1"},
            }
            return {"result": {**result, **({"instructions": self.instructions} if self.instructions else {})}}
        if method == "ping":
            return {"result": {}}
        if method in self.lists:
            key = {"resources/templates/list": "resourceTemplates"}.get(method, method.partition("/")[0])
            return {"result": {key: self.lists[method]}}
        if method in self.answers:
            return self.answers[method](params)
        if method == "tools/call":
            return {"result": {"content": [{"type": "text", "text": f"ran {params['name']}"}]}}
        return {"error": {"code": -32601, "message": "Method not found"}}

    async def _reply(self, writer: asyncio.StreamWriter, status: int, message: dict[str, Any] | None) -> bool:
        body = json.dumps(message).encode() if message is not None else b""
        session = f"mcp-session-id: {self.session}\r\n" if self.session is not None else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{session}content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return True

    async def stop(self) -> None:
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


@contextlib.asynccontextmanager
async def changeable(**attributes: Any) -> AsyncIterator[ChangeableServer]:
    server = ChangeableServer(**attributes)
    listening = await asyncio.start_server(server.serve_one, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
