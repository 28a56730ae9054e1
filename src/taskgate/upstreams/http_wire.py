"""Streamable HTTP towards a server, for both generations.

Each request is one POST, answered as JSON or as an event stream that identifies the request. Stateful servers may also
send messages on a GET stream and support resuming an interrupted stream; a response on another stream is matched by its
id. The table in docs/errors.md lists what an HTTP status proves about execution.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from taskgate import clock
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.generations.generation import Generation, generation_of
from taskgate.core.sliced_reading import reads_quickly
from taskgate.core.wire import Kind, Message
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply
from taskgate.mcp.http.target import Target
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.upstream_call import StreamNotice
from taskgate.ports.upstream_credentials import HeaderPairs, UpstreamCredentials
from taskgate.reading import read_message
from taskgate.telemetry.logs import log
from taskgate.upstreams.awaited_response import AwaitedResponse
from taskgate.upstreams.failures import (
    HttpRefusal,
    SessionGone,
    broke_protocol,
    timed_out,
    unreachable,
)
from taskgate.upstreams.flight import Flight, Receiver
from taskgate.upstreams.http_failures import explain, refusal
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter

_POST_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)
_RESUME_ATTEMPTS: Final = 3
_MAX_HEADS: Final = 512
_MAX_ASIDE_BYTES: Final = 64 << 20


class HttpWire:
    is_conversation = False

    def __init__(
        self,
        server: str,
        client: HttpClient,
        target: Target,
        intake: Intake,
        credentials: UpstreamCredentials,
        *,
        secret_filter: SecretFilter,
    ) -> None:
        self.server = server
        self._credentials = credentials
        self.secret_filter = secret_filter
        self._sent_proof: HeaderPairs = ()
        self.session_id: str | None = None
        self._client = client
        self._target = target
        self._intake = intake
        self.reader = intake.reader
        self._headers: tuple[tuple[bytes, bytes], ...] = _POST_HEADERS
        self._heads: dict[HeaderPairs, bytes] = {}
        """Rendered heads of requests, by their own headers; all else in them is the same until it changes here."""
        self._generation: Generation | None = None
        self._version = ""
        self._receiver: Receiver | None = None
        self._listening: asyncio.Task[None] | None = None
        self._awaiting: dict[bytes, AwaitedResponse] = {}
        self._aside: dict[asyncio.Task[None], int] = {}

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def settle(self, version: str) -> None:
        self._version = version
        self._generation = generation_of(version)
        self._headers = (*_POST_HEADERS, *self._identity())
        self._heads.clear()

    def use_session(self, session_id: str | None) -> None:
        self.session_id = session_id

    def reset(self) -> None:
        """Forget session and revision: a server rejects even a handshake with an unknown session."""
        self.session_id, self._version, self._headers = None, "", _POST_HEADERS
        self._heads.clear()
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def _identity(self) -> tuple[tuple[bytes, bytes], ...]:
        version = ((b"mcp-protocol-version", self._version.encode("ascii")),) if self._version else ()
        session = ((b"mcp-session-id", self.session_id.encode("latin-1")),) if self.session_id is not None else ()
        return (*version, *session)

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message:
        awaited = AwaitedResponse(self, flight, flight.key, self.session_id is not None)
        proof = self._credentials.headers
        if proof is not self._sent_proof:
            self._note(proof)
        self._awaiting[awaited.key] = awaited
        # One deadline for the whole request, including resumed streams.
        due = clock.monotonic() + flight.timeout_s
        of_caller = flight.request
        in_pool = of_caller is not None and not of_caller.long_lived and flight.timeout_s > 0
        connection = self._client.take_idle(self._target) if in_pool else None
        reply: HttpReply | None
        try:
            try:
                if connection is None:
                    reply = await self._exchange_when_connected(flight, body, headers, awaited, due)
                else:
                    head = self._heads.get(headers) or self._head_with(headers)
                    request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
                    future = connection.begin(request, due, awaited.on_event)
                    try:
                        reply = await future
                    except asyncio.CancelledError:
                        connection.abandon(future)
                        raise
                    finally:
                        # It has the failure, whose traceback refers to this frame (see `send_again`).
                        del future
            except HttpFailure as failure:
                self._check_resumable(failure, flight.timeout_s, awaited)
                reply = None
            if reply is not None and not reply.request_sent and reply.status < 300:
                raise unreachable(self.server, "replied before it had received the request")
            if reply is not None and awaited.last_id is None:
                # The common case: a reply that is no event stream, and can be read at once.
                message = self.reader.read_simple_response(reply.body, awaited.key)
                if message is not None and message.id == awaited.key and of_caller is not None:
                    return message
            return await self._find_response(flight, awaited, reply, due, proof)
        finally:
            del self._awaiting[awaited.key]

    async def _exchange_when_connected(
        self,
        flight: Flight,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        awaited: AwaitedResponse,
        due: float,
    ) -> HttpReply:
        return await self._client.exchange(
            self._target,
            b"POST",
            (*self._headers, *self._sent_proof, *headers),
            body,
            deadline_s=flight.timeout_s,
            on_event=awaited.on_event,
            due=due,
            long_lived=flight.request is not None and flight.request.long_lived,
        )

    async def _find_response(
        self, flight: Flight, awaited: AwaitedResponse, reply: HttpReply | None, due: float, proof: HeaderPairs
    ) -> Message:
        """Return the response from the events or the body of a reply, or from where else it arrives."""
        if awaited.unread is not None:
            await awaited.read_unread()
        if awaited.response is not None:
            if reply is not None and flight.request is None:
                self._adopt_session(reply, awaited.response)
            return awaited.response
        if reply is None or (reply.status == 200 and awaited.last_id is not None):
            return await self._resume(flight, awaited, due)
        message = None
        if reply.body:
            quick = reads_quickly(reply.body)
            message = self.reader.read_response(reply.body) if quick else await self._large_response(reply.body)
        if message is not None and message.id == awaited.key:
            if flight.request is None:
                self._adopt_session(reply, message)
            return message
        return await self._without_response(flight, awaited, reply, message, due, proof=proof)

    def _head_with(self, headers: HeaderPairs) -> bytes:
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        head = self._heads[headers] = self._target.post_head((*self._headers, *self._sent_proof, *headers))
        return head

    async def _without_response(
        self,
        flight: Flight,
        awaited: AwaitedResponse,
        reply: HttpReply,
        message: Message | None,
        due: float,
        *,
        proof: HeaderPairs,
    ) -> Message:
        """Handle a reply without the response: it arrives on another stream, or the request was rejected."""
        if reply.status == 202 and self._listening is not None:
            return await self._answer_beside(flight, awaited, self._listening, due)
        if message is None and 200 <= reply.status < 300 and reply.body:
            await awaited.read_beyond_limits(reply.body)
            if awaited.response is not None:
                return awaited.response
        if message is not None and message.raw_error is not None:
            message = await self.secret_filter.answer("", message)
        raise refusal(self.server, reply, message, in_session=awaited.in_session, proof=proof)

    def _note(self, proof: HeaderPairs) -> HeaderPairs:
        """Register credentials before they are sent, because the server may echo them later."""
        self._sent_proof = proof
        self._heads.clear()
        self.secret_filter.note(proof)
        return proof

    async def _large_response(self, body: bytes) -> Message | None:
        try:
            message = await read_message(self.reader, body)
        except TaskgateError:
            return None
        return message if message.kind is Kind.RESPONSE else None

    async def _exchange(
        self,
        method: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        body: bytes,
        timeout_s: float | None,
        awaited: AwaitedResponse,
    ) -> HttpReply | None:
        try:
            return await self._client.exchange(
                self._target, method, headers, body, deadline_s=timeout_s, on_event=awaited.on_event, long_lived=True
            )
        except HttpFailure as failure:
            self._check_resumable(failure, timeout_s, awaited)
            return None

    def _check_resumable(self, failure: HttpFailure, timeout_s: float | None, awaited: AwaitedResponse) -> None:
        """Raise the failure, unless the stream can be resumed or the response was received."""
        if awaited.response is None and (failure.stage is not Stage.READ_BODY or awaited.last_id is None):
            raise self._explain(failure, timeout_s, awaited.in_session) from None

    def _explain(self, failure: HttpFailure, timeout_s: float | None, in_session: bool) -> CallFailed:
        return explain(self.server, failure, timeout_s, in_session=in_session, max_bytes=self._intake.max_bytes)

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Obtain credentials other than the rejected ones. Return False if there are none. Raises LoginNeeded."""
        return isinstance(refused, HttpRefusal) and await self._credentials.renew(refused.proof, refused.challenge)

    def _adopt_session(self, reply: HttpReply, message: Message) -> None:
        """Store the session id of a successful handshake. Servers send ids with errors too, and none with the reply to a ping."""
        settled = bool(self._version) and self.session_id is not None
        if message.raw_result is None or self._generation is Generation.STATELESS or settled:
            return
        session = reply.headers.get(b"mcp-session-id")
        self.session_id = session.decode("latin-1") if session is not None else None

    async def _resume(self, flight: Flight, awaited: AwaitedResponse, due: float) -> Message:
        """Resume the stream, which ended before the response was received."""
        failed = 0
        while (response := awaited.response) is None:
            flight.notify_stream(StreamNotice.PAUSED)
            if await awaited.answered_within(min(awaited.retry_s, max(0.0, due - clock.monotonic()))):
                continue
            left = due - clock.monotonic()
            if left <= 0:
                raise timed_out(self.server, flight.timeout_s)
            last = awaited.last_id or ""
            try:
                reply = await self._exchange(b"GET", self._get_headers(last), b"", left, awaited)
            except UpstreamError as problem:
                # This failure concerns the GET. The call itself was sent before.
                failed += 1
                if problem.executed is Executed.YES:
                    raise
                if failed == _RESUME_ATTEMPTS:
                    raise unreachable(
                        self.server, "interrupted its response and is unreachable", Executed.MAYBE
                    ) from None
                continue
            failed = 0
            if awaited.unread is not None:
                await awaited.read_unread()
            if reply is not None and reply.status != 200 and awaited.response is None:
                raise broke_protocol(self.server, "rejected the resumption of an interrupted response")
        return response

    async def _answer_beside(
        self, flight: Flight, awaited: AwaitedResponse, beside: asyncio.Task[None], due: float
    ) -> Message:
        """Wait for the response on the GET stream, after the request was accepted without a response."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(awaited.answered_within(max(0.0, due - clock.monotonic())))
        try:
            await asyncio.wait((waiting, beside), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if awaited.response is not None:
            return awaited.response
        if beside.done():
            raise unreachable(self.server, "closed the stream on which the response was expected", Executed.MAYBE)
        raise timed_out(self.server, flight.timeout_s)

    def answered_elsewhere(self, message: Message) -> None:
        """Match a response on another stream by its id. Responses without an open request are dropped."""
        awaited = self._awaiting.get(message.id) if message.id is not None else None
        if awaited is not None and awaited.response is None:
            awaited.answered(message)
            self._client.abort_exchange(self._target, awaited.on_event)

    def mark_long_lived(self, flight: Flight) -> None:
        awaited = self._awaiting.get(flight.key)
        if awaited is not None:
            self._client.mark_long_lived(self._target, awaited.on_event)

    def _get_headers(self, last_id: str | None) -> tuple[tuple[bytes, bytes], ...]:
        resume = ((b"last-event-id", last_id.encode("utf-8")),) if last_id else ()
        return ((b"accept", b"text/event-stream"), *self._identity(), *self._note(self._credentials.headers), *resume)

    async def send(self, body: bytes) -> None:
        if self._generation is Generation.STATELESS:
            return
        in_session = self.session_id is not None
        try:
            every = (*self._headers, *self._note(self._credentials.headers))
            reply = await self._client.exchange(self._target, b"POST", every, body, deadline_s=30)
        except HttpFailure as failure:
            raise self._explain(failure, 30, in_session) from None
        if reply.status >= 400:
            raise HttpRefusal(self.server, reply.status, in_session=in_session)

    def listen(self) -> None:
        if self._generation is Generation.STATEFUL and (self._listening is None or self._listening.done()):
            self._listening = asyncio.get_running_loop().create_task(self._follow_get_stream())

    async def _follow_get_stream(self) -> None:
        """Keep the GET stream open while the server supports it."""
        awaited = AwaitedResponse(self, None, b"", self.session_id is not None)
        while True:
            try:
                reply = await self._client.exchange(
                    self._target,
                    b"GET",
                    self._get_headers(awaited.last_id),
                    b"",
                    deadline_s=None,
                    on_event=awaited.on_event,
                    long_lived=True,
                )
            except HttpFailure as failure:
                if failure.stage in (Stage.RESOLVE, Stage.CONNECT, Stage.TLS):
                    self._report_lost(self._explain(failure, None, awaited.in_session))
                    return
            else:
                if reply.status == 404 and awaited.in_session:
                    self._report_lost(SessionGone(self.server))
                    return
                if reply.status != 200:
                    return
            await clock.sleep(awaited.retry_s)

    def _report_lost(self, reason: UpstreamError) -> None:
        if self._receiver is not None:
            self._receiver.lost(reason)

    def deliver(self, message: Message, flight: Flight | None) -> None:
        if self.secret_filter.active and message.kind is Kind.NOTIFICATION:
            message = self.secret_filter.notification(message)
        self._deliver(message, flight)

    def _deliver(self, message: Message, flight: Flight | None) -> None:
        if self._receiver is not None:
            self._receiver.incoming(message, flight)

    def deliver_large(self, body: bytes, flight: Flight | None) -> None:
        """Read a large message that is not a response in a task of its own. It is dropped if too many wait."""
        if sum(self._aside.values()) + len(body) > _MAX_ASIDE_BYTES:
            log.warning("large message dropped: too many at once", server=self.server, bytes=len(body))
            return
        reading = asyncio.get_running_loop().create_task(self._read_aside(body, flight))
        self._aside[reading] = len(body)
        reading.add_done_callback(self._aside.pop)

    async def _read_aside(self, body: bytes, flight: Flight | None) -> None:
        with contextlib.suppress(TaskgateError):
            message = await read_message(self.reader, body)
            if message.kind is Kind.RESPONSE:
                self.answered_elsewhere(message)
            elif message.kind is Kind.NOTIFICATION and self.secret_filter.active:
                self._deliver(await self.secret_filter.large_notification(message), flight)
            else:
                self._deliver(message, flight)

    async def close(self) -> None:
        for reading in tuple(self._aside):
            reading.cancel()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self.session_id is not None and self._generation is Generation.STATEFUL:
            with contextlib.suppress(HttpFailure):
                await self._client.exchange(self._target, b"DELETE", self._get_headers(None), b"", deadline_s=2)
