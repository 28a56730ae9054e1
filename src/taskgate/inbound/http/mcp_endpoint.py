"""The `/mcp` endpoint: messages come by POST (see `posts`), a session's own stream is a GET, its end a DELETE."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskgate.core.caller import Caller
from taskgate.core.generations import STATELESS_REVISIONS
from taskgate.core.wire import Reader
from taskgate.gateway.events.events import SessionEnded
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.plan.plan import Limits
from taskgate.gateway.requests.sessions import Session
from taskgate.inbound.http.arrival import Arrival, Arrivals, Guard
from taskgate.inbound.http.asgi import SSE_HEADERS, Receive, Scope, Send, respond, respond_json
from taskgate.inbound.http.connection import CONNECTION, Connection
from taskgate.inbound.http.entrance import Entrance, HttpRefused
from taskgate.inbound.http.event_stream import EventStream, StreamBuffers
from taskgate.inbound.http.posts import PRIMING_REVISION, PostHandler
from taskgate.inbound.identity import CallerIdentifier, NotVerifiedYet


class McpEndpoint:
    def __init__(
        self, gateway: Gateway, guard: Guard, caller_identifier: CallerIdentifier, arrivals: Arrivals, reader: Reader
    ) -> None:
        self.gateway = gateway
        self.entrance = Entrance(gateway, guard, caller_identifier, arrivals)
        self._stream_buffers: dict[str, StreamBuffers] = {}
        self.posts = PostHandler(gateway, self.entrance, self._stream_buffers, reader)
        gateway.events.subscribe(SessionEnded, lambda event: self._forget(event.session))

    def adopt(self, guard: Guard, caller_identifier: CallerIdentifier, arrivals: Arrivals) -> None:
        """A reload: who may come in changes from the next request on."""
        self.entrance.adopt(guard, caller_identifier, arrivals)

    def arrive(self, transport: Any) -> Arrival:
        """What is known of a new connection."""
        return self.entrance.arrivals.of(transport)

    def refuses(self, scope: Scope) -> int | None:
        """The status with which a request for any address of the site is refused for its Host or Origin."""
        return self.entrance.guard.refuses(dict(scope["headers"]), scope[CONNECTION].arrival.on_loopback)

    def resource_metadata(self, path: str) -> bytes | None:
        """What an OAuth client needs to know before it can get a token; None where there is nothing to know."""
        return self.entrance.resources.metadata(path)

    def limits(self) -> Limits:
        """Those that are in force now: a reload changes them."""
        return self.gateway.limits

    def _forget(self, session: Session) -> None:
        self._stream_buffers.pop(session.id, None)
        if isinstance(session.outlet, EventStream):
            session.outlet.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything but POST, which does not come this way."""
        headers = dict(scope["headers"])
        try:
            arrival = scope[CONNECTION].arrival
            caller = await self._admit(scope, headers, arrival)
            if headers.get(b"mcp-protocol-version", b"").decode("latin-1") in STATELESS_REVISIONS:
                raise self.entrance.refused(405, "This revision uses POST only.", [(b"allow", b"POST")])
            if scope["method"] == "GET":
                await self._get(scope, send, headers, caller)
            elif scope["method"] == "DELETE":
                await self.gateway.end_session(self.entrance.session(headers, caller))
                await respond(send, 200)
            else:
                raise self.entrance.refused(405, "Use POST, GET or DELETE.", [(b"allow", b"POST, GET, DELETE")])
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], arrival: Arrival) -> Caller:
        path, every_header = scope["raw_path"], scope["headers"]
        try:
            return self.entrance.admit(path, headers, arrival, every_header)
        except NotVerifiedYet as unverified:
            return await self.entrance.admit_unverified(unverified, path, headers, arrival, every_header)

    async def _get(self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller) -> None:
        """The standalone stream, or the rest of a broken one (transports: resumability)."""
        if b"text/event-stream" not in headers.get(b"accept", b""):
            raise self.entrance.refused(406, "A GET here is an event stream: accept text/event-stream.")
        session = self.entrance.session(headers, caller)
        stream, after = session.outlet, 0
        last = headers.get(b"last-event-id")
        if last is not None:
            found = (
                self._stream_buffers[session.id].find(last.decode("latin-1"))
                if session.id in self._stream_buffers
                else None
            )
            if found is None:
                raise self.entrance.refused(400, "This Last-Event-ID cannot be resumed.")
            stream, after = found
        if isinstance(stream, EventStream):
            await self._follow(scope, send, session, stream, after)

    async def _follow(self, scope: Scope, send: Send, session: Session, stream: EventStream, after: int) -> None:
        connection, work = scope.get(CONNECTION), asyncio.current_task()
        if isinstance(connection, Connection) and work is not None:
            connection.when_lost(lambda: _cancel(work))
        session.stream_opened()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            if session.version == PRIMING_REVISION and not after:
                await send({"type": "http.response.body", "body": stream.priming_frame(), "more_body": True})
            async for frame in stream.follow(after, _drops(connection)):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not (isinstance(connection, Connection) and connection.transport.is_closing()):
                raise
        finally:
            session.stream_closed()
            self.gateway.touch(session)
            if isinstance(connection, Connection):
                connection.when_lost(None)


def _drops(connection: object) -> Callable[[], None] | None:
    return connection.drop if isinstance(connection, Connection) else None


def _cancel(work: asyncio.Task[object]) -> None:
    work.cancel()
