"""Everything on the port that is not `/mcp`, and the listener for other gateways on the same store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import uvicorn

from taskgate.access.arrival import Arrival
from taskgate.access.authorize import AccessRefused, Authorized
from taskgate.access.resources import WELL_KNOWN
from taskgate.access.routes import DeclaredRoute, RouteKind
from taskgate.core import wire
from taskgate.core.identity.access import Access
from taskgate.gateway.plan import Limits
from taskgate.inbound.http.asgi import Headers, Receive, Scope, Send, respond, respond_json
from taskgate.inbound.http.connection import CallerConnection, drop_slow, replies_in_progress
from taskgate.inbound.http.entrance import HttpRefused
from taskgate.inbound.http.hop import NOT_HERE, HopNotTaken, HopRefused, HopVerifier
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.post import Post
from taskgate.late_imports import METRICS, load
from taskgate.telemetry.logs import log


class Pages(Protocol):
    """The console and the JSON API."""

    @property
    def routes(self) -> Sequence[DeclaredRoute]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


_REFUSED: Final = b'{"error":"This Host or Origin is not allowed here. See allowed_hosts."}'
_ANYBODY: Final = (b"access-control-allow-origin", b"*")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


def _public(path: str, kind: RouteKind, summary: str) -> DeclaredRoute:
    return DeclaredRoute(method="GET", path=path, access=Access.PUBLIC, kind=kind, summary=summary)


MCP_ROUTES: Final = tuple(
    DeclaredRoute(method=method, path=path, access=Access.CALL, kind=RouteKind.MCP, summary=summary, anonymous=True)
    for path in ("/mcp", "/mcp/{scope}")
    for method, summary in (
        ("POST", "One MCP message."),
        ("GET", "The event stream of a session, or the rest of one that broke."),
        ("DELETE", "End a session."),
    )
)
PROBE_ROUTES: Final = (
    _public("/health", RouteKind.PROBE, "Whether the process runs."),
    _public("/healthz", RouteKind.PROBE, "The same as /health."),
    _public("/ready", RouteKind.PROBE, "Whether requests are served, and how servers and store are."),
    _public("/readyz", RouteKind.PROBE, "The same as /ready."),
    _public("/metrics", RouteKind.PROBE, "Metrics for Prometheus."),
)
METADATA_ROUTES: Final = tuple(
    _public(WELL_KNOWN + rest, RouteKind.DOCUMENT, "A scope as an OAuth resource (RFC 9728).")
    for rest in ("", "/mcp", "/mcp/{scope}")
)


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

    @property
    def routes(self) -> tuple[DeclaredRoute, ...]:
        """Every route that this port serves."""
        own = (*MCP_ROUTES, *PROBE_ROUTES, *METADATA_ROUTES)
        return (*own, *self._pages.routes) if self._pages is not None else own

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
            await load(*METRICS)
            await respond(send, 200, self._metrics(), [_TEXT])
        elif self._pages is not None:
            await self._pages(scope, receive, send)
        else:
            await respond_json(send, 404, b'{"error":"There is nothing at this address."}')


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers (signals are ours), and with news of when it is open."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self.opened = asyncio.Event()
        self._leaving = asyncio.Event()
        self._adopting: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether it shall end; an idle gateway has no reason to wake for that."""
        await self._leaving.wait()

    def adopt(self, accepted: socket.socket, request: bytes) -> None:
        """Go on with a connection that another worker has accepted, from this request on."""
        connection: Any = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        connection.begin_with(request)
        loop = asyncio.get_running_loop()
        work = loop.create_task(loop.connect_accepted_socket(lambda: connection, accepted))
        self._adopting.add(work)
        work.add_done_callback(self._adopted)

    def _adopted(self, work: asyncio.Task[Any]) -> None:
        self._adopting.discard(work)
        if work.cancelled():
            return
        if work.exception() is not None:
            log.info("a connection from another worker was closed by its caller meanwhile", why=str(work.exception()))
        elif self.should_exit:
            # It came after the others were asked to end.
            work.result()[1].shutdown()

    def leave(self, within_s: float | None = None) -> None:
        """Take no more connections, and end when those that are open have ended, or after this time."""
        self._settings.end_within(within_s)
        self.should_exit = True
        self._leaving.set()

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


class ServerSettings(uvicorn.Config):
    """uvicorn would make a TLS context of its own from files, which could not be replaced later: it gets ours."""

    def __init__(self, app: Any, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._tls = tls

    def load(self) -> None:
        super().load()
        self.ssl = self._tls

    def end_within(self, seconds: float | None) -> None:
        """uvicorn declares whole seconds, and hands them to `asyncio.wait_for`."""
        self.timeout_graceful_shutdown = seconds  # type: ignore[assignment]


def served_by(app: Any, connection: Callable[..., Any], tls: ssl.SSLContext | None = None) -> ServerSettings:
    """uvicorn as we use it: `connection` makes the protocol object of each connection, and nothing is added to answers."""
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


# The listener for other gateways on the same store (`listen.internal`), apart from the one for callers.
#
# Only requests that another gateway has signed come in (see `hop`); the caller is the one that it admitted, and what is
# answered is the same as on the public address. A session that is not here is said to be not here: nothing is passed on
# a second time.

_NOT_A_GATEWAY: Final = b'{"error":"Only gateways of this store are answered here."}'
_ARRIVAL: Final = Arrival("internal", on_loopback=False, by_proxy=True)


@dataclass(frozen=True, slots=True)
class InternalSocket:
    """Bound before the store is opened, so that the lease says where this gateway can be reached."""

    socket: socket.socket
    address: str
    path: Path | None = None

    def close(self) -> None:
        self.socket.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def bind_internal(where: str) -> InternalSocket:
    """`where`: host:port (0 picks a free one), the path of a socket, or a folder (ending in /) to make one in. Raises OSError."""
    if where.startswith("/"):
        path = (
            Path(where) / f"taskgate-{os.getpid()}-{secrets.token_hex(4)}.sock" if where.endswith("/") else Path(where)
        )
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        path.chmod(0o600)
        return InternalSocket(listening, str(path), path)
    host, _, port = where.rpartition(":")
    name = host.strip("[]")
    listening = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((name, int(port)))
    return InternalSocket(listening, f"{host}:{listening.getsockname()[1]}")


def _refusal(refused: HopRefused) -> tuple[int, bytes]:
    return (NOT_HERE, b"") if isinstance(refused, HopNotTaken) else (403, _NOT_A_GATEWAY)


class InternalListener:
    def __init__(self, endpoint: McpEndpoint, verifier: HopVerifier, bound: InternalSocket) -> None:
        self._endpoint = endpoint
        self._verifier = verifier
        self._bound = bound
        connection = partial(CallerConnection, self._answer, endpoint.gateway.plan, self._arrive, OpenConnections())
        self._server = QuietServer(served_by(self._other, connection))
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._bound.socket]))

    def drop_slow(self, now: float, limits: Limits) -> None:
        drop_slow(self._server.server_state.connections, now, limits)

    def replies_in_progress(self) -> list[Post]:
        return replies_in_progress(self._server.server_state.connections)

    async def close(self, within_s: float) -> None:
        """Requests under way may end in that time."""
        self._server.leave()
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=within_s)
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        self._bound.close()

    def _arrive(self, _transport: Any) -> Arrival:
        return _ARRIVAL

    async def _answer(self, post: Post) -> None:
        url = post.path + b"?" + post.query if post.query else post.path
        try:
            authorized = self._authorized(b"POST", url, post.every_header, post.body)
        except HopRefused as refused:
            log.warning("a request at the internal address was refused", why=str(refused))
            post.respond(*_refusal(refused))
            return
        except HttpRefused as refused:
            post.respond(refused.status, refused.body, refused.headers)
            return
        post.came_forwarded(authorized)
        await self._endpoint.posts.answer(post)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET and DELETE. They have no body that anybody reads."""
        if scope["type"] != "http":
            return
        query = scope["query_string"]
        url = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        try:
            authorized = self._authorized(scope["method"].encode("ascii"), url, scope["headers"], b"")
        except HopRefused as refused:
            log.warning("a request at the internal address was refused", why=str(refused))
            await respond_json(send, *_refusal(refused))
            return
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)
            return
        await self._endpoint.answer_forwarded(scope, send, authorized)

    def _authorized(self, method: bytes, url: bytes, headers: Headers, body: bytes) -> Authorized:
        """Raises HopRefused where no gateway of this store has signed the request, HttpRefused where it is not authorized."""
        proof = self._verifier.verify(method, url, headers, body)
        try:
            return self._endpoint.authorizer.admit(proof, Access.CALL, proof.caller.scope, anonymous=True)
        except AccessRefused as refused:
            raise self._endpoint.entrance.not_authorized(refused, proof.caller.scope) from None
