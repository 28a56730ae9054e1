"""Answer POST requests: determine the protocol generation, pass messages to the gateway, and send the response.

HTTP statuses, session ids and headers are handled here; the gateway interprets the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NoReturn

import msgspec

from taskgate import clock
from taskgate.access.authorize import Authorized
from taskgate.access.credentials import NotVerifiedYet
from taskgate.access.open_responses import Ended, OpenResponses
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import check_headers, has_envelope, read_envelope
from taskgate.core.identity.caller import Caller
from taskgate.core.meta import META
from taskgate.core.scoping.session_request import NO_REQUEST
from taskgate.core.sliced_reading import reads_quickly
from taskgate.core.wire import REQUEST, RESPONSE, InvalidMessage, Message, MessageReader
from taskgate.gateway.requests.replies import CallerReply, stopped_before_reply
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.http.forward import Forwarder
from taskgate.inbound.http.hop import NOT_HERE
from taskgate.inbound.http.mcp_access import HttpRefused, McpAccess, retry_after
from taskgate.inbound.http.narrowing import narrowing_of
from taskgate.inbound.http.post_request import Post
from taskgate.inbound.http.refusals import without_unproved_executed
from taskgate.inbound.http.session_streams import SessionStreams
from taskgate.reading import read_batch, read_message
from taskgate.telemetry.logs import log

PRIMING_REVISION: Final = "2025-11-25"
BATCH_REVISION: Final = "2025-03-26"
LISTEN: Final = "subscriptions/listen"


class PostHandler(msgspec.Struct, eq=False, kw_only=True):
    gateway: TransportServices
    access: McpAccess
    streams: SessionStreams
    reader: MessageReader
    forwarder: Forwarder | None
    """Reaches other gateways on the same store; None if there are none."""
    responses: OpenResponses

    async def answer(self, post: Post) -> None:
        """Answer one POST request. Does not raise."""
        post.note_arrival()
        try:
            try:
                try:
                    authorized = self._admitted(post)
                except NotVerifiedYet:
                    authorized = await self._verified(post)
                message = self._read(post) if reads_quickly(post.body) else await self._read_large(post)
                await self._dispatch(post, authorized.caller, message)
            except HttpRefused as refused:
                post.respond(refused.status, without_unproved_executed(refused.body, post.body), refused.headers)
            except asyncio.CancelledError:
                if post.access_ended is None and not post.disconnected:
                    raise
                if post.access_ended is not None:
                    refusal = self._access_ended_reply(post.access_ended, None, Generation.STATEFUL, Executed.NO)
                    await post.finish(200, without_unproved_executed(refusal.body, post.body))
        except Exception as fault:
            # A bug must affect this request only, also if it is in the code that refuses a request.
            log.error("request failed with an internal error", exc_info=fault)
            post.respond(500)
        finally:
            post.release()

    def _dispatch(self, post: Post, caller: Caller, message: Message | None) -> Coroutine[Any, Any, None]:
        """Return the coroutine for the generation and method of a message; None is a batch."""
        if message is None:
            if post.head.is_stateless:
                raise self.access.failed(_no_batch())
            return self._batch(post, caller)
        if post.head.is_stateless or (message.params and META in message.params and has_envelope(message.params)):
            return self._stateless(post, caller, message)
        if message.kind is REQUEST and message.method == "initialize":
            return self._initialize(post, caller, message)
        return self._stateful(post, caller, message)

    def _admitted(self, post: Post) -> Authorized:
        """Authorize without waiting. Raises HttpRefused and NotVerifiedYet."""
        authorized = post.authorized
        if authorized is not None:
            # Another gateway has authorized it.
            return authorized
        authorized = self.access.admit(post.head, post.arrival)
        post.admit(authorized)
        return authorized

    async def _verified(self, post: Post) -> Authorized:
        began = clock.monotonic()
        authorized = await self.access.authorize(post.path, post.headers, post.arrival, post.every_header)
        post.admit(authorized)
        post.exclude_wait_since(began)
        return authorized

    def _read(self, post: Post) -> Message | None:
        """Return the message, or None for a batch. Raises HttpRefused."""
        if post.too_large or not post.head.is_json:
            self._refuse_body(post)
        try:
            return self.reader.read(post.body)
        except TaskgateError as problem:
            self._refuse_unless_batch(post, problem)
            return None

    async def _read_large(self, post: Post) -> Message | None:
        """As `_read`, in slices. The time it takes does not count as waiting time."""
        if post.too_large or not post.head.is_json:
            self._refuse_body(post)
        began = clock.monotonic()
        try:
            return None if wire.is_batch(post.body) else await read_message(self.reader, post.body)
        except TaskgateError as problem:
            self._refuse_unless_batch(post, problem)
            return None
        finally:
            post.exclude_wait_since(began)

    def _refuse_body(self, post: Post) -> NoReturn:
        if post.too_large:
            problem = CallerError("request_too_large", f"The request exceeds {post.limit} bytes.")
            raise self.access.failed(problem)
        raise self.access.refused(415, "The Content-Type must be application/json.")

    def _refuse_unless_batch(self, post: Post, problem: TaskgateError) -> None:
        if isinstance(problem, InvalidMessage) and wire.is_batch(post.body):
            return
        message_id = problem.message_id if isinstance(problem, InvalidMessage) else None
        raise self.access.failed(problem, message_id) from None

    # The stateless generation

    async def _stateless(self, post: Post, caller: Caller, message: Message) -> None:
        if message.kind is not REQUEST:
            self._take_stateless(post, message)
            return
        if (
            self.forwarder is not None
            and not post.forwarded
            and await self._forward_stateless(self.forwarder, post, caller, message)
        ):
            return
        try:
            # The envelope and the headers must agree.
            envelope = read_envelope(message.params, post.headers.get(b"mcp-protocol-version"))
            check_headers(message.method, message.params, envelope.version, post.headers)
            narrowing = narrowing_of(post.query, post.headers, post.every_header)
            if narrowing is not NO_REQUEST:
                self.gateway.sessions.admit(caller, narrowing)
        except TaskgateError as problem:
            raise self.access.failed(problem, message.id, Generation.STATELESS) from None
        request = Request.opened(
            message,
            caller,
            post,
            None,
            envelope,
            narrowing=narrowing,
            headers=post.headers,
            carrier=post.work,
            arrived=post.arrived,
        )
        # In this generation a disconnect cancels the request.
        post.cancel_when_disconnected()
        if not post.still_there:
            return
        if message.method == LISTEN:
            post.bind(self.responses, survives_expiry=False)
        try:
            reply = await self.gateway.requests.answer(request)
        except asyncio.CancelledError:
            cancelled = self._cancelled_reply(post, request)
            if post.disconnected or cancelled is None:
                raise
            reply = cancelled
        if reply is not None and (reply.retry_after_s or not post.finish_at_once(request, reply.status, reply.body)):
            await self._finish(post, request, reply, reply.status)

    def _take_stateless(self, post: Post, message: Message) -> None:
        if message.kind is RESPONSE:
            problem = CallerError("invalid_request", "This protocol revision has no responses from callers.")
            raise self.access.failed(problem, None, Generation.STATELESS)
        post.respond(202)

    # The stateful generation

    async def _stateful(self, post: Post, caller: Caller, message: Message) -> None:
        """Answer a message of a session. `caller` comes from the current credential: roles may have changed since initialize."""
        session = self.access.session(post.headers, caller, message.id)
        if session is None:
            began = clock.monotonic()
            session = await self._session_elsewhere(post, caller, message)
            if session is None:
                return
            post.exclude_wait_since(began)
        if message.kind is not REQUEST:
            await self._take(session, message)
            post.respond(202)
            return
        post.set_stream_buffers(self.streams.buffers.get(session.id), primed=session.version == PRIMING_REVISION)
        request = Request.opened(
            message, caller, post, session, headers=post.headers, carrier=post.work, arrived=post.arrived
        )
        try:
            reply = await self.gateway.requests.answer(request)
        except asyncio.CancelledError:
            if self.gateway.status.stopping:
                raise
            reply = self._cancelled_reply(post, request)
            if reply is None:
                await post.abandon()
                return
        # Some stateful clients end their session at any status other than 200, so JSON-RPC errors use 200.
        if reply is not None and (reply.retry_after_s or not post.finish_at_once(request, 200, reply.body)):
            await self._finish(post, request, reply, 200)

    async def _finish(self, post: Post, request: Request, reply: CallerReply, status: int) -> None:
        try:
            await post.finish(status, reply.body, retry_after(reply) if reply.retry_after_s else None)
        finally:
            request.delivery.delivered(post.still_there)

    def _cancelled_reply(self, post: Post, request: Request) -> CallerReply | None:
        """Return the reply to a request that the gateway cancelled, or None if its caller did."""
        message_id, generation = request.message.id, request.generation
        if post.access_ended is not None:
            executed = Executed.MAYBE if request.delivery.sent else Executed.NO
            return self._access_ended_reply(post.access_ended, request.message, generation, executed)
        if self.gateway.requests.tasks.draining:
            return self.gateway.requests.failure(
                stopped_before_reply(request.message), message_id, generation, request.message
            )
        return None

    def _access_ended_reply(
        self, ended: Ended, message: Message | None, generation: Generation, executed: Executed
    ) -> CallerReply:
        """Return the reply to a request whose credential was revoked meanwhile.

        Its status is 200: after a 401 some clients log in and repeat the request, and this one may have been executed.
        """
        problem = CallerError(ended.reason.value, ended.text, executed=executed)
        return self.gateway.requests.failure(problem, message.id if message is not None else None, generation, message)

    async def _session_elsewhere(self, post: Post, caller: Caller, message: Message | None) -> Session | None:
        """Return the session if it is held here after all, or None if its home has answered. Raises HttpRefused."""
        message_id = message.id if message is not None else None
        if self.forwarder is None:
            raise self.access.unknown_session(message_id)
        session_id = post.headers[b"mcp-session-id"].decode("latin-1")
        try:
            if post.forwarded:
                return await self._find_forwarded(self.forwarder, post, caller, session_id)
            session = await self.forwarder.forward(post, caller, message, session_id)
        except TaskgateError as problem:
            raise self.access.failed(problem, message_id, status=200 if message_id is not None else 503) from None
        if session is None and not post.answered:
            raise self.access.unknown_session(message_id)
        return session

    async def _find_forwarded(
        self, forwarder: Forwarder, post: Post, caller: Caller, session_id: str
    ) -> Session | None:
        """Return the session of a forwarded request, or respond `NOT_HERE`: nothing is forwarded twice."""
        found = await forwarder.homes.find_local(session_id, caller)
        if found is None:
            post.respond(NOT_HERE)
        return found

    async def _forward_stateless(self, forwarder: Forwarder, post: Post, caller: Caller, message: Message) -> bool:
        began = clock.monotonic()
        try:
            answered = await forwarder.forward_stateless(post, caller, message)
        except TaskgateError as problem:
            raise self.access.failed(problem, message.id, Generation.STATELESS) from None
        post.exclude_wait_since(began)
        return answered

    async def _take(self, session: Session, message: Message) -> None:
        if message.kind is RESPONSE:
            keep = session.answered(message)
            if keep is not None:
                await keep()
        else:
            await self.gateway.sessions.notified(session, message)

    async def _initialize(self, post: Post, caller: Caller, message: Message) -> None:
        try:
            narrowing = narrowing_of(post.query, post.headers, post.every_header)
            session, reply = await self.gateway.sessions.initialize(message, caller, narrowing)
        except TaskgateError as problem:
            raise self.access.failed(problem, message.id, status=200) from None
        self.streams.attach(session)
        post.respond(200, reply, [(b"mcp-session-id", session.id.encode("ascii"))])

    async def _batch(self, post: Post, caller: Caller) -> None:
        """Answer a batch (revision 2025-03-26 only) with one array."""
        session = self.access.session(post.headers, caller) or await self._session_elsewhere(post, caller, None)
        if session is None:
            return
        if session.version != BATCH_REVISION:
            raise self.access.failed(_no_batch())
        try:
            messages = await read_batch(self.reader, post.body)
        except TaskgateError as problem:
            raise self.access.failed(problem) from None
        requests = [message for message in messages if message.kind is REQUEST]
        for message in messages:
            if message.kind is not REQUEST:
                await self._take(session, message)
        if not requests:
            post.respond(202)
            return
        post.set_stream_buffers(self.streams.buffers.get(session.id), primed=False)
        outlet = _BatchOutlet(post)
        opened = [Request.opened(message, caller, outlet, session) for message in requests]
        try:
            replies = await asyncio.gather(*(self.gateway.requests.answer(request) for request in opened))
        except asyncio.CancelledError:
            if post.access_ended is None:
                raise
            replies, outlet.bodies = [self._cancelled_reply(post, request) for request in opened], []
        outlet.bodies += [reply.body for reply in replies if reply is not None]
        try:
            await post.finish(200, b"[" + b",".join(outlet.bodies) + b"]")
        finally:
            for request in opened:
                request.delivery.delivered(post.still_there)


def _no_batch() -> InvalidMessage:
    return InvalidMessage(f"batches are supported in revision {BATCH_REVISION} only")


class _BatchOutlet:
    """The outlet of the requests of a batch, whose replies are sent together."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.bodies: list[bytes] = []

    def send(self, message: bytes) -> None:
        self._post.send(message)

    def hold_open(self) -> None:
        self._post.hold_open()

    async def finish(self, _status: int, body: bytes) -> None:
        self.bodies.append(body)

    @property
    def can_send(self) -> bool:
        return self._post.can_send

    @property
    def still_there(self) -> bool:
        return self._post.still_there

    @property
    def is_read(self) -> bool:
        return self._post.is_read
