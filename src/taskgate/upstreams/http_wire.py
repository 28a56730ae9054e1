"""Streamable HTTP towards a server, for both generations.

Each request is one POST, answered as JSON or as a stream of events; the stream tells which request a message belongs to. Stateful
servers may also speak on a GET stream, and let a broken stream be resumed; an answer that comes on another stream than its call's
own is told by its id. What an HTTP status proves about execution follows the table in docs/errors.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from taskgate import clock
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.generations.generation import Generation, generation_of
from taskgate.core.sliced_reading import reads_quickly
from taskgate.core.wire import BeyondLimits, Kind, Message
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply
from taskgate.mcp.http.target import Target
from taskgate.mcp.sse import SseEvent
from taskgate.ports.credentials import HeaderPairs, UpstreamCredentials
from taskgate.ports.upstream import CallFailed, StreamNotice
from taskgate.reading import read_message, read_unread_result
from taskgate.telemetry.logs import log
from taskgate.upstreams.flight import (
    Flight,
    HttpRefusal,
    Intake,
    Receiver,
    SessionGone,
    broke_protocol,
    looks_like_answer,
    timed_out,
    unreachable,
    unreadable,
)
from taskgate.upstreams.health import explain, refusal
from taskgate.upstreams.secret_filter import SecretFilter

_POST_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)
_DEFAULT_RETRY_S: Final = 1.0
_SHORTEST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 30.0
_RESUME_ATTEMPTS: Final = 3
_MOST_ASIDE_BYTES: Final = 64 << 20


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
        self._generation: Generation | None = None
        self._version = ""
        self._receiver: Receiver | None = None
        self._listening: asyncio.Task[None] | None = None
        self._awaiting: dict[bytes, _Awaited] = {}
        self._aside: dict[asyncio.Task[None], int] = {}

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def settle(self, version: str) -> None:
        self._version = version
        self._generation = generation_of(version)
        self._headers = (*_POST_HEADERS, *self._identity())

    def use_session(self, session_id: str | None) -> None:
        self.session_id = session_id

    def begin_again(self) -> None:
        """A server that does not know a session refuses even a handshake that names it."""
        self.session_id, self._version, self._headers = None, "", _POST_HEADERS
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def _identity(self) -> tuple[tuple[bytes, bytes], ...]:
        version = ((b"mcp-protocol-version", self._version.encode("ascii")),) if self._version else ()
        session = ((b"mcp-session-id", self.session_id.encode("latin-1")),) if self.session_id is not None else ()
        return (*version, *session)

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message:
        awaited = _Awaited(self, flight)
        proof = self._credentials.headers
        if proof is not self._sent_proof:
            self._note(proof)
        every = (*self._headers, *proof, *headers)
        reply: HttpReply | None
        self._awaiting[awaited.key] = awaited
        long_lived = flight.request is not None and flight.request.long_lived
        # All that follows, a stream that is resumed included, has this time together.
        due = clock.monotonic() + flight.timeout_s
        try:
            try:
                reply = await self._client.exchange(
                    self._target,
                    b"POST",
                    every,
                    body,
                    deadline_s=flight.timeout_s,
                    on_event=awaited.on_event,
                    due=due,
                    long_lived=long_lived,
                )
            except HttpFailure as failure:
                self._unless_resumable(failure, flight.timeout_s, awaited)
                reply = None
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
        finally:
            del self._awaiting[awaited.key]

    async def _without_response(
        self,
        flight: Flight,
        awaited: _Awaited,
        reply: HttpReply,
        message: Message | None,
        due: float,
        *,
        proof: HeaderPairs,
    ) -> Message:
        """The reply holds no response to the request: it comes on another stream, or the request was refused."""
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
        """What proves to the server who we are is about to be sent. The server may quote it later."""
        self._sent_proof = proof
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
        awaited: _Awaited,
    ) -> HttpReply | None:
        try:
            return await self._client.exchange(
                self._target, method, headers, body, deadline_s=timeout_s, on_event=awaited.on_event, long_lived=True
            )
        except HttpFailure as failure:
            self._unless_resumable(failure, timeout_s, awaited)
            return None

    def _unless_resumable(self, failure: HttpFailure, timeout_s: float | None, awaited: _Awaited) -> None:
        """Raises what went wrong, unless the stream can be taken up again, or is no longer needed."""
        if awaited.response is None and (failure.stage is not Stage.READ_BODY or awaited.last_id is None):
            raise self._explain(failure, timeout_s, awaited.in_session) from None

    def _explain(self, failure: HttpFailure, timeout_s: float | None, in_session: bool) -> CallFailed:
        return explain(self.server, failure, timeout_s, in_session=in_session, max_bytes=self._intake.max_bytes)

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Whether there is other proof of who we are than the one that was refused. Raises LoginNeeded."""
        return isinstance(refused, HttpRefusal) and await self._credentials.renew(refused.proof, refused.challenge)

    def _adopt_session(self, reply: HttpReply, message: Message) -> None:
        """Only a successful handshake names a session: servers put ids on errors too, and none on the answer to a ping."""
        settled = bool(self._version) and self.session_id is not None
        if message.raw_result is None or self._generation is Generation.STATELESS or settled:
            return
        session = reply.headers.get(b"mcp-session-id")
        self.session_id = session.decode("latin-1") if session is not None else None

    async def _resume(self, flight: Flight, awaited: _Awaited, due: float) -> Message:
        """The stream ended before the response did: take it up again where it broke."""
        failed = 0
        while (response := awaited.response) is None:
            flight.tell(StreamNotice.PAUSED)
            if await awaited.answered_within(min(awaited.retry_s, max(0.0, due - clock.monotonic()))):
                continue
            left = due - clock.monotonic()
            if left <= 0:
                raise timed_out(self.server, flight.timeout_s)
            last = awaited.last_id or ""
            try:
                reply = await self._exchange(b"GET", self._get_headers(last), b"", left, awaited)
            except UpstreamError as problem:
                # Whatever this says of the GET: the call itself had left long before.
                failed += 1
                if problem.executed is Executed.YES:
                    raise
                if failed == _RESUME_ATTEMPTS:
                    raise unreachable(self.server, "broke off its answer and is gone", Executed.MAYBE) from None
                continue
            failed = 0
            if awaited.unread is not None:
                await awaited.read_unread()
            if reply is not None and reply.status != 200 and awaited.response is None:
                raise broke_protocol(self.server, "did not let a broken answer be resumed")
        return response

    async def _answer_beside(
        self, flight: Flight, awaited: _Awaited, beside: asyncio.Task[None], due: float
    ) -> Message:
        """Accepted without an answer: some servers put it on the stream that is open beside the calls."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(awaited.answered_within(max(0.0, due - clock.monotonic())))
        try:
            await asyncio.wait((waiting, beside), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if awaited.response is not None:
            return awaited.response
        if beside.done():
            raise unreachable(self.server, "has no stream that its answer could come on", Executed.MAYBE)
        raise timed_out(self.server, flight.timeout_s)

    def answered_elsewhere(self, message: Message) -> None:
        """A response on a stream that is not its call's own: the id says whose it is. Answers to nobody are dropped."""
        awaited = self._awaiting.get(message.id) if message.id is not None else None
        if awaited is not None and awaited.response is None:
            awaited.answered(message)
            self._client.abort_exchange(self._target, awaited.on_event)

    def mark_long_lived(self, flight: Flight) -> None:
        awaited = self._awaiting.get(b"%d" % flight.number)
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
            self._listening = asyncio.get_running_loop().create_task(self._hear())

    async def _hear(self) -> None:
        """Keep the GET stream open for as long as the server offers one."""
        awaited = _Awaited(self, None)
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

    def hear(self, message: Message, flight: Flight | None) -> None:
        if self.secret_filter.active and message.kind is Kind.NOTIFICATION:
            message = self.secret_filter.notification(message)
        self._deliver(message, flight)

    def _deliver(self, message: Message, flight: Flight | None) -> None:
        if self._receiver is not None:
            self._receiver.incoming(message, flight)

    def hear_aside(self, body: bytes, flight: Flight | None) -> None:
        """A large message that is no answer: read beside what goes on, and dropped where too much of such comes at once."""
        if sum(self._aside.values()) + len(body) > _MOST_ASIDE_BYTES:
            log.warning("a large message was dropped: too much came at once", server=self.server, bytes=len(body))
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


class _Awaited:
    """Sorts the events of one stream: the response we wait for, and everything else."""

    __slots__ = ("_flight", "_news", "_wire", "in_session", "key", "last_id", "response", "retry_s", "unread")

    def __init__(self, line: HttpWire, flight: Flight | None) -> None:
        self._wire = line
        self._flight = flight
        self._news: asyncio.Event | None = None
        self.in_session = line.session_id is not None
        """When it was sent: until its answer comes, that session may be gone and another be there."""
        self.key = b"%d" % flight.number if flight is not None else b""
        self.last_id: str | None = None
        """Of the latest event, and how long to wait before a stream that broke is resumed after it."""
        self.retry_s = _DEFAULT_RETRY_S
        self.response: Message | None = None
        self.unread: bytes | None = None
        """A large event that looks like the response; it is read when the exchange is over, a slice at a time."""

    def on_event(self, event: SseEvent) -> bool:
        if event.id:
            self.last_id = event.id
        if event.retry is not None:
            self.retry_s = min(max(event.retry / 1000, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
        if not event.data and event.id and self._flight is not None:
            self._flight.tell(StreamNotice.PRIMED, event.retry)
        if not event.data or event.event not in ("message", ""):
            return False
        if not reads_quickly(event.data):
            if self._flight is not None and looks_like_answer(event.data):
                self.unread = event.data
                return True
            self._wire.hear_aside(event.data, self._flight)
            return False
        try:
            message = self._wire.reader.read(event.data)
        except BeyondLimits:
            if self._flight is None or not looks_like_answer(event.data):
                return False
            self.unread = event.data
            return True
        except TaskgateError:
            return False
        return self._sorted(message)

    async def read_unread(self) -> None:
        body, self.unread = self.unread or b"", None
        try:
            message = await read_message(self._wire.reader, body)
        except TaskgateError:
            await self.read_beyond_limits(body)
        else:
            self._sorted(message)

    async def read_beyond_limits(self, body: bytes) -> None:
        """A message that cannot be read. Where it is the response that is waited for, it is taken with its result unread if that is
        read in parts; otherwise this raises what is wrong with it.
        """
        try:
            await read_message(self._wire.reader, body)
        except BeyondLimits as problem:
            message = await read_unread_result(body)
            if message is None or message.id != self.key:
                return
            if self._flight is None or not self._flight.read_in_parts:
                raise unreadable(self._wire.server, problem, self._wire.secret_filter) from None
            self.response = message
        except TaskgateError:
            return

    def _sorted(self, message: Message) -> bool:
        """True if it is the response that is waited for."""
        if message.kind is not Kind.RESPONSE:
            self._wire.hear(message, self._flight)
        elif message.id == self.key:
            if self.response is None:
                self.response = message
            return True
        else:
            self._wire.answered_elsewhere(message)
        return False

    async def answered_within(self, seconds: float) -> bool:
        """Wait that long, or until the answer has come another way."""
        self._news = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def answered(self, message: Message) -> None:
        self.response = message
        self.wake()

    def wake(self) -> None:
        if self._news is not None:
            self._news.set()
