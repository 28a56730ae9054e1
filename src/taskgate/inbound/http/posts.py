"""Messages that come by POST: find out in which generation they speak, hand them to the gateway, bring the answer back.

HTTP's own words (statuses, session ids, headers) are chosen here; what a message means is the gateway's business.

What a connection asks for by its address and its headers: fewer servers, fewer tools.

Callers repeat the same wish with every request, so a wish once read is remembered. Whether it may be granted is decided behind
the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from functools import lru_cache
from typing import Any, Final

from taskgate import clock
from taskgate.access.credentials import NotVerifiedYet
from taskgate.access.open_responses import Ended, OpenResponses
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.generations.generation import STATELESS_REVISIONS, Generation
from taskgate.core.generations.stateless import check_headers, has_envelope, read_envelope
from taskgate.core.identity.caller import Caller
from taskgate.core.meta import META
from taskgate.core.scoping.session_request import NO_WISH, SERVERS_HEADER, TOOLS_HEADER, SessionRequest
from taskgate.core.sliced_reading import reads_quickly
from taskgate.core.wire import InvalidMessage, Kind, Message, MessageReader
from taskgate.gateway.requests.replies import CallerReply, stopped_before_reply
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.http.entrance import Entrance, HttpRefused, retry_after
from taskgate.inbound.http.event_stream import SessionStreams
from taskgate.inbound.http.forward import Forwarder
from taskgate.inbound.http.hop import NOT_HERE
from taskgate.inbound.http.post import Post
from taskgate.inbound.http.refusals import without_claims
from taskgate.reading import read_batch, read_message
from taskgate.telemetry.logs import log

_SERVERS: Final = SERVERS_HEADER.encode("ascii")
_TOOLS: Final = TOOLS_HEADER.encode("ascii")


def narrowing_of(
    query: bytes, headers: dict[bytes, bytes], every_header: Iterable[tuple[bytes, bytes]]
) -> SessionRequest:
    """The wish of one HTTP request. A header given several times narrows several times. Raises CallerError."""
    if not query and _SERVERS not in headers and _TOOLS not in headers:
        return NO_WISH
    return _read(query, tuple((name, value) for name, value in every_header if name in (_SERVERS, _TOOLS)))


@lru_cache(maxsize=4096)
def _read(query: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> SessionRequest:
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return SessionRequest.from_query(query.decode("latin-1")).narrowed(SessionRequest.from_pairs(pairs))


PRIMING_REVISION: Final = "2025-11-25"
BATCH_REVISION: Final = "2025-03-26"
LISTEN: Final = "subscriptions/listen"
_STATELESS: Final = frozenset(revision.encode("ascii") for revision in STATELESS_REVISIONS)


class PostHandler:
    def __init__(
        self,
        gateway: TransportServices,
        entrance: Entrance,
        streams: SessionStreams,
        reader: MessageReader,
        forwarder: Forwarder | None,
        *,
        responses: OpenResponses,
    ) -> None:
        """`forwarder` reaches the other gateways on the same store, if there are any."""
        self._responses = responses
        self._forwarder = forwarder
        self._gateway = gateway
        self._entrance = entrance
        self._streams = streams
        self._reader = reader

    async def answer(self, post: Post) -> None:
        """Answer one POST, whatever happens."""
        try:
            try:
                caller = self._admitted(post)
            except NotVerifiedYet:
                caller = await self._verified(post)
            message = self._read(post) if reads_quickly(post.body) else await self._read_large(post)
            await self._answering(post, caller, message)
        except HttpRefused as refused:
            post.respond(refused.status, without_claims(refused.body, post.body), refused.headers)
        except asyncio.CancelledError:
            if post.withdrawn is None and not post.disconnected:
                raise
            if post.withdrawn is not None:
                refusal = self._withdrawal(post.withdrawn, None, Generation.STATEFUL, Executed.NO)
                await post.finish(200, without_claims(refusal.body, post.body))
        except Exception as fault:
            # Around one request: whatever breaks here breaks for this caller only.
            log.error("a request could not be answered", exc_info=fault)
            post.respond(500)
        finally:
            if post.hold is not None:
                post.hold.release()

    def _admitted(self, post: Post) -> Caller:
        """Raises HttpRefused, and NotVerifiedYet."""
        authorized = post.authorized
        if authorized is None:
            authorized = self._entrance.admit(post.path, post.headers, post.arrival, post.every_header)
            post.admit(authorized)
        return authorized.caller

    async def _verified(self, post: Post) -> Caller:
        began = clock.monotonic()
        authorized = await self._entrance.authorize(post.path, post.headers, post.arrival, post.every_header)
        post.admit(authorized)
        post.waited_since(began)
        return authorized.caller

    def _answering(self, post: Post, caller: Caller, message: Message | None) -> Coroutine[Any, Any, None]:
        """By generation and method; None stands for several messages."""
        if message is None:
            return self._batch(post, caller)
        if post.headers.get(b"mcp-protocol-version") in _STATELESS or (
            message.params and META in message.params and has_envelope(message.params)
        ):
            return self._stateless(post, caller, message)
        if message.kind is Kind.REQUEST and message.method == "initialize":
            return self._initialize(post, caller, message)
        return self._stateful(post, caller, message)

    def _read(self, post: Post) -> Message | None:
        """The message; None if there are several. Raises HttpRefused."""
        self._check_body(post)
        try:
            return self._reader.read(post.body)
        except TaskgateError as problem:
            self._refuse_unless_batch(post, problem)
            return None

    async def _read_large(self, post: Post) -> Message | None:
        """The same in slices. What that takes is not time that the message has waited."""
        self._check_body(post)
        began = clock.monotonic()
        try:
            return None if wire.is_batch(post.body) else await read_message(self._reader, post.body)
        except TaskgateError as problem:
            self._refuse_unless_batch(post, problem)
            return None
        finally:
            post.waited_since(began)

    def _check_body(self, post: Post) -> None:
        if post.too_large:
            problem = CallerError("request_too_large", f"A request may have at most {post.limit} bytes.")
            raise self._entrance.failed(problem)
        if not post.headers.get(b"content-type", b"").lower().startswith(b"application/json"):
            raise self._entrance.refused(415, "Send application/json.")

    def _refuse_unless_batch(self, post: Post, problem: TaskgateError) -> None:
        if isinstance(problem, InvalidMessage) and wire.is_batch(post.body):
            return
        message_id = problem.message_id if isinstance(problem, InvalidMessage) else None
        raise self._entrance.failed(problem, message_id) from None

    # The stateless generation

    async def _stateless(self, post: Post, caller: Caller, message: Message) -> None:
        if message.kind is not Kind.REQUEST:
            self._take_stateless(post, message)
            return
        if (
            self._forwarder is not None
            and not post.forwarded
            and await self._took(self._forwarder, post, caller, message)
        ):
            return
        try:
            envelope = read_envelope(message.params, post.headers.get(b"mcp-protocol-version"))
            check_headers(message.method, message.params, envelope.version, post.headers)
            narrowing = narrowing_of(post.query, post.headers, post.every_header)
            if narrowing is not NO_WISH:
                self._gateway.sessions.admit(caller, narrowing)
        except TaskgateError as problem:
            raise self._entrance.failed(problem, message.id, Generation.STATELESS) from None
        request = Request.opened(
            message,
            caller,
            post,
            envelope=envelope,
            narrowing=narrowing,
            headers=post.headers,
            carrier=post.work,
            arrived=post.arrived,
        )
        # In this generation a closed stream is the cancel.
        post.cancel_when_lost()
        if message.method == LISTEN:
            post.bind(self._responses, survives_expiry=False)
        try:
            reply = await self._gateway.requests.answer(request)
        except asyncio.CancelledError:
            cut_short = self._cut_short(post, request)
            if post.disconnected or cut_short is None:
                raise
            reply = cut_short
        if reply is None:
            return
        try:
            await post.finish(reply.status, reply.body, retry_after(reply) if reply.retry_after_s else None)
        finally:
            if request.delivery.on_delivered is not None:
                request.delivery.delivered(post.still_there)

    def _take_stateless(self, post: Post, message: Message) -> None:
        if message.kind is Kind.RESPONSE:
            problem = CallerError("invalid_request", "This revision has no responses from callers.")
            raise self._entrance.failed(problem, None, Generation.STATELESS)
        post.respond(202)

    # The stateful generation

    async def _stateful(self, post: Post, caller: Caller, message: Message) -> None:
        """For the caller as its present credential describes it: roles may have changed since the session began."""
        session = self._entrance.session(post.headers, caller, message.id)
        if session is None:
            began = clock.monotonic()
            session = await self._elsewhere(post, caller, message)
            if session is None:
                return
            post.waited_since(began)
        if message.kind is not Kind.REQUEST:
            await self._take(session, message)
            post.respond(202)
            return
        post.resumable_from(self._streams.buffers.get(session.id), primed=session.version == PRIMING_REVISION)
        request = Request.opened(
            message, caller, post, session, headers=post.headers, carrier=post.work, arrived=post.arrived
        )
        try:
            reply = await self._gateway.requests.answer(request)
        except asyncio.CancelledError:
            if self._gateway.status.stopping:
                raise
            reply = self._cut_short(post, request)
            if reply is None:
                await post.abandon()
                return
        if reply is None:
            return
        try:
            # Stateful clients read a JSON-RPC error only out of a 200: some end their session at any other status.
            await post.finish(200, reply.body, retry_after(reply) if reply.retry_after_s else None)
        finally:
            if request.delivery.on_delivered is not None:
                request.delivery.delivered(post.still_there)

    def _cut_short(self, post: Post, request: Request) -> CallerReply | None:
        """The reply to a request whose work was cancelled by the gateway; None if its caller cancelled it."""
        message_id, generation = request.message.id, request.generation
        if post.withdrawn is not None:
            executed = Executed.MAYBE if request.delivery.sent else Executed.NO
            return self._withdrawal(post.withdrawn, request.message, generation, executed)
        if self._gateway.requests.tasks.draining:
            return self._gateway.requests.failure(
                stopped_before_reply(request.message), message_id, generation, request.message
            )
        return None

    def _withdrawal(
        self, ended: Ended, message: Message | None, generation: Generation, executed: Executed
    ) -> CallerReply:
        """The reply to a request whose credential was revoked while it was answered.

        Its status is 200: some clients answer a 401 by logging in and sending the same request once more, and this one may have
        been executed.
        """
        problem = CallerError(ended.reason.value, ended.text, executed=executed)
        return self._gateway.requests.failure(problem, message.id if message is not None else None, generation, message)

    async def _elsewhere(self, post: Post, caller: Caller, message: Message | None) -> Session | None:
        """The session, if it is ours after all; None if its home has answered. Raises HttpRefused."""
        message_id = message.id if message is not None else None
        if self._forwarder is None:
            raise self._entrance.unknown_session(message_id)
        session_id = post.headers[b"mcp-session-id"].decode("latin-1")
        try:
            if post.forwarded:
                return await self._held_here(self._forwarder, post, caller, session_id)
            session = await self._forwarder.answered(post, caller, message, session_id)
        except TaskgateError as problem:
            raise self._entrance.failed(problem, message_id, status=200 if message_id is not None else 503) from None
        if session is None and not post.answered:
            raise self._entrance.unknown_session(message_id)
        return session

    async def _held_here(self, forwarder: Forwarder, post: Post, caller: Caller, session_id: str) -> Session | None:
        """Another gateway asks us: what is not here is its business, never a third one's."""
        found = await forwarder.here(session_id, caller)
        if found is None:
            post.respond(NOT_HERE)
        return found

    async def _took(self, forwarder: Forwarder, post: Post, caller: Caller, message: Message) -> bool:
        began = clock.monotonic()
        try:
            took = await forwarder.took(post, caller, message)
        except TaskgateError as problem:
            raise self._entrance.failed(problem, message.id, Generation.STATELESS) from None
        post.waited_since(began)
        return took

    async def _take(self, session: Session, message: Message) -> None:
        if message.kind is Kind.RESPONSE:
            keep = session.answered(message)
            if keep is not None:
                await keep()
        else:
            await self._gateway.sessions.notified(session, message)

    async def _initialize(self, post: Post, caller: Caller, message: Message) -> None:
        try:
            narrowing = narrowing_of(post.query, post.headers, post.every_header)
            session, reply = await self._gateway.sessions.initialize(message, caller, narrowing)
        except TaskgateError as problem:
            raise self._entrance.failed(problem, message.id, status=200) from None
        self._streams.attach(session)
        post.respond(200, reply, [(b"mcp-session-id", session.id.encode("ascii"))])

    async def _batch(self, post: Post, caller: Caller) -> None:
        """Only one revision has batches: every request in it is answered, in one array."""
        session = self._entrance.session(post.headers, caller) or await self._elsewhere(post, caller, None)
        if session is None:
            return
        if session.version != BATCH_REVISION:
            raise self._entrance.failed(InvalidMessage("batches exist only in revision 2025-03-26"))
        try:
            messages = await read_batch(self._reader, post.body)
        except TaskgateError as problem:
            raise self._entrance.failed(problem) from None
        requests = [message for message in messages if message.kind is Kind.REQUEST]
        for message in messages:
            if message.kind is not Kind.REQUEST:
                await self._take(session, message)
        if not requests:
            post.respond(202)
            return
        post.resumable_from(self._streams.buffers.get(session.id), primed=False)
        together = _Together(post)
        opened = [Request.opened(message, caller, together, session) for message in requests]
        try:
            replies = await asyncio.gather(*(self._gateway.requests.answer(request) for request in opened))
        except asyncio.CancelledError:
            if post.withdrawn is None:
                raise
            replies, together.bodies = [self._cut_short(post, request) for request in opened], []
        together.bodies += [reply.body for reply in replies if reply is not None]
        try:
            await post.finish(200, b"[" + b",".join(together.bodies) + b"]")
        finally:
            for request in opened:
                request.delivery.delivered(post.still_there)


class _Together:
    """The way back for the requests of one batch: their replies leave together, also those that were ready early."""

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
