"""Slack on the loopback: the Web API methods a card needs, Slack's documented errors, and Socket Mode over a real
websocket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

BOT_TOKEN, APP_TOKEN = "xoxb-test-bot", "xapp-test-app"
DEADLINE_S = 120.0


@dataclass
class SlackDouble:
    """`script` holds, per method, what to answer next: an error's name, or seconds for a 429."""

    url: str = ""
    script: dict[str, list[str | int]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    called: asyncio.Condition = field(default_factory=asyncio.Condition)
    acknowledged: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    sockets: asyncio.Queue[web.WebSocketResponse] = field(default_factory=asyncio.Queue)
    stamps: Any = field(default_factory=lambda: count(1))

    async def wait_for(self, method: str, number: int = 1) -> dict[str, Any]:
        """The arguments of the n-th call of a method, once it came."""

        def found() -> list[dict[str, Any]]:
            return [arguments for name, arguments in self.calls if name == method]

        async with self.called:
            await asyncio.wait_for(self.called.wait_for(lambda: len(found()) >= number), DEADLINE_S)
        return found()[number - 1]

    def count_of(self, method: str) -> int:
        return sum(1 for name, _ in self.calls if name == method)

    async def press(
        self, socket: web.WebSocketResponse, envelope: str, payload: dict[str, Any], kind: str = "interactive"
    ) -> None:
        """Send one event over Socket Mode and wait until it is acknowledged."""
        await socket.send_str(json.dumps({"type": kind, "envelope_id": envelope, "payload": payload}))
        assert await asyncio.wait_for(self.acknowledged.get(), DEADLINE_S) == envelope

    async def connected(self) -> web.WebSocketResponse:
        return await asyncio.wait_for(self.sockets.get(), DEADLINE_S)

    async def answer(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        arguments = await _arguments(request)
        status, headers, reply = self._reply(method, arguments, request.headers.get("Authorization", ""))
        self.calls.append((method, arguments))
        async with self.called:
            self.called.notify_all()
        return web.json_response(reply, status=status, headers=headers)

    def _reply(
        self, method: str, arguments: dict[str, Any], authorization: str
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        scripted = self.script.get(method) or []
        if scripted:
            text = scripted.pop(0)
            if isinstance(text, int):
                return 429, {"Retry-After": str(text)}, {"ok": False, "error": "ratelimited"}
            return 200, {}, {"ok": False, "error": text}
        expected = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if authorization != f"Bearer {expected}":
            return 200, {}, {"ok": False, "error": "invalid_auth"}
        return 200, {}, self._good(method, arguments)

    def _good(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "apps.connections.open":
                return {"ok": True, "url": self.url.replace("http://", "ws://").replace("/api/", "/link")}
            case "chat.postMessage":
                ts = f"1800000000.{next(self.stamps):06}"
                self.messages[ts] = {"reactions": [], **arguments}
                return {"ok": True, "channel": "C0REAL", "ts": ts}
            case "chat.update" if arguments["ts"] not in self.messages:
                return {"ok": False, "error": "message_not_found"}
            case "chat.update":
                self.messages[arguments["ts"]].update(arguments)
                return {"ok": True}
            case "reactions.get" if arguments["timestamp"] not in self.messages:
                return {"ok": False, "error": "message_not_found"}
            case "reactions.get":
                return {"ok": True, "message": {"reactions": self.messages[arguments["timestamp"]]["reactions"]}}
            case _:
                return {"ok": True}

    async def link(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(json.dumps({"type": "hello", "num_connections": 1}))
        self.sockets.put_nowait(socket)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.acknowledged.put_nowait(json.loads(message.data)["envelope_id"])
        return socket


async def _arguments(request: web.Request) -> dict[str, Any]:
    if request.method == "GET":
        return dict(request.query)
    if request.content_type == "application/json":
        return dict(await request.json())
    return {**request.query, **await request.post()}


@asynccontextmanager
async def slack() -> AsyncIterator[SlackDouble]:
    """A running double."""
    double = SlackDouble()
    app = web.Application()
    app.router.add_route("*", "/api/{method}", double.answer)
    app.router.add_get("/link", double.link)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    double.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/"
    try:
        yield double
    finally:
        await runner.cleanup()
