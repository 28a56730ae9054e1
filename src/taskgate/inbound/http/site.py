"""All routes of the public port: `/mcp`, probes, OAuth metadata, metrics, and the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from taskgate.access.resources import WELL_KNOWN
from taskgate.access.routes import DeclaredRoute, RouteKind
from taskgate.core import wire
from taskgate.core.identity.access import Access
from taskgate.inbound.http.asgi import Receive, Scope, Send, respond, respond_json
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.late_imports import METRICS, load


class Pages(Protocol):
    """The console and the JSON API."""

    @property
    def routes(self) -> Sequence[DeclaredRoute]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


_REFUSED: Final = b'{"error":"This Host or Origin is not allowed. See allowed_hosts in the configuration."}'
_ANY_ORIGIN: Final = (b"access-control-allow-origin", b"*")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_OPENMETRICS_TYPE: Final = b"application/openmetrics-text"
_OPENMETRICS: Final = (b"content-type", _OPENMETRICS_TYPE + b"; version=1.0.0; charset=utf-8")


class StateReport(Protocol):
    """Returns the content of `/ready`, with or without the names of servers and gateways."""

    def __call__(self, *, names: bool) -> dict[str, object]: ...


class Exposition(Protocol):
    """Renders all metrics, with or without labels that name servers and tools."""

    def __call__(self, *, openmetrics: bool, names: bool) -> bytes: ...


def _public(path: str, kind: RouteKind, summary: str) -> DeclaredRoute:
    return DeclaredRoute(method="GET", path=path, access=Access.PUBLIC, kind=kind, summary=summary)


MCP_ROUTES: Final = tuple(
    DeclaredRoute(method=method, path=path, access=Access.CALL, kind=RouteKind.MCP, summary=summary, anonymous=True)
    for path in ("/mcp", "/mcp/{scope}")
    for method, summary in (
        ("POST", "Send one MCP message."),
        ("GET", "Open the event stream of a session, or resume an interrupted stream."),
        ("DELETE", "End a session."),
    )
)
PROBE_ROUTES: Final = (
    _public("/health", RouteKind.PROBE, "Liveness: whether the process runs."),
    _public("/healthz", RouteKind.PROBE, "The same as /health."),
    _public("/ready", RouteKind.PROBE, "Readiness: whether requests are served, and the state of servers and store."),
    _public("/readyz", RouteKind.PROBE, "The same as /ready."),
    _public("/metrics", RouteKind.PROBE, "Metrics for Prometheus."),
)
METADATA_ROUTES: Final = tuple(
    _public(WELL_KNOWN + rest, RouteKind.DOCUMENT, "A scope as an OAuth resource (RFC 9728).")
    for rest in ("", "/mcp", "/mcp/{scope}")
)


class Site(msgspec.Struct, eq=False):
    """The ASGI application. It routes by path without a framework, because almost every request is `/mcp`."""

    mcp: McpEndpoint
    ready: StateReport
    metrics: Exposition | None
    hides_names: Callable[[], bool]
    """Whether names are shown only to holders of a credential with the permission `see`."""
    pages: Pages | None

    @property
    def routes(self) -> tuple[DeclaredRoute, ...]:
        """All routes that this port serves."""
        own = (*MCP_ROUTES, *PROBE_ROUTES, *METADATA_ROUTES)
        return (*own, *self.pages.routes) if self.pages is not None else own

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
            state = self.ready(names=await self._shows_names(scope))
            await respond_json(send, 200 if state.get("ready") else 503, wire.encode(state))
        elif path.startswith(WELL_KNOWN) and (document := self.mcp.resource_metadata(path)) is not None:
            await respond_json(send, 200, document, [_ANY_ORIGIN])
        elif path == "/metrics" and self.metrics is not None:
            await load(*METRICS)
            openmetrics = _OPENMETRICS_TYPE in dict(scope["headers"]).get(b"accept", b"")
            text = self.metrics(openmetrics=openmetrics, names=await self._shows_names(scope))
            await respond(send, 200, text, [_OPENMETRICS if openmetrics else _TEXT])
        elif self.pages is not None:
            await self.pages(scope, receive, send)
        else:
            await respond_json(send, 404, b'{"error":"There is nothing at this address."}')

    async def _shows_names(self, scope: Scope) -> bool:
        return not self.hides_names() or await self.mcp.may_see(scope)
