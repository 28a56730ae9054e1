"""Callers of both generations on in-memory connections. Requests are sent exactly as the test writes them, and replies are
returned unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.virtual_time.http11 import EventReader, Reply, Wire, body_parts, read_head, request_bytes
from tests.virtual_time.waiting import TIMEOUT_S, the_loop, until, within

STATEFUL, STATELESS = "2025-11-25", "2026-07-28"
META = "io.modelcontextprotocol/"
TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
"""A 2025 caller's capability is its server's; clients that can follow tasks send `task` with the call."""
TASKS_EXTENSION: dict[str, Any] = {"extensions": {f"{META}tasks": {}}}
"""What a 2026 caller declares to be given tasks."""
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
Answering = Callable[[Wire], Wire | None]
"""The answer to a question with these params; None leaves it open."""


_OPEN: set[asyncio.Task[None]] = set()


class Exchange:
    """One HTTP request under way, on a connection of its own."""

    def __init__(self, answer: Callable[[Wire], None] | None = None) -> None:
        self.reply = Reply()
        self.began = the_loop().time()
        self.ended: float | None = None
        self.headed = asyncio.Event()
        self._answer = answer
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self, host: str, port: int, data: bytes) -> Exchange:
        self._reading = asyncio.create_task(self._read(host, port, data), name="caller waits for an answer")
        # A test may drop a call that is still open: collected as garbage, its connection would be closed.
        _OPEN.add(self._reading)
        self._reading.add_done_callback(_OPEN.discard)
        return self

    async def _read(self, host: str, port: int, data: bytes) -> None:
        reader, self._writer = await asyncio.open_connection(host, port)
        self._writer.write(data)
        try:
            self.reply.status, self.reply.headers = await read_head(reader)
            self.headed.set()
            events = EventReader(self.reply)
            is_stream = self.reply.headers.get("content-type", "").startswith("text/event-stream")
            async for part in body_parts(reader, self.reply.headers):
                self.reply.body += part
                for message in events.feed(part) if is_stream else ():
                    self._take(message)
            if (
                self.reply.body
                and not is_stream
                and self.reply.headers.get("content-type", "").startswith("application/json")
            ):
                read = json.loads(self.reply.body)
                self.reply.messages += read if isinstance(read, list) else [read]
        finally:
            self.ended = the_loop().time()
            self._writer.close()

    def _take(self, message: Wire) -> None:
        self.reply.messages.append(message)
        if self._answer is not None and "method" in message and "id" in message:
            self._answer(message)

    @property
    def is_done(self) -> bool:
        return self._reading is not None and self._reading.done()

    @property
    def took(self) -> float:
        """Virtual seconds from sending to the last byte of the answer."""
        assert self.ended is not None, "it is not over"
        return self.ended - self.began

    async def done(self, seconds: float = TIMEOUT_S) -> Reply:
        """The whole answer. Raises what broke the connection, if something did."""
        assert self._reading is not None
        await within(asyncio.shield(self._reading), "the answer", seconds)
        return self.reply

    async def head(self) -> Reply:
        """The answer as soon as its status and headers are there."""
        await within(self.headed.wait(), "the head of an answer")
        return self.reply

    async def message(self, number: int, seconds: float = TIMEOUT_S) -> Wire:
        """The message with this number (from 0), as soon as it is there."""
        await until(lambda: len(self.reply.messages) > number or self.is_done, f"message {number}", seconds)
        assert len(self.reply.messages) > number, f"the stream ended after {self.reply.messages}"
        return self.reply.messages[number]

    async def disconnect(self) -> None:
        """Close the connection without waiting for the answer."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        if self._writer is not None:
            self._writer.transport.abort()


class Caller:
    """What both generations share. `answers` has the answer for each method of a question; an unknown question fails."""

    stateless = False

    def __init__(
        self,
        address: tuple[str, int],
        path: str = "/mcp",
        *,
        capabilities: Mapping[str, Any] | None = None,
        client: str = "test-client",
        headers: Mapping[str, str] | None = None,
        answers: Mapping[str, Answering | Wire] | None = None,
    ) -> None:
        self.host, self.port = address
        self.path = path
        self.capabilities = dict(capabilities or {})
        self.client = client
        self.headers = {"host": f"{self.host}:{self.port}", **(headers or {})}
        self.answers = dict(answers or {})
        self.asked: list[Wire] = []
        """Every question that came, in order."""
        self._ids = itertools.count(1)
        self._answering: set[asyncio.Task[Any]] = set()

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Exchange:
        """Begin one HTTP exchange with exactly these headers and bytes."""
        data = request_bytes(method, path, headers, body)
        return Exchange(self._answer_soon).start(self.host, self.port, data)

    def post(self, message: Any, headers: Mapping[str, str] | None = None) -> Exchange:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        basic = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        return self.send("POST", self.path, {**basic, **self.headers, **(headers or {})}, body)

    def begin(self, method: str, params: Wire | None = None, headers: Mapping[str, str] | None = None) -> Exchange:
        """Send a request and do not wait for its answer."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        return self.post(message, headers)

    async def request(self, method: str, params: Wire | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        return await self.begin(method, params, headers).done()

    def begin_call(self, tool: str, arguments: Wire | None = None, **more: Any) -> Exchange:
        return self.begin("tools/call", {"name": tool, "arguments": arguments or {}, **more})

    async def call(self, tool: str, arguments: Wire | None = None, **more: Any) -> Reply:
        return await self.begin_call(tool, arguments, **more).done()

    async def tools(self) -> list[Wire]:
        found: list[Wire] = (await self.request("tools/list")).result["tools"]
        return found

    async def call_json(self, tool: str, **arguments: Any) -> Wire:
        """The structured result of one of the gateway's own tools."""
        result = (await self.call(tool, arguments)).result
        if "structuredContent" in result:
            found: Wire = result["structuredContent"]
        else:
            found = json.loads(result["content"][0]["text"])
        return found

    def _answer_soon(self, message: Wire) -> None:
        self.asked.append(message)
        answer = self.answers.get(message["method"])
        assert answer is not None, f"the caller was asked {message}, and the test has no answer for it"
        result = answer(message.get("params") or {}) if callable(answer) else answer
        if result is None:
            return
        exchange = self.post({"jsonrpc": "2.0", "id": message["id"], "result": result})
        answering = asyncio.create_task(exchange.done())
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def listen(self, *args: Any, **notifications: Any) -> Exchange:
        """The stream of what happens; open when this returns."""
        raise NotImplementedError

    async def close(self) -> Reply:
        """End the session. Only a caller of 2025 has one."""
        raise NotImplementedError


class Caller2025(Caller):
    """A caller with a session."""

    version = STATEFUL

    async def open(self) -> Reply:
        info = {"name": self.client, "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": info}
        reply = await self.request("initialize", params)
        self.headers["mcp-session-id"] = reply.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = reply.result["protocolVersion"]
        await self.notify("notifications/initialized")
        return reply

    async def notify(self, method: str, params: Wire | None = None) -> Reply:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}}).done()

    async def listen(self, last_event_id: str | None = None) -> Exchange:
        """The session's own stream (GET), open when this returns."""
        headers = {**self.headers, "accept": "text/event-stream"}
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        exchange = self.send("GET", self.path, headers)
        await exchange.head()
        return exchange

    async def close(self) -> Reply:
        return await self.send("DELETE", self.path, self.headers).done()


class Caller2026(Caller):
    """A caller that declares its capabilities in every request."""

    stateless = True

    def begin(self, method: str, params: Wire | None = None, headers: Mapping[str, str] | None = None) -> Exchange:
        params = dict(params or {})
        envelope = {
            f"{META}protocolVersion": STATELESS,
            f"{META}clientCapabilities": self.capabilities,
            f"{META}clientInfo": {"name": self.client, "version": "1"},
        }
        params["_meta"] = {**envelope, **params.get("_meta", {})}
        sent = {"mcp-protocol-version": STATELESS, "mcp-method": method}
        name = params.get("taskId") if method.startswith("tasks/") else params.get(_NAMED.get(method, ""))
        if isinstance(name, str):
            sent["mcp-name"] = name
        return super().begin(method, params, {**sent, **(headers or {})})

    async def listen(self, **notifications: Any) -> Exchange:
        """`subscriptions/listen` for these notifications; the stream is open when this returns."""
        exchange = self.begin("subscriptions/listen", {"notifications": notifications})
        await exchange.head()
        return exchange
