"""A request in flight, and the interfaces between a link and its wire."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.core.wire import Message
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.upstream_call import StreamNotice, UpstreamCall
from taskgate.upstreams.secret_filter import SecretFilter


def next_number() -> int:
    """Return the id and progress token of a request: a random integer below 2**53, which every JSON library reads exactly.

    A response delivered to another link, session or connection matches no request there, and a server cannot answer requests
    that it has not read.
    """
    return int.from_bytes(secrets.token_bytes(7), "big") >> 3


encoded_method: Final = lru_cache(maxsize=256)(wire.encode)
"""The name of a method as JSON. Cached, because most requests have one of a few."""


class Flight(msgspec.Struct):
    number: int
    key: bytes
    """The number as it is written in the request and in its response."""
    timeout_s: float
    request: UpstreamCall | None = None

    def notify_stream(self, change: StreamNotice, retry_ms: int | None = None) -> None:
        """Report the state of the response stream to a caller that has a stream too."""
        if self.request is not None and self.request.on_stream is not None:
            self.request.on_stream(change, retry_ms)

    @property
    def read_in_parts(self) -> bool:
        """Whether its result may exceed the limits of a message."""
        return self.request is not None and self.request.read_in_parts


class Receiver(Protocol):
    """The interface of a link that its wire uses."""

    def incoming(self, message: Message, flight: Flight | None) -> None: ...

    def lost(self, reason: UpstreamError | None) -> None:
        """Handle the loss of the wire. `reason` is None if it was closed on purpose."""
        ...


class Wire(Protocol):
    secret_filter: SecretFilter
    """Redacts the credentials that this wire sends."""
    session_id: str | None
    is_conversation: bool
    """Whether the connection itself is the session, so that a restart of the server is always noticed."""

    def attach(self, receiver: Receiver) -> None: ...

    def settle(self, version: str) -> None:
        """Set the negotiated revision, which HTTP sends as a header from now on."""
        ...

    def use_session(self, session_id: str | None) -> None:
        """Use another session of the server. None: do not end the current one when closing."""
        ...

    def reset(self) -> None:
        """Forget session and revision before a new handshake."""
        ...

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message: ...

    def mark_long_lived(self, flight: Flight) -> None:
        """Stop counting the resources of a call that became a task among those of ordinary calls."""
        ...

    async def send(self, body: bytes) -> None: ...

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Obtain credentials other than the rejected ones. Return False if there are none. Raises LoginNeeded."""
        ...

    def listen(self) -> None:
        """Open the stream for messages outside requests, if the transport needs one."""
        ...

    async def close(self) -> None: ...
