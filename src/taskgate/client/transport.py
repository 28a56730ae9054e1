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
    """One request on its way out. `headers` go with it over HTTP; `long` marks a wait that may take hours."""

    id: int | str
    method: str
    body: bytes
    headers: tuple[Header, ...] = ()
    long: bool = False


class Login(Protocol):
    """Something that can answer a server's demand for a token."""

    def token(self, url: str) -> str | None: ...

    async def answer(self, url: str, header: str, used: str | None) -> str: ...


class Transport(Protocol):
    """A way to talk to one server."""

    @property
    def session_id(self) -> str | None:
        """The server's name for this session, by which another process may go on in it; None where there is none."""
        ...

    @property
    def closing_cancels(self) -> bool:
        """Whether giving up a request closes something the server sees, so that no cancel message is needed."""
        ...

    async def exchange(self, outgoing: Outgoing, timeout: float) -> Message:
        """Send a request and wait for its response."""
        ...

    async def post(self, body: bytes, timeout: float) -> None:
        """Send a notification or a response; nothing comes back."""
        ...

    def settle(self, protocol_version: str, *, stateful: bool) -> None:
        """The generation is known now."""
        ...

    async def restart(self) -> None:
        """Begin again from nothing, for a server that did not survive being asked for its generation."""
        ...

    async def close(self) -> None: ...
