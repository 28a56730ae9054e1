"""The events of one HTTP stream: the response that a request waits for, and all other messages."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import msgspec

from taskgate.core.errors import TaskgateError
from taskgate.core.sliced_reading import reads_quickly
from taskgate.core.wire import BeyondLimits, Kind, Message, MessageReader
from taskgate.mcp.sse import SseEvent
from taskgate.ports.upstream_call import StreamNotice
from taskgate.reading import read_message, read_unread_result
from taskgate.upstreams.failures import (
    looks_like_answer,
    unreadable,
)
from taskgate.upstreams.flight import Flight
from taskgate.upstreams.secret_filter import SecretFilter

_DEFAULT_RETRY_S: Final = 1.0
_SHORTEST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 30.0


class EventSource(Protocol):
    """The HTTP wire, as the events of one of its streams use it."""

    server: str
    session_id: str | None
    reader: MessageReader
    secret_filter: SecretFilter

    def deliver(self, message: Message, flight: Flight | None) -> None: ...

    def deliver_large(self, body: bytes, flight: Flight | None) -> None: ...

    def answered_elsewhere(self, message: Message) -> None: ...


class AwaitedResponse(msgspec.Struct, eq=False):
    """Separates the response that is waited for from the other events of one stream."""

    _wire: EventSource
    _flight: Flight | None
    key: bytes
    """The id of the request; empty on a stream without one."""
    in_session: bool
    """Whether the request was sent in a session; that session may be replaced before the response arrives."""
    last_id: str | None = None
    """The id of the latest event, from which the stream is resumed after `retry_s`."""
    retry_s: float = _DEFAULT_RETRY_S
    response: Message | None = None
    unread: bytes | None = None
    """A large event that looks like the response; it is read in slices after the exchange."""
    _news: asyncio.Event | None = None

    def on_event(self, event: SseEvent) -> bool:
        if event.id:
            self.last_id = event.id
        if event.retry is not None:
            self.retry_s = min(max(event.retry / 1000, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
        if not event.data and event.id and self._flight is not None:
            self._flight.notify_stream(StreamNotice.PRIMED, event.retry)
        if not event.data or event.event not in ("message", ""):
            return False
        if not reads_quickly(event.data):
            if self._flight is not None and looks_like_answer(event.data):
                self.unread = event.data
                return True
            self._wire.deliver_large(event.data, self._flight)
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
        return self._handle(message)

    async def read_unread(self) -> None:
        body, self.unread = self.unread or b"", None
        try:
            message = await read_message(self._wire.reader, body)
        except TaskgateError:
            await self.read_beyond_limits(body)
        else:
            self._handle(message)

    async def read_beyond_limits(self, body: bytes) -> None:
        """Handle a message beyond the limits. If it is the awaited response and its result is read in parts, it is kept with its
        result unread. Otherwise raises CallFailed.
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

    def _handle(self, message: Message) -> bool:
        """Handle a message. Return whether it is the awaited response."""
        if message.kind is not Kind.RESPONSE:
            self._wire.deliver(message, self._flight)
        elif message.id == self.key:
            if self.response is None:
                self.response = message
            return True
        else:
            self._wire.answered_elsewhere(message)
        return False

    async def answered_within(self, seconds: float) -> bool:
        """Wait until the response has arrived on another stream. Return False on timeout."""
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
