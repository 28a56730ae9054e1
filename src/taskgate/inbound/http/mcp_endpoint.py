"""The `/mcp` endpoint: messages come by POST (see `posts`), a session's own stream is a GET, its end a DELETE."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from taskgate import clock
from taskgate.core.errors import TaskgateError
from taskgate.core.generations import STATELESS_REVISIONS
from taskgate.core.identity import Caller
from taskgate.core.wire import MessageReader
from taskgate.gateway.events import SessionEnded
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.plan import Limits
from taskgate.gateway.requests.sessions import Session
from taskgate.inbound.http.arrival import (
    SSE_HEADERS,
    Arrival,
    Arrivals,
    Guard,
    Receive,
    Scope,
    Send,
    respond,
    respond_json,
)
from taskgate.inbound.http.connection import CONNECTION, CallerConnection
from taskgate.inbound.http.entrance import Entrance, HttpRefused
from taskgate.inbound.http.event_stream import EventStream, SessionStreams
from taskgate.inbound.http.forward import Forwarder
from taskgate.inbound.http.handover import WorkerSockets
from taskgate.inbound.http.hop import NOT_HERE, HopSigner
from taskgate.inbound.http.posts import PRIMING_REVISION, PostHandler
from taskgate.inbound.identity import CallerIdentifier, NotVerifiedYet

_TRIES: Final = 40
_PAUSE_S: Final = 0.1


class McpEndpoint:
    def __init__(
        self,
        gateway: Gateway,
        guard: Guard,
        caller_identifier: CallerIdentifier,
        arrivals: Arrivals,
        reader: MessageReader,
        *,
        hop_key: bytes | None,
        workers: WorkerSockets | None = None,
    ) -> None:
        """`hop_key` signs requests between the gateways of one store; None where this one cannot be reached by others. `workers`:
        those that accept connections from the same socket, if this gateway is one of them."""
        self.gateway = gateway
        self.entrance = Entrance(gateway, guard, caller_identifier, arrivals)
        self._streams = SessionStreams(gateway.plan)
        self.forwarder = self._forwarder(hop_key, workers)
        self.posts = PostHandler(gateway, self.entrance, self._streams, reader, self.forwarder)
        gateway.events.subscribe(SessionEnded, lambda event: self._streams.forget(event.session))

    def _forwarder(self, hop_key: bytes | None, workers: WorkerSockets | None) -> Forwarder | None:
        shared = self.gateway.shared_sessions
        if hop_key is None or shared is None:
            return None
        signer = HopSigner(hop_key, shared.rows.owner, shared.rows.now_ms)
        return Forwarder(self.gateway, shared, signer, self._streams.attach, workers)

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything but POST, which does not come this way."""
        headers = dict(scope["headers"])
        try:
            arrival = scope[CONNECTION].arrival
            caller = await self._admit(scope, headers, arrival)
            await self._answer(scope, send, headers, caller, forwarded=False)
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)

    async def answer_forwarded(self, scope: Scope, send: Send, caller: Caller) -> None:
        """The same for a caller that another gateway has let in."""
        try:
            await self._answer(scope, send, dict(scope["headers"]), caller, forwarded=True)
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)

    async def _answer(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, *, forwarded: bool
    ) -> None:
        """Raises HttpRefused."""
        if headers.get(b"mcp-protocol-version", b"").decode("latin-1") in STATELESS_REVISIONS:
            raise self.entrance.refused(405, "This revision uses POST only.", [(b"allow", b"POST")])
        if scope["method"] not in ("GET", "DELETE"):
            raise self.entrance.refused(405, "Use POST, GET or DELETE.", [(b"allow", b"POST, GET, DELETE")])
        if scope["method"] == "GET" and b"text/event-stream" not in headers.get(b"accept", b""):
            raise self.entrance.refused(406, "A GET here is an event stream: accept text/event-stream.")
        session = self.entrance.session(headers, caller)
        if session is None:
            session = await self._elsewhere(scope, send, headers, caller, forwarded=forwarded)
        if session is None:
            return
        if scope["method"] == "GET":
            await self._get(scope, send, headers, session)
        else:
            await self.gateway.end_session(session)
            await respond(send, 200)

    async def _elsewhere(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, *, forwarded: bool
    ) -> Session | None:
        """The session, if it is ours after all; None if its home has answered. Raises HttpRefused."""
        forwarder = self.forwarder
        if forwarder is None:
            raise self.entrance.unknown_session()
        session_id = headers[b"mcp-session-id"].decode("latin-1")
        try:
            if forwarded:
                session = await forwarder.here(session_id, caller)
                if session is None:
                    await respond(send, NOT_HERE)
                return session
            return await self._with_home(forwarder, scope, send, caller, session_id)
        except TaskgateError as problem:
            raise self.entrance.failed(problem, status=503) from None

    async def _with_home(
        self, forwarder: Forwarder, scope: Scope, send: Send, caller: Caller, session_id: str
    ) -> Session | None:
        """As `_elsewhere`; a home that is found dead or without the session is looked for once more."""
        query = scope["query_string"]
        url = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        for _ in range(_TRIES):
            found = await forwarder.session(session_id, caller)
            if found is None:
                raise self.entrance.unknown_session()
            if not isinstance(found, str):
                return found
            if scope["method"] == "GET":
                connection: CallerConnection = scope[CONNECTION]
                if forwarder.moved(connection, url, scope["headers"], found):
                    await connection.ended()
                    return None
                with _hang_up_together(scope):
                    answered = await forwarder.followed(send, url, scope["headers"], caller, found)
            else:
                reply = await forwarder.ended(url, scope["headers"], caller, found)
                answered = reply.status != NOT_HERE
                if answered:
                    await respond(send, reply.status, reply.body)
            if answered:
                return None
            forwarder.forget(session_id)
            await clock.sleep(_PAUSE_S)
        raise self.entrance.unknown_session()

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], arrival: Arrival) -> Caller:
        path, every_header = scope["raw_path"], scope["headers"]
        try:
            return self.entrance.admit(path, headers, arrival, every_header)
        except NotVerifiedYet as unverified:
            return await self.entrance.admit_unverified(unverified, path, headers, arrival, every_header)

    async def _get(self, scope: Scope, send: Send, headers: dict[bytes, bytes], session: Session) -> None:
        """The standalone stream, or the rest of a broken one (transports: resumability)."""
        stream, after = session.outlet, 0
        last = headers.get(b"last-event-id")
        if last is not None:
            buffers = self._streams.buffers.get(session.id)
            found = buffers.find(last.decode("latin-1")) if buffers is not None else None
            # What a session's own stream held at a gateway that has died is lost; it goes on from here.
            is_lost = found is None and session.moves > 0 and last.startswith(b"g")
            if found is None and not is_lost:
                raise self.entrance.refused(400, "This Last-Event-ID cannot be resumed.")
            stream, after = found or (session.outlet, 0)
        if isinstance(stream, EventStream):
            await self._follow(scope, send, session, stream, after)

    async def _follow(self, scope: Scope, send: Send, session: Session, stream: EventStream, after: int) -> None:
        connection, work = scope.get(CONNECTION), asyncio.current_task()
        if isinstance(connection, CallerConnection) and work is not None:
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
            if not (isinstance(connection, CallerConnection) and connection.transport.is_closing()):
                raise
        finally:
            session.stream_closed()
            self.gateway.touch(session)
            if isinstance(connection, CallerConnection):
                connection.when_lost(None)


@contextmanager
def _hang_up_together(scope: Scope) -> Iterator[None]:
    """A caller that hangs up ends what is done for it."""
    connection, work = scope.get(CONNECTION), asyncio.current_task()
    assert isinstance(connection, CallerConnection)
    assert work is not None
    connection.when_lost(lambda: _cancel(work))
    try:
        yield
    except asyncio.CancelledError:
        if not connection.transport.is_closing():
            raise
    finally:
        connection.when_lost(None)


def _drops(connection: object) -> Callable[[], None] | None:
    return connection.drop if isinstance(connection, CallerConnection) else None


def _cancel(work: asyncio.Task[object]) -> None:
    work.cancel()
