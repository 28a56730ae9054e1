"""A caller at the level of the wire, in both generations: requests are sent exactly as the test writes them, and replies are
returned unchanged."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.harness.plain_http import NO_TLS

STATELESS = "2026-07-28"
META = "io.modelcontextprotocol/"


@dataclass(slots=True)
class Answer:
    status: int
    headers: httpx2.Headers
    messages: list[dict[str, Any]]

    @property
    def reply(self) -> dict[str, Any]:
        """The response itself, without the messages before it."""
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.reply, self.reply
        found: dict[str, Any] = self.reply["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.reply, self.reply
        found: dict[str, Any] = self.reply["error"]
        return found


def read_messages(reply: httpx2.Response) -> list[dict[str, Any]]:
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        events = [block for block in reply.text.replace("\r\n", "\n").split("\n\n") if block.strip()]
        datas = [
            "\n".join(line[5:].strip() for line in block.split("\n") if line.startswith("data:")) for block in events
        ]
        return [json.loads(data) for data in datas if data]
    return [json.loads(reply.content)] if reply.content else []


@dataclass(slots=True)
class RawClient:
    """One caller. `open` makes a stateful session; without it requests are stateless if `stateless` is set."""

    url: str
    stateless: bool = False
    capabilities: dict[str, Any] = field(default_factory=dict)
    version: str = "2025-11-25"
    headers: dict[str, str] = field(default_factory=dict)
    http: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(timeout=60, verify=NO_TLS))
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def __aenter__(self) -> RawClient:
        if not self.stateless:
            await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def open(self) -> Answer:
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": self.version}
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def post(self, message: Any, headers: dict[str, str] | None = None) -> Answer:
        return await self.post_bytes(json.dumps(message).encode(), headers)

    async def post_bytes(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **self.headers}
        reply = await self.http.post(self.url, content=body, headers={**sent, **(headers or {})})
        return Answer(reply.status_code, reply.headers, read_messages(reply))

    async def request(self, method: str, params: dict[str, Any] | None = None, **more: str) -> Answer:
        """One request; a stateless one gets its envelope and headers."""
        params = dict(params or {})
        headers = dict(more)
        if self.stateless:
            meta = {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": self.capabilities}
            params["_meta"] = {**meta, **params.get("_meta", {})}
            headers = {"mcp-protocol-version": STATELESS, "mcp-method": method, **headers}
            name = params.get("name") or params.get("uri") or params.get("taskId")
            if name is not None:
                headers["mcp-name"] = name
        return await self.post(
            {"jsonrpc": "2.0", "id": next(self.numbers), "method": method, "params": params}, headers
        )

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Answer:
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}, **more})
