"""The gateway on standard input and output, for clients that start their servers themselves. Both generations, one line a message.

Nothing but messages may ever be written to standard output. Requests run beside each other; a line that is not a message is
answered with an error and disturbs nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from taskgate.core import wire
from taskgate.core.caller import Caller
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import has_envelope, read_envelope
from taskgate.core.lines import LineSplitter, Oversize
from taskgate.core.scoping.request import SessionRequest
from taskgate.core.wire import InvalidMessage, Kind, Message
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.request import Request
from taskgate.gateway.sessions import Session

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 256 * 1024


class StdoutOutlet:
    """Writes whole lines. A peer that stops reading while messages pile up is given up, not waited for."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def send(self, message: bytes) -> None:
        if self._transport.is_closing():
            return
        if b"\n" in message:
            message = message.replace(b"\r", b" ").replace(b"\n", b" ")
        self._transport.write(message + b"\n")
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()

    async def finish(self, _status: int, body: bytes) -> None:
        self.send(body)

    @property
    def still_there(self) -> bool:
        return not self._transport.is_closing()


class StdioDoor:
    def __init__(self, gateway: Gateway, caller: Caller, narrowing: SessionRequest) -> None:
        self._gateway = gateway
        self._caller = caller
        self._narrowing = narrowing
        self._session: Session | None = None
        self._opened = asyncio.Event()
        self._opening = False
        self._open: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until standard input ends, then let what is under way finish."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(os.dup(1), "wb", 0))
        outlet = StdoutOutlet(transport)
        lines = LineSplitter(self._gateway.limits.request_bytes)
        while chunk := await reader.read(READ_BYTES):
            for line in lines.feed(chunk):
                self._take(line, outlet)
        await self._settle()
        transport.close()

    async def _settle(self) -> None:
        """The caller hung up: nobody can read answers any more, so what still runs is cancelled."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._gateway.end_session(self._session)

    def _take(self, line: bytes | Oversize, outlet: StdoutOutlet) -> None:
        if isinstance(line, Oversize):
            limit = self._gateway.limits.request_bytes
            self._refuse(CallerError("request_too_large", f"A message may have at most {limit} bytes."), outlet)
            return
        try:
            if wire.is_batch(line):
                raise InvalidMessage("batches are not supported here")
            message = wire.read(line)
        except InvalidMessage as problem:
            self._refuse(problem, outlet, problem.message_id)
        except TaskgateError as problem:
            self._refuse(problem, outlet)
        else:
            self._dispatch(message, outlet)

    def _refuse(self, problem: TaskgateError, outlet: StdoutOutlet, message_id: bytes | None = None) -> None:
        outlet.send(self._gateway.failure(problem, message_id, Generation.STATEFUL).body)

    def _dispatch(self, message: Message, outlet: StdoutOutlet) -> None:
        if message.kind is Kind.RESPONSE:
            if self._session is not None:
                self._session.answered(message)
        elif message.kind is Kind.NOTIFICATION:
            self._notified(message)
        elif message.id in self._open:
            self._refuse(CallerError("invalid_request", "A request with this id is still open."), outlet, message.id)
        else:
            assert message.id is not None
            task = self._spawn(self._answer(message, outlet))
            self._open[message.id] = task
            task.add_done_callback(lambda _: self._open.pop(message.id or b"", None))

    def _notified(self, message: Message) -> None:
        if message.method == "notifications/cancelled":
            task = self._open.get(wire.encode((message.params or {}).get("requestId")))
            if task is not None:
                task.cancel()
        elif self._session is not None:
            self._spawn(self._gateway.notified(self._session, message))

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, message: Message, outlet: StdoutOutlet) -> None:
        try:
            if message.method == "initialize":
                await self._initialize(message, outlet)
                return
            if self._opening and not has_envelope(message.params):
                await self._opened.wait()
            request = self._request(message, outlet)
        except TaskgateError as problem:
            generation = Generation.STATELESS if has_envelope(message.params) else Generation.STATEFUL
            outlet.send(self._gateway.failure(problem, message.id, generation).body)
            return
        reply = await self._gateway.answer(request)
        if reply is not None:
            outlet.send(reply.body)
            request.settled(outlet.still_there)

    def _request(self, message: Message, outlet: StdoutOutlet) -> Request:
        if has_envelope(message.params):
            envelope = read_envelope(message.params)
            return Request(message, self._caller, outlet, envelope=envelope, narrowing=self._narrowing)
        if self._session is not None:
            return Request(message, self._caller, outlet, self._session)
        if message.method == "server/discover":
            read_envelope(message.params)
        raise CallerError("not_initialized", "Begin with initialize, or send every request with its envelope.")

    async def _initialize(self, message: Message, outlet: StdoutOutlet) -> None:
        if self._session is not None:
            raise CallerError("invalid_request", "This conversation has been initialized already.")
        self._opening = True
        try:
            await self._open_session(message, outlet)
        finally:
            self._opening = False
            self._opened.set()

    async def _open_session(self, message: Message, outlet: StdoutOutlet) -> None:
        session, reply = await self._gateway.initialize(message, self._caller, self._narrowing, old_stdio=True)
        session.outlet = outlet
        session.open_requests += 1
        self._session = session
        outlet.send(reply)
