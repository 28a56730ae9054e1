"""uvicorn as Taskgate uses it: without signal handlers, with its own TLS context, and with connections from other workers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from taskgate.telemetry.logs import log


class UvicornServer(Server):
    """uvicorn's server without its signal handlers, with an event that is set once it is open."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self.opened = asyncio.Event()
        self._stopping = asyncio.Event()
        self._adopting: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    async def main_loop(self) -> None:
        """Wait for `stop`. uvicorn polls ten times a second, which would wake an idle gateway."""
        await self._stopping.wait()

    def adopt(self, accepted: socket.socket, request: bytes) -> None:
        """Take over a connection that another worker has accepted, starting with this request."""
        connection: Any = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        connection.set_first_request(request)
        loop = asyncio.get_running_loop()
        work = loop.create_task(loop.connect_accepted_socket(lambda: connection, accepted))
        self._adopting.add(work)
        work.add_done_callback(self._adopted)

    def _adopted(self, work: asyncio.Task[Any]) -> None:
        self._adopting.discard(work)
        if work.cancelled():
            return
        if work.exception() is not None:
            log.info("connection from another worker was closed by its caller", why=str(work.exception()))
        elif self.should_exit:
            # It arrived after the shutdown of the other connections began.
            work.result()[1].shutdown()

    def stop(self, within_s: float | None = None) -> None:
        """Accept no more connections, and end when the open ones have ended, or after this time."""
        self._settings.end_within(within_s)
        self.should_exit = True
        self._stopping.set()

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


class ServerSettings(Config):
    """uvicorn's configuration with our TLS context, whose certificate can be replaced while it runs."""

    def __init__(self, app: Any, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._tls = tls

    def load(self) -> None:
        super().load()
        self.ssl = self._tls

    def end_within(self, seconds: float | None) -> None:
        """Set the shutdown timeout. uvicorn declares whole seconds but passes them to `asyncio.wait_for`."""
        self.timeout_graceful_shutdown = seconds  # type: ignore[assignment]


def server_settings(app: Any, connection: Callable[..., Any], tls: ssl.SSLContext | None = None) -> ServerSettings:
    """Return uvicorn's configuration. `connection` creates the protocol object of each connection."""
    return ServerSettings(
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
