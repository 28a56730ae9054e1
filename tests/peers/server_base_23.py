"""The base of our `mcp` 2.3 peer servers: one call, one registry, HTTP or stdio.

A tool is an async function of a `Call` that returns a wire dictionary. `Call.ask` hides how a question travels:
pushed as a request to a stateful client, or as `input_required` with a sealed state to a stateless one, where the
tool runs again with the answers. It is not an MCP framework; only the peer programs next to it use it, inside the
environment that has `mcp` 2.3.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventStore
from mcp.shared.exceptions import MCPError
from mcp_types import ServerCapabilities

warnings.filterwarnings("ignore", message=".*deprecated.*")

Wire = dict[str, Any]
ENVELOPE = "io.modelcontextprotocol/"
STATELESS = "2026-07-28"
INVALID_PARAMS = -32602
MISSING_CAPABILITY = -32021
NEVER_STALE: Wire = {"ttlMs": 60_000, "cacheScope": "public"}
SEAL_KEY = secrets.token_bytes(32)


class NeedsInput(Exception):
    """Raised inside a tool when a stateless caller has to answer first."""

    def __init__(self, requests: Wire, state: Wire) -> None:
        super().__init__("input required")
        self.requests, self.state = requests, state


@dataclass(slots=True)
class Call:
    """One tools/call or prompts/get as a tool sees it, in either generation."""

    context: Any
    params: Wire
    answered: Wire = field(default_factory=dict)
    asked: int = 0

    @property
    def arguments(self) -> Wire:
        return self.params.get("arguments") or {}

    @property
    def stateless(self) -> bool:
        return bool(self.context.protocol_version == STATELESS)

    @property
    def capabilities(self) -> Wire:
        if self.stateless:
            return (self.params.get("_meta") or {}).get(ENVELOPE + "clientCapabilities") or {}
        declared = self.context.session.client_capabilities
        return declared.model_dump(by_alias=True, exclude_none=True) if declared else {}

    async def ask(self, method: str, params: Wire) -> Wire:
        """Ask the caller one question and return its bare result."""
        return (await self.ask_all({f"q{self.asked + 1}": {"method": method, "params": params}}))[f"q{self.asked}"]

    async def ask_all(self, requests: dict[str, Wire]) -> Wire:
        self.asked += len(requests)
        self.require_capabilities(requests)
        if not self.stateless:
            asked = (self.push(request["method"], request["params"]) for request in requests.values())
            return dict(zip(requests, await asyncio.gather(*asked), strict=True))
        if missing := {key: request for key, request in requests.items() if key not in self.answered}:
            raise NeedsInput(missing, self.answered)
        return {key: self.answered[key] for key in requests}

    def require_capabilities(self, requests: dict[str, Wire]) -> None:
        needed = {request["method"].split("/")[0] for request in requests.values()}
        if missing := needed - set(self.capabilities):
            data = {"requiredCapabilities": {name: {} for name in sorted(missing)}}
            raise MCPError(
                MISSING_CAPABILITY if self.stateless else INVALID_PARAMS, "the client lacks a capability", data
            )

    async def push(self, method: str, params: Wire) -> Wire:
        return await self.context.session._request_outbound.send_raw_request(method, params)

    async def progress(self, done: float, total: float, message: str | None = None) -> None:
        await self.context.session.report_progress(done, total, message)

    async def log(self, level: Any, data: Any) -> None:
        await self.context.session.send_log_message(level, data, "peer", related_request_id=self.context.request_id)


Tool = Callable[[Call], Awaitable[Wire]]


def text(words: str, **extra: Any) -> Wire:
    return {"content": [{"type": "text", "text": words}], **extra}


def seal(state: Wire) -> str:
    body = base64.urlsafe_b64encode(json.dumps(state).encode()).decode()
    return f"{body}.{hmac.new(SEAL_KEY, body.encode(), hashlib.sha256).hexdigest()}"


def unseal(sealed: str) -> Wire:
    body, _, mark = sealed.rpartition(".")
    if not hmac.compare_digest(mark, hmac.new(SEAL_KEY, body.encode(), hashlib.sha256).hexdigest()):
        raise MCPError(INVALID_PARAMS, "requestState was changed on its way")
    state: Wire = json.loads(base64.urlsafe_b64decode(body))
    return state


async def run_tool(tool: Tool, context: Any) -> Wire:
    """Run one tool; a pending question becomes an `input_required` result, or a pushed request and another run."""
    params = dict(context.params or {})
    earlier = unseal(params["requestState"]) if isinstance(params.get("requestState"), str) else {}
    call = Call(context, params, {**earlier, **(params.get("inputResponses") or {})})
    while True:
        try:
            return await tool(call)
        except NeedsInput as pending:
            if call.stateless:
                result: Wire = {"resultType": "input_required", "inputRequests": pending.requests}
                return result | ({"requestState": seal(pending.state)} if pending.state else {})
            answers = {key: await call.push(ask["method"], ask["params"]) for key, ask in pending.requests.items()}
            call = Call(context, params, {**pending.state, **answers})


def completing(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Add the `resultType` that every result of 2026-07-28 carries, where the handler did not choose one."""

    async def completed(context: Any, params: Any) -> Any:
        result = await handler(context, params)
        if isinstance(result, dict) and context.protocol_version == STATELESS:
            return {"resultType": "complete", **result}
        return result

    return completed


class RememberedEvents(EventStore):
    """Keeps every event of this short-lived process, so that a client may resume a stream."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        from mcp.server.streamable_http import EventMessage

        if not last_event_id.isdecimal() or int(last_event_id) >= len(self.events):
            return None
        stream = self.events[int(last_event_id)][0]
        for number in range(int(last_event_id) + 1, len(self.events)):
            if self.events[number][0] == stream and self.events[number][1] is not None:
                await send_callback(EventMessage(self.events[number][1], str(number)))
        return stream


class ChangingServer(Server[Any]):
    """A server that declares listChanged in its handshake: the SDK's default HTTP options never do."""

    def get_capabilities(self, notification_options: Any = None, *args: Any, **kwargs: Any) -> ServerCapabilities:
        return super().get_capabilities(NotificationOptions(True, True, True), *args, **kwargs)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--only", choices=["2025", "2026"], help="speak one generation only (HTTP)")
    parser.add_argument("--without-tasks", action="store_true")
    return parser.parse_args()


def serve(server: Server[Any], chosen: argparse.Namespace, *, resumable: bool = False) -> None:
    """Serve on the transport named on the command line: `--http PORT` or `--stdio`."""
    if not chosen.http:
        asyncio.run(serve_stdio(server))
        return
    store = RememberedEvents() if resumable else None
    app: Any = server.streamable_http_app(event_store=store, retry_interval=200 if resumable else None)
    if chosen.only:
        app = only_one_generation(app, chosen.only)
    uvicorn.run(app, host="127.0.0.1", port=chosen.http, log_level="warning", timeout_graceful_shutdown=1)


def only_one_generation(app: Any, generation: str) -> Any:
    """Refuse the other generation as a server of that line would, whose SDK does not support it."""

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        stateless = headers.get(b"mcp-protocol-version", b"").decode() == STATELESS
        if scope["type"] != "http" or stateless == (generation == "2026"):
            await app(scope, receive, send)
            return
        error: Wire = {"code": -32000, "message": "Bad Request: Unsupported protocol version"}
        if generation == "2026":
            error = {"code": -32022, "message": "Unsupported protocol version", "data": {"supported": [STATELESS]}}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        start = {"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    return gate


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())
