"""The `/mcp` endpoint: find out who asks, in which generation and scope, and hand the message to the gateway.

This file owns HTTP: methods, headers, status codes, session ids, streams. What a message means is the gateway's business.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import unquote

from taskgate.core import wire
from taskgate.core.caller import Caller
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.generations import STATEFUL_REVISIONS, STATELESS_REVISIONS, Generation
from taskgate.core.generations.stateless_2026 import check_headers, has_envelope, read_envelope, unsupported_version
from taskgate.core.wire import InvalidMessage, Kind, Message
from taskgate.doors.http.asgi import (
    SSE_HEADERS,
    BodyTooLarge,
    Disconnected,
    Headers,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_json,
)
from taskgate.doors.http.connection import CONNECTION, Connection
from taskgate.doors.http.event_stream import EventStream, StreamShelf
from taskgate.doors.http.guard import Guard
from taskgate.doors.http.post_reply import PostReply
from taskgate.doors.identity import Doorkeeper, Identity, WrongToken
from taskgate.doors.narrowing import NO_WISH, narrowing_of
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.replies import Reply
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session

PRIMING_REVISION: Final = "2025-11-25"
BATCH_REVISION: Final = "2025-03-26"


class McpDoor:
    def __init__(self, gateway: Gateway, guard: Guard, doorkeeper: Doorkeeper) -> None:
        self.gateway = gateway
        self.guard = guard
        self.doorkeeper = doorkeeper
        self._shelves: dict[str, StreamShelf] = {}
        gateway.when_session_ends(self._forget)

    def _forget(self, session: Session) -> None:
        self._shelves.pop(session.id, None)
        if isinstance(session.outlet, EventStream):
            session.outlet.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        refused = self.guard.refuses(headers)
        if refused is not None:
            await self._refuse(send, refused, "This Host or Origin is not allowed here. See allowed_hosts.")
            return
        try:
            identity = self.doorkeeper.identify(headers.get(b"authorization"))
        except WrongToken:
            await self._refuse(send, 401, "The bearer token is not known.", [(b"www-authenticate", b"Bearer")])
            return
        caller = self._caller(scope["path"], identity)
        if caller is None:
            await self._refuse(send, 404, self._nothing_here(scope["path"], identity))
        elif scope["method"] == "POST":
            await self._post(scope, receive, send, headers, caller)
        elif headers.get(b"mcp-protocol-version", b"").decode("latin-1") in STATELESS_REVISIONS:
            await self._refuse(send, 405, "This revision uses POST only.", [(b"allow", b"POST")])
        elif scope["method"] == "GET":
            await self._get(scope, send, headers, caller)
        elif scope["method"] == "DELETE":
            await self._delete(send, headers, caller)
        else:
            await self._refuse(send, 405, "Use POST, GET or DELETE.", [(b"allow", b"POST, GET, DELETE")])

    def _caller(self, path: str, identity: Identity) -> Caller | None:
        """The scope comes from the address, or from the token; one bound to a token cannot be left by an address."""
        asked = _scope_in(path) or identity.scope or self.gateway.default_scope
        if identity.scope is not None and asked != identity.scope:
            return None
        if not self.gateway.has_scope(asked):
            return None
        return Caller(identity.principal, identity.roles, asked)

    def _nothing_here(self, path: str, identity: Identity) -> str:
        """Which scopes there are is told only to an operator; everyone else gets one and the same sentence."""
        text = "There is nothing at this address."
        if not identity.is_operator:
            return text
        return f"{text} {self.gateway.scope_hint(_scope_in(path) or self.gateway.default_scope)}"

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes], caller: Caller
    ) -> None:
        try:
            body = await read_body(scope, receive, headers, self.gateway.limits.request_bytes)
        except BodyTooLarge:
            limit = self.gateway.limits.request_bytes
            await self._fail(send, CallerError("request_too_large", f"A request may have at most {limit} bytes."))
            return
        except Disconnected:
            return
        if not headers.get(b"content-type", b"").lower().startswith(b"application/json"):
            await self._refuse(send, 415, "Send application/json.")
            return
        try:
            if wire.is_batch(body):
                await self._batch(scope, send, headers, caller, body)
                return
            message = wire.read(body)
        except TaskgateError as problem:
            message_id = problem.message_id if isinstance(problem, InvalidMessage) else None
            await self._fail(send, problem, message_id)
            return
        if self._is_stateless(headers, message):
            await self._stateless(scope, send, headers, caller, message)
        else:
            await self._stateful(scope, send, headers, caller, message)

    def _is_stateless(self, headers: dict[bytes, bytes], message: Message) -> bool:
        version = headers.get(b"mcp-protocol-version")
        if version is not None and version.decode("latin-1") in STATELESS_REVISIONS:
            return True
        return message.kind is not Kind.RESPONSE and has_envelope(message.params)

    # The stateless generation

    async def _stateless(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, message: Message
    ) -> None:
        if message.kind is Kind.RESPONSE:
            await self._fail(send, CallerError("invalid_request", "This revision has no responses from callers."))
            return
        if message.kind is Kind.NOTIFICATION:
            await respond(send, 202)
            return
        outlet = PostReply(send, None)
        outlet.prefers_stream = prefers_stream(headers)
        try:
            envelope = read_envelope(message.params, headers.get(b"mcp-protocol-version"))
            check_headers(message.method, message.params, envelope.version, headers)
            narrowing = narrowing_of(scope["query_string"], headers, scope["headers"])
            if narrowing is not NO_WISH:
                self.gateway.admit(caller, narrowing)
            request = Request(message, caller, outlet, envelope=envelope, narrowing=narrowing, headers=headers)
        except TaskgateError as problem:
            await self._fail(send, problem, message.id, Generation.STATELESS)
            return
        work = asyncio.current_task()
        connection = scope.get(CONNECTION)
        if isinstance(connection, Connection) and work is not None:
            # In this generation a closed stream is the cancel.
            connection.on_lost = lambda: _cancel(work)
        request.respond = lambda body: outlet.finish(200, body, [])
        request.reachable = lambda: _still_there(scope)
        request.detach = lambda: _let_go(connection)
        try:
            reply = await self.gateway.answer(request)
        except asyncio.CancelledError:
            if isinstance(connection, Connection) and connection.transport.is_closing():
                return
            raise
        finally:
            if not request.answered:
                _let_go(connection)
        if reply is None:
            return
        try:
            await outlet.finish(reply.status, reply.body, _retry_after(reply))
        finally:
            request.settled(_still_there(scope))

    # The stateful generation

    async def _stateful(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, message: Message
    ) -> None:
        if message.kind is Kind.REQUEST and message.method == "initialize":
            await self._initialize(scope, send, headers, caller, message)
            return
        session = await self._session(send, headers, caller, message.id)
        if session is None:
            return
        if message.kind is not Kind.REQUEST:
            await self._take(session, message)
            await respond(send, 202)
            return
        await self._answer(scope, send, session, message, headers)

    async def _answer(
        self, scope: Scope, send: Send, session: Session, message: Message, headers: dict[bytes, bytes]
    ) -> None:
        outlet = PostReply(send, self._shelves.get(session.id), session.version == PRIMING_REVISION)
        outlet.prefers_stream = prefers_stream(headers)
        request = Request(message, session.caller, outlet, session, headers=headers)
        request.respond = lambda body: outlet.finish(200, body, [])
        request.reachable = lambda: _still_there(scope)
        try:
            reply = await self.gateway.answer(request)
        except asyncio.CancelledError:
            if self.gateway.stopping:
                raise
            await outlet.abandon()
            return
        if reply is None:
            return
        try:
            # Stateful clients read a JSON-RPC error only out of a 200: some end their session at any other status.
            await outlet.finish(200, reply.body, _retry_after(reply))
        finally:
            request.settled(_still_there(scope))

    async def _take(self, session: Session, message: Message) -> None:
        if message.kind is Kind.RESPONSE:
            session.answered(message)
        else:
            await self.gateway.notified(session, message)

    async def _initialize(
        self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, message: Message
    ) -> None:
        try:
            narrowing = narrowing_of(scope["query_string"], headers, scope["headers"])
            session, reply = await self.gateway.initialize(message, caller, narrowing)
        except TaskgateError as problem:
            await self._fail(send, problem, message.id, status=200)
            return
        session.outlet = EventStream("g", resumable=True)
        shelf = self._shelves[session.id] = StreamShelf()
        shelf.adopt(session.outlet)
        await respond_json(send, 200, reply, [(b"mcp-session-id", session.id.encode("ascii"))])

    async def _session(
        self, send: Send, headers: dict[bytes, bytes], caller: Caller, message_id: bytes | None = None
    ) -> Session | None:
        """The session a request names, or None after refusing it."""
        version = headers.get(b"mcp-protocol-version")
        if version is not None and version.decode("latin-1") not in STATEFUL_REVISIONS:
            await self._fail(send, unsupported_version(version.decode("latin-1")), message_id, status=400)
            return None
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            problem = CallerError("not_initialized", "Begin with initialize, then send the Mcp-Session-Id header.")
            await self._fail(send, problem, message_id, status=400)
            return None
        session = self.gateway.find_session(session_id.decode("latin-1"), caller)
        if session is None:
            problem = CallerError("not_initialized", "This session is not known (any more); begin with initialize.")
            await self._fail(send, problem, message_id, status=404)
        return session

    async def _batch(self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller, body: bytes) -> None:
        """Only one revision has batches: every request in it is answered, in one array."""
        session = await self._session(send, headers, caller)
        if session is None:
            return
        if session.version != BATCH_REVISION:
            await self._fail(send, InvalidMessage("batches exist only in revision 2025-03-26"))
            return
        requests: list[Message] = []
        for message in wire.read_batch(body):
            if message.kind is Kind.REQUEST:
                requests.append(message)
            else:
                await self._take(session, message)
        if not requests:
            await respond(send, 202)
            return
        outlet = PostReply(send, self._shelves.get(session.id))
        opened = [Request(message, caller, outlet, session) for message in requests]
        replies = await asyncio.gather(*(self.gateway.answer(request) for request in opened))
        try:
            await outlet.finish(200, b"[" + b",".join(reply.body for reply in replies if reply is not None) + b"]", [])
        finally:
            for request in opened:
                request.settled(_still_there(scope))

    async def _get(self, scope: Scope, send: Send, headers: dict[bytes, bytes], caller: Caller) -> None:
        """The standalone stream, or the rest of a broken one (transports: resumability)."""
        if b"text/event-stream" not in headers.get(b"accept", b""):
            await self._refuse(send, 406, "A GET here is an event stream: accept text/event-stream.")
            return
        session = await self._session(send, headers, caller)
        if session is None:
            return
        stream, after = session.outlet, 0
        last = headers.get(b"last-event-id")
        if last is not None:
            found = self._shelves[session.id].find(last.decode("latin-1")) if session.id in self._shelves else None
            if found is None:
                await self._refuse(send, 400, "This Last-Event-ID cannot be resumed.")
                return
            stream, after = found
        if isinstance(stream, EventStream):
            await self._follow(scope, send, session, stream, after)

    async def _follow(self, scope: Scope, send: Send, session: Session, stream: EventStream, after: int) -> None:
        connection, work = scope.get(CONNECTION), asyncio.current_task()
        if isinstance(connection, Connection) and work is not None:
            connection.on_lost = lambda: _cancel(work)
        session.open_requests += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            if session.version == PRIMING_REVISION and not after:
                await send({"type": "http.response.body", "body": stream.priming_frame(), "more_body": True})
            async for frame in stream.follow(after):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not (isinstance(connection, Connection) and connection.transport.is_closing()):
                raise
        finally:
            session.open_requests -= 1
            self.gateway.touch(session)
            if isinstance(connection, Connection):
                connection.on_lost = None

    async def _delete(self, send: Send, headers: dict[bytes, bytes], caller: Caller) -> None:
        session = await self._session(send, headers, caller)
        if session is not None:
            await self.gateway.end_session(session)
            await respond(send, 200)

    # Refusals

    async def _fail(
        self,
        send: Send,
        problem: TaskgateError,
        message_id: bytes | None = None,
        generation: Generation = Generation.STATEFUL,
        status: int | None = None,
    ) -> None:
        reply = self.gateway.failure(problem, message_id, generation)
        await respond_json(send, status or reply.status, reply.body, _retry_after(reply))

    async def _refuse(self, send: Send, status: int, text: str, headers: Headers | None = None) -> None:
        fault = GatewayFault("invalid_request", text)
        await respond_json(send, status, self.gateway.failure(fault, None, Generation.STATEFUL).body, headers)


def _scope_in(path: str) -> str:
    asked = unquote(path[len("/mcp") :]).strip("/")
    return "" if asked == "v1" else asked


def prefers_stream(headers: dict[bytes, bytes]) -> bool:
    """A caller that names event streams before JSON, or alone, gets its answers as streams."""
    return headers.get(b"accept", b"").lstrip().startswith(b"text/event-stream")


def _let_go(connection: object) -> None:
    if isinstance(connection, Connection):
        connection.on_lost = None


def _still_there(scope: Scope) -> bool:
    """Whether the connection that a reply was written to was still open afterwards."""
    connection = scope.get(CONNECTION)
    return not (isinstance(connection, Connection) and connection.transport.is_closing())


def _cancel(work: asyncio.Task[object]) -> None:
    work.cancel()


def _retry_after(reply: Reply) -> Headers:
    return [(b"retry-after", b"%d" % max(1, round(reply.retry_after_s)))] if reply.retry_after_s is not None else []
