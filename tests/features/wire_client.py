"""Bare callers over HTTP that record everything they receive, in both generations, without an SDK."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.replies import messages

TIMEOUT_S = 120.0
PREFIX = "io.modelcontextprotocol/"
ODD = str(Path(__file__).resolve().parent.parent / "peers" / "odd_server.py")
Wire = dict[str, Any]


def odd_server(**more: Any) -> Wire:
    """The `servers` entry of the server that breaks rules."""
    return {"command": sys.executable, "args": [ODD], "instances": "per_session", **more}


def config(**more: Any) -> Wire:
    server = more.pop("server", {})
    scope = {"default_servers": ["*"], "names": "plain", **more.pop("scope", {})}
    return {"schema": 1, "servers": {"odd": odd_server(**server)}, "scopes": {"default": scope}, **more}


class Refused(Exception):
    """A JSON-RPC error, as received."""

    def __init__(self, error: Wire) -> None:
        super().__init__(json.dumps(error))
        self.error = error

    @property
    def code(self) -> int:
        return int(self.error["code"])

    @property
    def kind(self) -> str:
        return str(self.error["data"]["error_type"])

    @property
    def message(self) -> str:
        return str(self.error["message"])

    @property
    def meaning(self) -> Wire:
        """The error without the id of its request."""
        facts = {name: value for name, value in self.error["data"].items() if name != "correlation_id"}
        return {**self.error, "data": facts}

    def names(self, members: Iterable[str]) -> bool:
        """Whether the message names these members of the request; its wording is free."""
        return all(f'"{member}"' in self.message for member in members)


class WireClient:
    """One caller. `received` are the notifications in order, `answers` are the replies to questions."""

    def __init__(self, http: httpx2.AsyncClient, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.headers = {"Accept": "application/json, text/event-stream", **(headers or {})}
        self.received: list[Wire] = []
        self.asked: list[Wire] = []
        self.answers: dict[str, Any] = {}
        self.news = asyncio.Event()
        self._http, self._url = http, url
        self._ids = itertools.count(1)

    async def open(self, capabilities: Mapping[str, Any], name: str = "bare") -> Wire:
        self.headers["MCP-Protocol-Version"] = "2025-11-25"
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": dict(capabilities),
            "clientInfo": {"name": name, "version": "1"},
        }
        result = await self.ask("initialize", params)
        await self.notify("notifications/initialized")
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        body = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        await self._http.post(self._url, json=body, headers=self.headers)

    def next_id(self) -> int:
        return next(self._ids)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, number: Any = None) -> Wire:
        """The result of one request; raises Refused for an error."""
        answer = await self.exchange(method, params, number)
        if answer is None:
            raise AssertionError(f"{method} was not answered")
        if "error" in answer:
            raise Refused(answer["error"])
        return dict(answer["result"])

    async def exchange(self, method: str, params: Mapping[str, Any] | None = None, number: Any = None) -> Wire | None:
        number = self.next_id() if number is None else number
        body, headers = self.envelope(method, dict(params or {}), number)
        async with self._http.stream("POST", self._url, json=body, headers=headers, timeout=TIMEOUT_S) as reply:
            if "mcp-session-id" in reply.headers:
                self.headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
            async for message in messages(reply):
                if message.get("id") == number and "method" not in message:
                    return message
                await self.take(message)
        return None

    def envelope(self, method: str, params: Wire, number: Any) -> tuple[Wire, Mapping[str, str]]:
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}, self.headers

    async def take(self, message: Wire) -> None:
        if "id" not in message:
            self.received.append(message)
            self.news.set()
            return
        self.asked.append(message)
        answer = self.answers[message["method"]]
        if callable(answer):
            answer = await answer(message)
        if answer is not None:
            body = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
            await self._http.post(self._url, json=body, headers=self.headers)

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Wire:
        return await self.ask("tools/call", {"name": name, "arguments": dict(arguments or {}), **more})

    async def call_json(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The result of a tool of the odd server, as JSON."""
        return json.loads((await self.call(name, arguments, **more))["content"][0]["text"])

    def messages_of(self, method: str) -> list[Wire]:
        return [message["params"] for message in self.received if message["method"] == method]

    async def wait_for_message(self, method: str, wanted: Callable[[Wire], bool] = lambda _params: True) -> Wire:
        """Wait for a notification."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for params in self.messages_of(method):
                    if wanted(params):
                        return params
                self.news.clear()
                await self.news.wait()

    async def listen(self) -> None:
        """Read the standalone stream until cancelled."""
        async with self._http.stream("GET", self._url, headers=self.headers, timeout=None) as reply:
            async for message in messages(reply):
                await self.take(message)


class StatelessClient(WireClient):
    """A caller of the 2026 generation."""

    capabilities: Wire

    def envelope(self, method: str, params: Wire, number: Any) -> tuple[Wire, Mapping[str, str]]:
        meta = {
            f"{PREFIX}protocolVersion": "2026-07-28",
            f"{PREFIX}clientCapabilities": self.capabilities,
            f"{PREFIX}clientInfo": {"name": "bare", "version": "1"},
            **params.get("_meta", {}),
        }
        headers = {**self.headers, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        name = params.get("name") or params.get("uri") or params.get("taskId")
        if name:
            headers["Mcp-Name"] = name
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}, headers


@asynccontextmanager
async def session(
    gateway: Gateway, capabilities: Mapping[str, Any] | None = None, *, token: str | None = None, listen: bool = False
) -> AsyncIterator[WireClient]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http:
        client = WireClient(http, gateway.url, headers)
        await client.open(capabilities or {})
        listening = asyncio.create_task(client.listen()) if listen else None
        try:
            yield client
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


@asynccontextmanager
async def stateless(
    gateway: Gateway, capabilities: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[StatelessClient]:
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http:
        client = StatelessClient(http, gateway.url, headers)
        client.capabilities = dict(capabilities or {})
        yield client


async def refused(work: Awaitable[Any]) -> Refused:
    """The error that this ends with."""
    try:
        done = await work
    except Refused as problem:
        return problem
    raise AssertionError(f"it was not refused but answered with {done}")
