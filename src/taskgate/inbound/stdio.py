"""MCP over a pair of byte streams, one message per line, in both generations: the gateway's own stdin and stdout, and
bridge connections.

Nothing but messages is written to stdout. Requests run concurrently. An invalid line is answered with an error and
affects nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from taskgate.core import wire
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import has_envelope, read_envelope
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import InvalidMessage, Kind, Message, MessageReader
from taskgate.gateway.requests.replies import shutting_down, stopped_before_reply
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.mcp.lines import LineSplitter, Oversize
from taskgate.mcp.turn_budget import TurnBudget
from taskgate.ports.cancel_note import CancelNote
from taskgate.reading import read_message
from taskgate.turns import let_others_run

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 256 * 1024
FLUSH_S: Final = 2.0
MAX_DEFERRED: Final = 1_000
_TASK_STATUS: Final = b'{"jsonrpc":"2.0","method":"notifications/tasks/status"'


class _Flushed(asyncio.BaseProtocol):
    """Reports when all output was written or the pipe is closed."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class LineOutlet:
    """Writes lines. The connection is aborted if the peer stops reading and too much output is buffered."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._creating = 0
        self._deferred: list[bytes] = []

    @contextlib.contextmanager
    def creating(self) -> Iterator[None]:
        """Defer task notifications until the caller has received the id of the task being created."""
        self._creating += 1
        try:
            yield
        finally:
            self._creating -= 1
            if not self._creating:
                later, self._deferred = self._deferred, []
                for message in later:
                    self.send(message)

    def send(self, message: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._creating and message.startswith(_TASK_STATUS) and len(self._deferred) < MAX_DEFERRED:
            self._deferred.append(message)
            return
        if b"\n" in message:
            message = message.replace(b"\r", b" ").replace(b"\n", b" ")
        self._transport.write(message + b"\n")
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()

    def send_once(self, message: bytes) -> None:
        """Send the message: what was written to the pipe counts as read."""
        self.send(message)

    def hold_open(self) -> None:
        """Do nothing: a pipe has no timeout."""

    async def finish(self, _status: int, body: bytes) -> None:
        self.send(body)

    @property
    def followed(self) -> bool:
        return True

    @property
    def can_send(self) -> bool:
        """Whether messages may be sent. Unlike in HTTP, they may follow the reply."""
        return not self._transport.is_closing()

    @property
    def still_there(self) -> bool:
        return not self._transport.is_closing()

    @property
    def is_read(self) -> bool:
        return self.still_there


class StdioEndpoint:
    def __init__(
        self, gateway: TransportServices, caller: Caller, narrowing: SessionRequest, reader: MessageReader
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._narrowing = narrowing
        self._reader = reader
        self._session: Session | None = None
        self._opened = asyncio.Event()
        self._opening = False
        self._open: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._drain_expired = False

    async def serve(self) -> None:
        """Serve until stdin ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, written = await loop.connect_write_pipe(_Flushed, os.fdopen(os.dup(1), "wb", 0))
        try:
            await self.converse(reader, LineOutlet(transport))
        finally:
            transport.close()
            await asyncio.wait((written.done,), timeout=FLUSH_S)

    async def converse(self, reader: asyncio.StreamReader, outlet: LineOutlet) -> None:
        """Answer messages until the input ends, then cancel requests in progress."""
        lines, budget = LineSplitter(self._gateway.limits.request_bytes), TurnBudget()
        try:
            while chunk := await reader.read(READ_BYTES):
                lines.push(chunk)
                while lines.has_unread:
                    line = lines.next_line(budget)
                    if line is not None:
                        await self._take(line, outlet)
                    if budget.spent:
                        await let_others_run()
                        budget.renew()
        finally:
            await self._settle()

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        """Wait for requests in progress before shutdown. Those that do not finish in time are answered with an error.

        Responses to the gateway's own requests are still read meanwhile; new requests are rejected.
        """
        self._draining = True
        waiting = asyncio.ensure_future(skip_waiting.wait())
        ended = asyncio.gather(*self._open.values(), return_exceptions=True)
        try:
            await asyncio.wait((waiting, ended), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._drain_expired = True
        ended.cancel()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=FLUSH_S)

    async def _settle(self) -> None:
        """Cancel requests in progress: the caller cannot read replies any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._gateway.sessions.end(self._session)

    async def _take(self, line: bytes | Oversize, outlet: LineOutlet) -> None:
        if isinstance(line, Oversize):
            limit = self._gateway.limits.request_bytes
            self._refuse(CallerError("request_too_large", f"The message exceeds {limit} bytes."), outlet)
            return
        try:
            if wire.is_batch(line):
                raise InvalidMessage("batches are not supported over stdio")
            message = await read_message(self._reader, line)
        except InvalidMessage as problem:
            self._refuse(problem, outlet, problem.message_id)
        except TaskgateError as problem:
            self._refuse(problem, outlet)
        else:
            self._dispatch(message, outlet)

    def _refuse(self, problem: TaskgateError, outlet: LineOutlet, message_id: bytes | None = None) -> None:
        outlet.send(self._gateway.requests.failure(problem, message_id, Generation.STATEFUL).body)

    def _dispatch(self, message: Message, outlet: LineOutlet) -> None:
        if message.kind is Kind.RESPONSE:
            if self._session is not None:
                self._session.answered(message)
        elif message.kind is Kind.NOTIFICATION:
            self._notified(message)
        elif self._draining:
            self._fail(shutting_down(message), message, outlet)
        elif message.id in self._open:
            self._refuse(
                CallerError("invalid_request", "A request with this id is still in progress."), outlet, message.id
            )
        else:
            assert message.id is not None
            task = self._spawn(self._answer(message, outlet))
            self._open[message.id] = task
            task.add_done_callback(lambda _: self._open.pop(message.id or b"", None))

    def _notified(self, message: Message) -> None:
        if message.method == "notifications/cancelled":
            task = self._open.get(wire.encode((message.params or {}).get("requestId")))
            if task is not None:
                task.cancel(CancelNote.read(message.params))
        elif self._session is not None:
            self._spawn(self._gateway.sessions.notified(self._session, message))

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, message: Message, outlet: LineOutlet) -> None:
        try:
            await self._answer_in_time(message, outlet)
        except asyncio.CancelledError:
            if not self._drain_expired:
                raise
            self._fail(stopped_before_reply(message), message, outlet)

    def _fail(self, problem: TaskgateError, message: Message, outlet: LineOutlet) -> None:
        generation = Generation.STATELESS if has_envelope(message.params) else Generation.STATEFUL
        outlet.send(self._gateway.requests.failure(problem, message.id, generation, message).body)

    async def _answer_in_time(self, message: Message, outlet: LineOutlet) -> None:
        try:
            if message.method == "initialize":
                await self._initialize(message, outlet)
                return
            if self._opening and not has_envelope(message.params):
                await self._opened.wait()
            request = self._request(message, outlet)
        except TaskgateError as problem:
            self._fail(problem, message, outlet)
            return
        with outlet.creating() if "task" in request.params else contextlib.nullcontext():
            reply = await self._gateway.requests.answer(request)
            if reply is not None:
                outlet.send(reply.body)
        if reply is not None:
            request.delivery.delivered(outlet.still_there)

    def _request(self, message: Message, outlet: LineOutlet) -> Request:
        if has_envelope(message.params):
            envelope = read_envelope(message.params)
            return Request.opened(message, self._caller, outlet, envelope=envelope, narrowing=self._narrowing)
        if self._session is not None:
            return Request.opened(message, self._caller, outlet, self._session)
        if message.method == "server/discover":
            read_envelope(message.params)
        raise CallerError(
            "not_initialized", "Send initialize first, or include the protocol envelope in every request."
        )

    async def _initialize(self, message: Message, outlet: LineOutlet) -> None:
        if self._session is not None or self._opening:
            raise CallerError("invalid_request", "This connection is already initialized.")
        self._opening = True
        self._opened.clear()
        try:
            await self._open_session(message, outlet)
        finally:
            self._opening = False
            self._opened.set()

    async def _open_session(self, message: Message, outlet: LineOutlet) -> None:
        session, reply = await self._gateway.sessions.initialize(message, self._caller, self._narrowing, old_stdio=True)
        session.attach(outlet)
        session.mark_stdio()
        session.stream_opened()
        self._session = session
        outlet.send(reply)
