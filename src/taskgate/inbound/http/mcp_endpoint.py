"""The `/mcp` endpoint: POST carries messages (see `post_handler`), GET opens the event stream of a session, DELETE ends it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.authorize import Authorized, Authorizer
from taskgate.access.open_responses import OpenResponses
from taskgate.access.open_stream import CONNECTION, OpenStream
from taskgate.access.proof import HttpProof
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import STATELESS_REVISIONS
from taskgate.core.identity.access import Access
from taskgate.core.settings.limits import Limits
from taskgate.core.wire import MessageReader
from taskgate.gateway.events import SessionEnded
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.http.asgi import SSE_HEADERS, Receive, Scope, Send, respond, respond_json
from taskgate.inbound.http.connection import CallerConnection
from taskgate.inbound.http.event_stream import EventStream
from taskgate.inbound.http.forward import Forwarder
from taskgate.inbound.http.handover import WorkerSockets
from taskgate.inbound.http.hop import NOT_HERE, HopSigner
from taskgate.inbound.http.mcp_access import HttpRefused, McpAccess
from taskgate.inbound.http.post_handler import PRIMING_REVISION, PostHandler
from taskgate.inbound.http.session_streams import SessionStreams

_TRIES: Final = 40
_PAUSE_S: Final = 0.1


class McpEndpoint:
    def __init__(
        self,
        gateway: TransportServices,
        authorizer: Authorizer,
        responses: OpenResponses,
        reader: MessageReader,
        *,
        hop_key: bytes | None,
        workers: WorkerSockets | None = None,
    ) -> None:
        """`hop_key` signs requests between the gateways of one store; None if others cannot reach this one. `workers`: the
        processes that accept connections from the same socket, if this gateway is one of them."""
        self.gateway = gateway
        self.authorizer = authorizer
        self._responses = responses
        self.access = McpAccess(gateway, authorizer)
        self._streams = SessionStreams(gateway.plan)
        self.forwarder = self._forwarder(hop_key, workers)
        self.posts = PostHandler(
            gateway=gateway,
            access=self.access,
            streams=self._streams,
            reader=reader,
            forwarder=self.forwarder,
            responses=responses,
        )
        gateway.events.subscribe(SessionEnded, lambda event: self._streams.forget(event.session))

    def _forwarder(self, hop_key: bytes | None, workers: WorkerSockets | None) -> Forwarder | None:
        shared = self.gateway.sessions.shared
        if hop_key is None or shared is None:
            return None
        signer = HopSigner(hop_key, shared.rows.ownership.owner, shared.rows.now_ms)
        return Forwarder(self.gateway, shared, signer, self._streams.attach, workers)

    def arrive(self, transport: Any) -> Arrival:
        """Return the origin of a new connection."""
        return self.authorizer.arrivals.of(transport)

    def refuses(self, scope: Scope) -> int | None:
        """Return the error status if the Host or Origin of a request is not allowed, else None."""
        return self.authorizer.guard.refuses(dict(scope["headers"]), scope[CONNECTION].arrival.on_loopback)

    async def may_see(self, scope: Scope) -> bool:
        """Return whether a request has a credential with the permission `see`."""
        authorization = dict(scope["headers"]).get(b"authorization")
        proof = HttpProof(scope[CONNECTION].arrival, authorization, scope["headers"])
        return await self.authorizer.permits(proof, Access.SEE)

    def resource_metadata(self, path: str) -> bytes | None:
        """Return the OAuth protected resource metadata for a path, or None."""
        return self.authorizer.resources.metadata(path)

    def limits(self) -> Limits:
        """Return the current limits, which a reload changes."""
        return self.gateway.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and DELETE. POST does not use ASGI."""
        headers = dict(scope["headers"])
        try:
            arrival = scope[CONNECTION].arrival
            authorized = await self.access.authorize(scope["raw_path"], headers, arrival, scope["headers"])
            await self._answer(scope, send, headers, authorized, forwarded=False)
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)

    async def answer_forwarded(self, scope: Scope, send: Send, authorized: Authorized) -> None:
        """Answer a request that another gateway has authorized and forwarded."""
        try:
            await self._answer(scope, send, dict(scope["headers"]), authorized, forwarded=True)
        except HttpRefused as refused:
            await respond_json(send, refused.status, refused.body, refused.headers)

    async def _answer(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], authorized: Authorized, *, forwarded: bool
    ) -> None:
        """Raises HttpRefused."""
        if headers.get(b"mcp-protocol-version", b"").decode("latin-1") in STATELESS_REVISIONS:
            raise self.access.refused(405, "This revision uses POST only.", [(b"allow", b"POST")])
        if scope["method"] not in ("GET", "DELETE"):
            raise self.access.refused(405, "Use POST, GET or DELETE.", [(b"allow", b"POST, GET, DELETE")])
        if scope["method"] == "GET" and b"text/event-stream" not in headers.get(b"accept", b""):
            raise self.access.refused(406, "A GET here is an event stream: accept text/event-stream.")
        session = self.access.session(headers, authorized.caller)
        if session is None:
            session = await self._session_elsewhere(scope, send, headers, authorized, forwarded=forwarded)
        if session is None:
            return
        if scope["method"] == "GET":
            await self._get(scope, send, headers, session, authorized)
        else:
            await self.gateway.sessions.end(session)
            await respond(send, 200)

    async def _session_elsewhere(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], authorized: Authorized, *, forwarded: bool
    ) -> Session | None:
        """Return the session if it is held here after all, or None if its home has answered. Raises HttpRefused."""
        forwarder = self.forwarder
        if forwarder is None:
            raise self.access.unknown_session()
        session_id = headers[b"mcp-session-id"].decode("latin-1")
        try:
            if forwarded:
                session = await forwarder.homes.find_local(session_id, authorized.caller)
                if session is None:
                    await respond(send, NOT_HERE)
                return session
            return await self._with_home(forwarder, scope, send, authorized, session_id)
        except TaskgateError as problem:
            raise self.access.failed(problem, status=503) from None

    async def _with_home(
        self, forwarder: Forwarder, scope: Scope, send: Send, authorized: Authorized, session_id: str
    ) -> Session | None:
        """As `_session_elsewhere`. If the home is dead or does not have the session, look it up again."""
        url = _url(scope)
        for _ in range(_TRIES):
            found = await forwarder.homes.locate(session_id, authorized.caller)
            if found is None:
                raise self.access.unknown_session()
            if not isinstance(found, str):
                return found
            if scope["method"] == "GET":
                connection: CallerConnection = scope[CONNECTION]
                if forwarder.hand_over(connection, url, scope["headers"], found):
                    await connection.ended()
                    return None
                answered = await self._relay_stream(forwarder, scope, send, authorized, found)
            else:
                reply = await forwarder.delete_session(url, scope["headers"], authorized, found)
                answered = reply.status != NOT_HERE
                if answered:
                    await respond(send, reply.status, reply.body)
            if answered:
                return None
            forwarder.homes.forget(session_id)
            await clock.sleep(_PAUSE_S)
        raise self.access.unknown_session()

    async def _relay_stream(
        self, forwarder: Forwarder, scope: Scope, send: Send, authorized: Authorized, home: str
    ) -> bool:
        """Relay a session's stream from its home. Return False if the home does not have the session."""
        answered = False
        with OpenStream(scope.get(CONNECTION), send, self._responses, authorized) as stream:
            answered = await forwarder.relay_stream(stream.send, _url(scope), scope["headers"], authorized, home)
        if stream.ended is None:
            return answered
        await self._end_stream(stream)
        return True

    async def _end_stream(self, stream: OpenStream) -> None:
        if stream.ended is not None and not stream.started:
            challenge = self.authorizer.resources.challenge("", "invalid_token")
            raise self.access.refused(401, stream.ended.text, [challenge])
        await stream.finish()

    async def _get(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], session: Session, authorized: Authorized
    ) -> None:
        """Serve the session's stream, or resume an interrupted one (transports: resumability)."""
        stream, after = session.outlet, 0
        last = headers.get(b"last-event-id")
        if last is not None:
            buffers = self._streams.buffers.get(session.id)
            found = buffers.find(last.decode("latin-1")) if buffers is not None else None
            # Messages buffered by a gateway that died are lost; the session's stream continues from here.
            is_lost = found is None and session.moves > 0 and last.startswith(b"g")
            if found is None and not is_lost:
                raise self.access.refused(400, "This Last-Event-ID cannot be resumed.")
            stream, after = found or (session.outlet, 0)
        if isinstance(stream, EventStream):
            session.stream_opened()
            try:
                await self._follow(scope, send, authorized, stream, after, primes=session.version == PRIMING_REVISION)
            finally:
                session.stream_closed()
                self.gateway.sessions.touch(session)

    async def _follow(
        self, scope: Scope, send: Send, authorized: Authorized, stream: EventStream, after: int, *, primes: bool
    ) -> None:
        """Write the stream. `primes`: it starts with an event that a client can resume from."""
        with OpenStream(scope.get(CONNECTION), send, self._responses, authorized) as opened:
            await opened.send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            if primes and not after:
                await opened.send({"type": "http.response.body", "body": stream.priming_frame(), "more_body": True})
            async with aclosing(stream.follow(after, _drops(scope.get(CONNECTION)))) as frames:
                async for frame in frames:
                    await opened.send({"type": "http.response.body", "body": frame, "more_body": True})
        await self._end_stream(opened)


def _url(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


def _drops(connection: object) -> Callable[[], None] | None:
    return connection.drop if isinstance(connection, CallerConnection) else None
