"""A bare MCP caller over HTTP, in either generation: it sends exactly what a test wrote and returns exactly what it
received, without an SDK, so a test can see headers, status codes, event ids and every message of a stream. Questions that
arrive during a request are answered by the function `answer`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.harness.plain_http import NO_TLS

Wire = dict[str, Any]
Answer = Callable[[str, Wire], Wire]
STATEFUL, STATELESS = "2025-11-25", "2026-07-28"
ENVELOPE = "io.modelcontextprotocol/"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


@dataclass(slots=True)
class Reply:
    """One HTTP answer: its status and headers, and every JSON-RPC message in its body."""

    status: int
    headers: dict[str, str]
    messages: list[Wire] = field(default_factory=list)
    last_event: str | None = None
    retry_ms: int = 0

    @property
    def last(self) -> Wire:
        return self.messages[-1] if self.messages else {}

    @property
    def result(self) -> Wire:
        assert "result" in self.last, f"wanted a result, got HTTP {self.status} {self.last}"
        found: Wire = self.last["result"]
        return found

    @property
    def error(self) -> Wire:
        assert "error" in self.last, f"wanted an error, got HTTP {self.status} {self.last}"
        found: Wire = self.last["error"]
        return found


def refuse(method: str, params: Wire) -> Wire:
    raise AssertionError(f"the caller was asked {method}, and the test has no answer for it")


@dataclass(slots=True)
class WireCaller:
    """What both generations share: posting, reading streams, counting ids."""

    url: str
    http: httpx2.AsyncClient
    capabilities: Wire = field(default_factory=dict)
    answer: Answer = refuse
    headers: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, Wire] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def post(self, message: Any, headers: dict[str, str] | None = None) -> Reply:
        """Send one message, or raw bytes, and read the answer to its end."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        basic = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        sent = basic | self.headers | (headers or {})
        async with self.http.stream("POST", self.url, content=body, headers=sent) as response:
            reply = Reply(response.status_code, dict(response.headers))
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await self.follow(response, reply)
            elif raw := await response.aread():
                reply.messages.append(json.loads(raw))
        if reply.last_event is not None and not any("result" in one or "error" in one for one in reply.messages):
            await self.resume(reply)
        return reply

    async def follow(self, response: Any, reply: Reply) -> None:
        """Read a stream to its end, and answer the requests on it."""
        async for event in events(response):
            reply.last_event = event.id or reply.last_event
            reply.retry_ms = event.retry_ms or reply.retry_ms
            if event.message is not None:
                reply.messages.append(event.message)
                await self.attend(event.message)

    async def resume(self, reply: Reply) -> None:
        """Resume a stream that the server closed before its response, after the pause that it requested."""
        await asyncio.sleep(reply.retry_ms / 1000)
        headers = self.headers | {"accept": "text/event-stream", "last-event-id": reply.last_event or ""}
        async with self.http.stream("GET", self.url, headers=headers) as response:
            async for event in events(response):
                if event.message is not None:
                    reply.messages.append(event.message)
                    await self.attend(event.message)
                    if "method" not in event.message:
                        return

    async def attend(self, message: Wire) -> None:
        """Answer a request on a stream; a stateless caller never receives one."""
        if "method" in message and "id" in message:
            result = self.answer(message["method"], message.get("params") or {})
            await self.post({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def list_tools(self) -> list[Wire]:
        """The tools, stored for the arguments that a stateless caller repeats in headers."""
        tools: list[Wire] = (await self.request("tools/list")).result["tools"]
        self.schemas.update({tool["name"]: tool["inputSchema"] for tool in tools})
        return tools

    async def call(self, tool: str, **arguments: Any) -> Wire:
        return (await self.request("tools/call", name=tool, arguments=arguments)).result

    async def request(self, method: str, **params: Any) -> Reply:
        raise NotImplementedError


class StatefulCaller(WireCaller):
    """A caller of 2025-11-25, with a session."""

    async def open(self, version: str = STATEFUL) -> Wire:
        info = {"name": "wire", "version": "1"}
        params = {"protocolVersion": version, "capabilities": self.capabilities, "clientInfo": info}
        reply = await self.request("initialize", **params)
        self.headers["mcp-protocol-version"] = reply.result["protocolVersion"]
        if session := reply.headers.get("mcp-session-id"):
            self.headers["mcp-session-id"] = session
        await self.notify("notifications/initialized")
        return reply.result

    async def request(self, method: str, **params: Any) -> Reply:
        return await self.post({"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params})

    async def notify(self, method: str, **params: Any) -> Reply:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[asyncio.Queue[Wire]]:
        """The standalone stream; its messages arrive in the queue, and questions on it are answered."""
        arrived: asyncio.Queue[Wire] = asyncio.Queue()
        headers = self.headers | {"accept": "text/event-stream"}

        async def follow(response: Any) -> None:
            async for event in events(response):
                if event.message is not None:
                    arrived.put_nowait(event.message)
                    await self.attend(event.message)

        async with self.http.stream("GET", self.url, headers=headers) as response:
            follower = asyncio.create_task(follow(response))
            try:
                yield arrived
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)


class StatelessCaller(WireCaller):
    """A caller of 2026-07-28: every request carries its envelope, and questions are answered by repeating the request."""

    async def request(self, method: str, **params: Any) -> Reply:
        """Send one request, and again with answers as long as the server needs input."""
        reply = await self.once(method, **params)
        while reply.last.get("result", {}).get("resultType") == "input_required":
            asked = reply.result.get("inputRequests", {})
            answers = {key: self.answer(one["method"], one.get("params") or {}) for key, one in asked.items()}
            state = {"requestState": reply.result["requestState"]} if "requestState" in reply.result else {}
            reply = await self.once(method, **params, inputResponses=answers, **state)
        return reply

    async def once(self, method: str, **params: Any) -> Reply:
        meta = {
            ENVELOPE + "protocolVersion": STATELESS,
            ENVELOPE + "clientCapabilities": self.capabilities,
            ENVELOPE + "clientInfo": {"name": "wire", "version": "1"},
            **params.pop("_meta", {}),
        }
        message = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": {**params, "_meta": meta}}
        return await self.post(message, self.mirrored(method, params))

    def mirrored(self, method: str, params: Wire) -> dict[str, str]:
        """The headers that repeat parts of the body."""
        headers = {"mcp-protocol-version": STATELESS, "mcp-method": method}
        name = params.get("taskId") if method in TASK_METHODS else params.get(NAMED.get(method, ""))
        if method == "tools/call":
            headers |= param_headers(self.schemas.get(str(name), {}), params.get("arguments") or {})
        return headers | ({"mcp-name": name} if isinstance(name, str) else {})


def param_headers(schema: Wire, arguments: Wire) -> dict[str, str]:
    """`Mcp-Param-*` for the arguments that their schema marks with `x-mcp-header`."""
    found = {}
    for name, one in (schema.get("properties") or {}).items():
        value = arguments.get(name)
        if isinstance(one, dict) and "x-mcp-header" in one and value is not None:
            found[f"mcp-param-{one['x-mcp-header']}"] = header_text(value)
    return found


def header_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@dataclass(frozen=True, slots=True)
class Event:
    """One frame of an event stream; priming and keep-alive frames carry no message."""

    id: str | None
    retry_ms: int | None
    message: Wire | None


async def events(response: Any) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = f"{fields[name]}\n{value.lstrip()}" if name == "data" and name in fields else value.lstrip()
        elif fields:
            retry = int(fields["retry"]) if "retry" in fields else None
            yield Event(fields.get("id"), retry, json.loads(fields["data"]) if fields.get("data") else None)
            fields = {}


@asynccontextmanager
async def caller(
    url: str, *, stateless: bool = False, capabilities: Wire | None = None, answer: Answer = refuse
) -> AsyncIterator[Any]:
    """A caller of either generation; the stateful one has completed its handshake."""
    async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http:
        kind = StatelessCaller if stateless else StatefulCaller
        made = kind(url, http, capabilities or {}, answer)
        if isinstance(made, StatefulCaller):
            await made.open()
        yield made
