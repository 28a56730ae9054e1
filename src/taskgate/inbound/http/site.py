"""Everything on the port that is not `/mcp`: health, readiness, metrics; other pages are added by whoever owns them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvicorn

from taskgate.core import wire
from taskgate.inbound.http.asgi import Receive, Scope, Send, respond, respond_json
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.inbound.http.protected_resources import WELL_KNOWN

Pages = Callable[[Scope, Receive, Send], Awaitable[None]]
_REFUSED: Final = b'{"error":"This Host or Origin is not allowed here. See allowed_hosts."}'
_ANYBODY: Final = (b"access-control-allow-origin", b"*")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class Site:
    """The whole address: routes by path, without a framework, because almost every request is `/mcp`."""

    def __init__(
        self,
        mcp: McpEndpoint,
        ready: Callable[[], dict[str, object]],
        metrics: Callable[[], bytes] | None,
        pages: Pages | None = None,
    ) -> None:
        self.mcp = mcp
        self._ready = ready
        self._metrics = metrics
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path == "/mcp" or path.startswith("/mcp/"):
            await self.mcp(scope, receive, send)
        elif path in ("/health", "/healthz"):
            await respond_json(send, 200, b'{"status":"ok"}')
        elif (refused := self.mcp.refuses(scope)) is not None:
            await respond_json(send, refused, _REFUSED)
        elif path in ("/ready", "/readyz"):
            state = self._ready()
            await respond_json(send, 200 if state.get("ready") else 503, wire.encode(state))
        elif path.startswith(WELL_KNOWN) and (document := self.mcp.resource_metadata(path)) is not None:
            await respond_json(send, 200, document, [_ANYBODY])
        elif path == "/metrics" and self._metrics is not None:
            await respond(send, 200, self._metrics(), [_TEXT])
        elif self._pages is not None:
            await self._pages(scope, receive, send)
        else:
            await respond_json(send, 404, b'{"error":"There is nothing at this address."}')


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers (signals are ours), and with news of when it is open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.opened = asyncio.Event()
        self._leaving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether it shall end; an idle gateway has no reason to wake for that."""
        await self._leaving.wait()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


class _Settings(uvicorn.Config):
    """uvicorn would make a TLS context of its own from files, which could not be replaced later: it gets ours."""

    def __init__(self, app: Any, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._tls = tls

    def load(self) -> None:
        super().load()
        self.ssl = self._tls


def served_by(app: Any, connection: Callable[..., Any], tls: ssl.SSLContext | None = None) -> uvicorn.Config:
    """uvicorn as we use it: `connection` makes the protocol object of each connection, and nothing is added to answers."""
    return _Settings(
        app,
        tls,
        http=connection,
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        backlog=4096,
        ws="none",
    )
