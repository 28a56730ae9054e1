"""The interface between a session and its transport.

A transport sends one request and returns its response; everything else that arrives (notifications, the server's own
requests) is passed to `deliver`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from taskgate.client.messages import Message

Deliver = Callable[[Message], None]
Header = tuple[bytes, bytes]


class Outgoing(msgspec.Struct, frozen=True):
    """One outgoing request. `headers` are for HTTP; `long` marks a request that may take hours."""

    id: int | str
    method: str
    body: bytes
    headers: tuple[Header, ...] = ()
    long: bool = False


class Login(Protocol):
    """Obtains tokens for servers that require them."""

    def token(self, url: str) -> str | None: ...

    async def answer(self, url: str, header: str, used: str | None) -> str: ...


class Transport(Protocol):
    """A connection to one server."""

    @property
    def session_id(self) -> str | None:
        """The server's session id, or None."""
        ...

    @property
    def closing_cancels(self) -> bool:
        """Whether abandoning a request closes its connection, so that no cancel notification is needed."""
        ...

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        """Send a request and wait for its response."""
        ...

    async def post(self, body: bytes, timeout: float) -> None:
        """Send a notification or a response."""
        ...

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """Set the negotiated protocol version."""
        ...

    async def restart(self) -> None:
        """Start again without a session, or restart a program that exited during negotiation."""
        ...

    async def close(self) -> None: ...
