"""Base of wires with one shared stream of messages: a child process, or the old HTTP+SSE transport.

On such a stream only the id of a response identifies its request. All other messages are passed to the link without a flight.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Final

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.sliced_reading import finished, reads_quickly, result_in_slices
from taskgate.core.wire import BeyondLimits, Kind, Message
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.call_failure import CallFailed
from taskgate.reading import read_message, read_unread_result
from taskgate.turns import let_others_run
from taskgate.upstreams.failures import broke_protocol, looks_like_answer, timed_out, too_large, unreachable, unreadable
from taskgate.upstreams.flight import Flight, Receiver
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter

_ID: Final = re.compile(rb'"id"\s*:\s*(\d+)')

AT_ONCE: Final = 50
"""Messages of one server that are read in one iteration of the event loop."""
MAX_UNREAD: Final = 4
"""How many messages of maximum size may wait to be read, if the sender cannot be paused."""

INVALID_SHOWN_BYTES = 200
"""Bytes kept of the first line that is not a message."""


class StreamWire:
    """Correlates responses with requests by id. Subclasses implement writing and closing."""

    session_id: str | None = None
    is_conversation = True

    def __init__(self, server: str, intake: Intake, secret_filter: SecretFilter) -> None:
        self.server = server
        self.secret_filter = secret_filter
        self._intake = intake
        self._reader = intake.reader
        self.invalid_lines = 0
        self._first_invalid = b""
        self._receiver: Receiver | None = None
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._in_parts: set[bytes] = set()
        """Requests whose result may exceed the limits of a message."""
        self._places: dict[bytes, int] = {}
        self._lost: UpstreamError | None = None
        self._unread: deque[bytes] = deque()
        """Received messages that are not read yet."""
        self._unread_bytes = 0
        self._at_once = 0
        self._reading: asyncio.Task[None] | None = None
        self._ended: tuple[str, int | None] | None = None

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def detach(self) -> None:
        """Detach the link before closing, so that the end of the stream is not reported as a loss."""
        if self._receiver is not None:
            self._receiver.lost(None)
        self._receiver = None

    def use_session(self, session_id: str | None) -> None:
        self.session_id = session_id

    def settle(self, version: str) -> None:
        """Do nothing: the stream carries no revision header."""

    def reset(self) -> None:
        """Do nothing: the stream itself is the session."""

    def listen(self) -> None:
        """Do nothing: the stream is always open."""

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Return False: messages on a stream carry no credentials."""
        return False

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message:
        if self._lost is not None:
            raise unreachable(self.server, "is not connected")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = flight.key
        self._waiting[key] = answer
        if flight.read_in_parts:
            self._in_parts.add(key)
        try:
            self._places[key] = await self._write(body)
            async with asyncio.timeout(flight.timeout_s):
                return await answer
        except TimeoutError:
            raise timed_out(self.server, flight.timeout_s) from None
        finally:
            self._waiting.pop(key, None)
            self._places.pop(key, None)
            self._in_parts.discard(key)

    def mark_long_lived(self, flight: Flight) -> None:
        """Do nothing: all calls share one stream."""

    async def send(self, body: bytes) -> None:
        if self._lost is not None:
            raise unreachable(self.server, "is not connected")
        await self._write(body)

    async def _write(self, body: bytes) -> int:
        """Send one message and return its number, counted from 1."""
        raise NotImplementedError

    def _was_written(self, _place: int | None) -> bool:
        """Return whether the message with this number, None before it has one, was sent completely or will be waited for."""
        return True

    def _request_of(self, key: bytes | None) -> asyncio.Future[Message] | None:
        """Return the open request with this id, unless a part of it is unsent: then nothing can be the response to it."""
        waiting = self._waiting.get(key) if key is not None else None
        if key is None or waiting is None or waiting.done():
            return None
        return waiting if self._was_written(self._places.get(key)) else None

    async def close(self) -> None:
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stop reading from the sender, if the transport supports it."""

    def resume_reading(self) -> None:
        """Read from the sender again."""

    def received(self, body: bytes) -> None:
        """Process a received message. A limited number is read at once; large messages and those after them are read in later
        iterations of the event loop, so that one server does not delay the others.
        """
        if self._reading is None and self._at_once < AT_ONCE and reads_quickly(body):
            self._at_once += 1
            self._read(body)
            return
        self._unread.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > MAX_UNREAD * self._intake.max_bytes:
            self._unread.clear()
            self._ended = ("sent more messages at once than can be processed", None)
        if self._reading is None:
            self.pause_reading()
            self._reading = asyncio.get_running_loop().create_task(self._read_on())

    async def _read_on(self) -> None:
        while self._unread:
            await let_others_run()
            for _ in range(min(AT_ONCE, len(self._unread))):
                body = self._unread.popleft()
                self._unread_bytes -= len(body)
                if reads_quickly(body):
                    self._read(body)
                else:
                    await self._read_large(body)
        self._at_once, self._reading = 0, None
        if self._ended is not None:
            self.stream_ended(*self._ended)
        else:
            self.resume_reading()

    async def _read_large(self, body: bytes) -> None:
        try:
            message = await read_message(self._reader, body)
        except BeyondLimits as problem:
            self._take_unread(await read_unread_result(body), problem)
        except TaskgateError as problem:
            self._unreadable(body, problem)
        else:
            if message.kind is Kind.NOTIFICATION and self.secret_filter.active:
                message = await self.secret_filter.large_notification(message)
            self._take(message)

    def _read(self, body: bytes) -> None:
        try:
            message = self._reader.read(body)
        except BeyondLimits as problem:
            try:
                self._take_unread(finished(result_in_slices(body)), problem)
            except TaskgateError:
                self.invalid_lines += 1
        except TaskgateError as problem:
            self._unreadable(body, problem)
        else:
            if message.kind is Kind.NOTIFICATION and self.secret_filter.active:
                message = self.secret_filter.notification(message)
            self._take(message)

    def _take_unread(self, message: Message | None, problem: BeyondLimits) -> None:
        """Handle a message beyond the limits. If its request reads the result in parts, the response is delivered with its result
        unread; any other request fails."""
        waiting = self._request_of(message.id) if message is not None else None
        if message is None or waiting is None:
            self.invalid_lines += 1
        elif message.id in self._in_parts:
            waiting.set_result(message)
        else:
            waiting.set_exception(unreadable(self.server, problem, self.secret_filter))

    def _unreadable(self, body: bytes, problem: TaskgateError) -> None:
        """Count and drop a line that is not a message, such as a banner."""
        if not self.invalid_lines:
            self._first_invalid = body[:INVALID_SHOWN_BYTES]
        self.invalid_lines += 1
        self._refuse_unreadable(body, problem)

    def first_invalid(self) -> str:
        """Return the start of the first line that is not a message, or an empty string."""
        return self.secret_filter.text(self._first_invalid.decode("utf-8", "replace").strip())

    def _take(self, message: Message) -> None:
        if message.kind is Kind.RESPONSE:
            waiting = self._request_of(message.id)
            if waiting is not None:
                waiting.set_result(message)
            return
        if self._receiver is not None:
            self._receiver.incoming(message, None)

    def _refuse_unreadable(self, body: bytes, problem: TaskgateError) -> None:
        """Fail the request that an invalid response belongs to, instead of letting it time out."""
        try:
            answered = bytes(wire.members_of(body).get("id", b"")) if body.lstrip()[:1] == b"{" else b""
        except UNDECODABLE:
            return
        waiting = self._request_of(answered)
        if waiting is not None:
            waiting.set_exception(unreadable(self.server, problem, self.secret_filter))

    def refuse_oversize(self, begin: bytes, end: bytes) -> None:
        """Fail the request of a response that was too large. Its id is near the start or the end of the message."""
        waiting = {key: future for key, future in self._waiting.items() if not future.done()}
        if looks_like_answer(begin):
            found = _ID.findall(begin.partition(b'"result"')[0]) + _ID.findall(end)
            named = [future for key, future in waiting.items() if key in found]
            for future in named or (list(waiting.values()) if len(waiting) == 1 else []):
                future.set_exception(too_large(self.server, self._intake.max_bytes))
        elif len(waiting) == 1 and b'"method"' not in begin:
            why = f"sent a message of more than {self._intake.max_bytes} bytes"
            next(iter(waiting.values())).set_exception(broke_protocol(self.server, why))

    def stream_ended(self, why: str, delivered: int | None = None) -> None:
        """Fail all open requests because the stream ended: with `executed: maybe`, or `no` if they were not sent completely.

        `delivered` is the number of messages that were sent completely, if known.
        """
        if self._lost is not None:
            return
        if self._reading is not None:
            # Messages before the end are read first: they may be responses.
            self._ended = (why, delivered)
            return
        self._lost = unreachable(self.server, why)
        for key, future in self._waiting.items():
            if not future.done():
                left = delivered is None or self._places.get(key, 0) <= delivered
                future.set_exception(unreachable(self.server, why, Executed.MAYBE if left else Executed.NO))
        if self._receiver is not None:
            self._receiver.lost(self._lost)
