"""The listener for other gateways on the same store (`listen.internal`), separate from the one for callers.

It accepts only requests that another gateway has signed (see `hop`). The caller is the one that gateway authorized, and
responses are the same as on the public address. A request for a session that is not here returns `NOT_HERE`; nothing is
forwarded a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from taskgate import clock, operating_system
from taskgate.access.arrival import Arrival
from taskgate.access.authorize import AccessRefused, Authorized
from taskgate.core.identity.access import Access
from taskgate.core.settings.limits import Limits
from taskgate.inbound.http.asgi import Headers, Receive, Scope, Send, respond_json
from taskgate.inbound.http.connection import CallerConnection, drop_slow, replies_in_progress
from taskgate.inbound.http.hop import NOT_HERE, HopNotAccepted, HopProblem, HopRefused, HopVerifier
from taskgate.inbound.http.loop_lag import LoopLag
from taskgate.inbound.http.mcp_access import HttpRefused
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.post_request import Post
from taskgate.inbound.http.uvicorn_server import UvicornServer, server_settings
from taskgate.telemetry.logs import log

_NOT_A_GATEWAY: Final = b'{"error":"This address is for gateways of the same store only."}'
_LOOK_EVERY_S: Final = 0.02
_ARRIVAL: Final = Arrival("internal", on_loopback=False, by_proxy=True)


class InternalSocket(msgspec.Struct, frozen=True):
    """A bound socket. It is bound before the store is opened, because the lease contains its address."""

    socket: socket.socket
    address: str
    path: Path | None = None

    def close(self) -> None:
        self.socket.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def bind_internal(where: str) -> InternalSocket:
    """Bind `listen.internal`: host:port (port 0 picks a free one), a socket path, or a folder ending in /. Raises OSError."""
    if where.startswith("/"):
        path = (
            Path(where) / f"taskgate-{os.getpid()}-{secrets.token_hex(4)}.sock" if where.endswith("/") else Path(where)
        )
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listening = operating_system.unix_socket()
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
    return (NOT_HERE, b"") if isinstance(refused, HopNotAccepted) else (403, _NOT_A_GATEWAY)


class InternalListener:
    def __init__(self, endpoint: McpEndpoint, verifier: HopVerifier, bound: InternalSocket) -> None:
        self._endpoint = endpoint
        self._verifier = verifier
        self._bound = bound
        connection = partial(
            CallerConnection, self._answer, endpoint.gateway.plan, self._arrive, OpenConnections(), LoopLag()
        )
        self._server = UvicornServer(server_settings(self._other, connection))
        self._serving: asyncio.Task[None] | None = None
        self._refusing = False

    def start(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._bound.socket]))

    def drop_slow(self, now: float, limits: Limits) -> None:
        drop_slow(self._server.server_state.connections, now, limits)

    def replies_in_progress(self) -> list[Post]:
        return replies_in_progress(self._server.server_state.connections)

    async def refuse(self, within_s: float) -> None:
        """Respond `NOT_HERE` to every new request, and wait this long for requests in progress."""
        self._refusing = True
        until = clock.monotonic() + within_s
        while any(not post.answered for post in self.replies_in_progress()) and clock.monotonic() < until:
            await clock.sleep(_LOOK_EVERY_S)

    async def close(self, within_s: float) -> None:
        """Stop, and wait this long for requests in progress. A request that has been sent and not been read is lost, and the
        gateway that forwarded it cannot know whether it was executed: use `refuse` first."""
        self._server.stop()
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=within_s)
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        self._bound.close()

    def _arrive(self, _transport: Any) -> Arrival:
        return _ARRIVAL

    async def _answer(self, post: Post) -> None:
        url = post.head.url
        try:
            authorized = self._authorized(b"POST", url, post.every_header, post.body)
        except HopRefused as refused:
            log.warning("request at the internal address rejected", why=str(refused))
            post.respond(*_refusal(refused))
            return
        except HttpRefused as refused:
            post.respond(refused.status, refused.body, refused.headers)
            return
        post.admit_forwarded(authorized)
        await self._endpoint.posts.answer(post)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and DELETE, whose bodies are ignored."""
        if scope["type"] != "http":
            return
        query = scope["query_string"]
        url = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        try:
            authorized = self._authorized(scope["method"].encode("ascii"), url, scope["headers"], b"")
        except HopRefused as refused:
            log.warning("request at the internal address rejected", why=str(refused))
            await respond_json(send, *_refusal(refused))
            return
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)
            return
        await self._endpoint.answer_forwarded(scope, send, authorized)

    def _authorized(self, method: bytes, url: bytes, headers: Headers, body: bytes) -> Authorized:
        """Raises HopRefused if the request is not signed by a gateway of this store, or if no request is accepted any more.
        Raises HttpRefused if it is not authorized."""
        proof = self._verifier.verify(method, url, headers, body)
        if self._refusing:
            raise HopNotAccepted(HopProblem.ENDING)
        try:
            return self._endpoint.authorizer.admit(proof, Access.CALL, proof.caller.scope, anonymous=True)
        except AccessRefused as refused:
            raise self._endpoint.access.not_authorized(refused, proof.caller.scope) from None
