"""A gateway with a noting upstream, wire-level callers of each generation, and people who decide through the API.

The callers send JSON-RPC over HTTP without a library, so that a test controls exactly what is sent. Expectations are in the tests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS

SERVER = Path(__file__).resolve().parent / "recording_server.py"
DEADLINE = 120.0
STATEFUL, STATELESS = "2025-11-25", "2026-07-28"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
URL: dict[str, Any] = {"elicitation": {"url": {}}}


def tool(name: str, description: str = "A tool.", **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": properties}}


TOOLS = [
    tool("read_it"),
    tool("drop_it"),
    tool("delete_it", path={"type": "string"}),
    tool("delete_two"),
    tool("pay_it", amount={"type": "integer"}),
    tool("export_all"),
]


def people(*names: str) -> list[dict[str, Any]]:
    """Tokens of approvers, who do not call; each token is the name with `-token` behind it."""
    return [person(name, "approver") for name in names]


def person(name: str, *roles: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
    return {"id": name, "sha256": digest, "roles": list(roles), "may_call": "approver" not in roles}


@dataclass(slots=True)
class Setup:
    gateway: Gateway
    notes: Path
    tools: Path
    http: httpx2.AsyncClient = field(repr=False)
    mode: str = "auto"

    def sent(self, method: str = "tools/call") -> list[dict[str, Any]]:
        """What reached the upstream, in order."""
        if not self.notes.exists():
            return []
        data = [json.loads(line) for line in self.notes.read_text().splitlines()]
        return [each["params"] for each in data if each["method"] == method]

    def describe(self, tools: list[dict[str, Any]]) -> None:
        self.tools.write_text(json.dumps(tools))

    @property
    def operator_token(self) -> str:
        return (self.gateway.state / "operator-token").read_text().strip()

    async def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        bearer = self.operator_token if token is None else token
        sent = {"authorization": f"Bearer {bearer}", **(headers or {})} if bearer else dict(headers or {})
        return await self.http.request(method, self.gateway.base + path, json=body, headers=sent, timeout=DEADLINE)

    async def open_approvals(self, count: int = 1) -> list[dict[str, Any]]:
        """The open approvals, as soon as there are that many."""

        async def enough() -> list[dict[str, Any]] | None:
            rows = (await self.api("GET", "/api/approvals")).json()
            return rows if len(rows) >= count else None

        return await eventually(enough)

    async def approve(self, approval_id: str, *, token: str | None = None, **text: Any) -> httpx2.Response:
        return await self.api("POST", f"/api/approvals/{approval_id}/approve", text, token=token)

    async def deny(self, approval_id: str, *, token: str | None = None, **text: Any) -> httpx2.Response:
        return await self.api("POST", f"/api/approvals/{approval_id}/deny", text, token=token)

    async def stateful(self, capabilities: Mapping[str, Any] | None = None, token: str | None = None) -> Stateful:
        caller = Stateful(self.http, self.gateway.url, dict(_bearer(token)))
        await caller.open(dict(capabilities or {}))
        return caller

    def stateless(self, capabilities: Mapping[str, Any] | None = None, token: str | None = None) -> Stateless:
        return Stateless(self.http, self.gateway.url, dict(capabilities or {}), dict(_bearer(token)))


def _bearer(token: str | None) -> Mapping[str, str]:
    return {"authorization": f"Bearer {token}"} if token is not None else {}


async def eventually(look: Any, within: float = DEADLINE) -> Any:
    """The first answer that is not None."""
    async with asyncio.timeout(within):
        while (found := await look()) is None:
            await asyncio.sleep(0.02)
    return found


def reply_in(response: httpx2.Response, request_id: int) -> dict[str, Any]:
    """The reply to a request, as a plain response or at the end of a stream."""
    if response.headers["content-type"].startswith("application/json"):
        return dict(response.json())
    for line in response.text.splitlines():
        if line.startswith("data:") and line != "data:":
            message = json.loads(line.removeprefix("data:"))
            if message.get("id") == request_id and "method" not in message:
                return dict(message)
    raise AssertionError(f"no reply in {response.text!r}")


class Stateful:
    """A caller of 2025-11-25."""

    def __init__(self, http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> None:
        self._http, self._url, self._count = http, url, 0
        self._headers = {"accept": "application/json, text/event-stream", **headers}

    async def open(self, capabilities: dict[str, Any]) -> None:
        params = {
            "protocolVersion": STATEFUL,
            "capabilities": capabilities,
            "clientInfo": {"name": "wire", "version": "1"},
        }
        response = await self._post("initialize", params)
        self.opened: dict[str, Any] = reply_in(response, self._count)["result"]
        self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self._headers["mcp-protocol-version"] = STATEFUL

    async def _post(self, method: str, params: Mapping[str, Any]) -> httpx2.Response:
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": dict(params)}
        return await self._http.post(self._url, json=message, headers=self._headers, timeout=60)

    async def stream(self, method: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """Every message of the reply, as it comes."""
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        async with self._http.stream("POST", self._url, json=message, headers=self._headers, timeout=60) as response:
            if response.headers["content-type"].startswith("application/json"):
                yield json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if line.startswith("data:") and line.removeprefix("data:").strip():
                    yield json.loads(line.removeprefix("data:"))

    async def respond(self, request_id: Any, result: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "id": request_id, "result": result}
        reply = await self._http.post(self._url, json=message, headers=self._headers, timeout=DEADLINE)
        assert reply.status_code == 202

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        response = await self._post(method, params)
        return reply_in(response, self._count) if response.status_code == 200 else {"status": response.status_code}

    async def call(self, name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        return await self.ask("tools/call", name=name, arguments=arguments or {}, **more)


class Stateless:
    """A caller of 2026-07-28: everything about it is in each request, also the name of its conversation."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, capabilities: dict[str, Any], headers: dict[str, str]
    ) -> None:
        self._http, self._url, self._count = http, url, 0
        self._capabilities, self._name = capabilities, uuid.uuid4().hex
        self._headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": STATELESS, **headers}

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        number = self._count
        meta = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": self._capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
            "taskgate/client": self._name,
        }
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        headers = {**self._headers, "mcp-method": method}
        name = params.get("name") or params.get("taskId") or params.get("uri")
        if name is not None:
            headers["mcp-name"] = name
        response = await self._http.post(self._url, json=message, headers=headers, timeout=60)
        return reply_in(response, number)

    async def call(self, name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        return await self.ask("tools/call", name=name, arguments=arguments or {}, **more)


RULES: list[dict[str, Any]] = [
    {"match": "drop_*", "action": "deny"},
    {"match": "delete_*", "action": "approve", "approval": "ops"},
    {"match": "resource:note://secret", "action": "approve", "approval": "ops"},
    {"match": "prompt:draft_*", "action": "approve", "approval": "ops"},
]


def config(folder: Path, **more: Any) -> dict[str, Any]:
    """A configuration with one noting server; `more` replaces whole sections."""
    server = {"command": sys.executable, "args": [str(SERVER), str(folder / "notes"), str(folder / "tools.json")]}
    base: dict[str, Any] = {
        "schema": 1,
        "servers": {"s": server},
        "governance": {"rules": RULES, "force_required": ["export_all"]},
        "approval": {"ops": {"channels": ["inbox"], "redact_fields": ["password"]}},
        "tokens": people("ann", "bob"),
        "auth": {"anonymous": "default"},
        "tasks": {"promote_after_ms": 20000},
    }
    return {**base, **more}


@asynccontextmanager
async def running_setup(folder: Path, tools: list[dict[str, Any]] = TOOLS, **more: Any) -> AsyncIterator[Setup]:
    (folder / "tools.json").write_text(json.dumps(tools))
    async with (
        running_gateway(config(folder, **more), folder) as gateway,
        httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http,
    ):
        yield Setup(gateway, folder / "notes", folder / "tools.json", http)
