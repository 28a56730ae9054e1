"""Ports for messages to a caller: within a session, and before and with the reply to one request."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Outlet(Protocol):
    def send(self, message: bytes) -> None:
        """Send one JSON-RPC message. Never blocks; if the buffer is full, the stream is dropped."""
        ...


class SessionOutlet(Outlet, Protocol):
    """Messages to a session outside any request."""

    @property
    def followed(self) -> bool:
        """Whether the client is reading the stream; otherwise messages are buffered within limits."""
        ...

    def send_once(self, message: bytes) -> None:
        """Send a message unless the same one still waits to be read."""
        ...


class ReplyOutlet(Outlet, Protocol):
    """Messages to the caller of one request: before the reply, and the reply."""

    def hold_open(self) -> None:
        """Keep the connection alive because the reply takes long."""
        ...

    async def finish(self, status: int, body: bytes) -> None: ...

    @property
    def can_send(self) -> bool:
        """Whether a message before the reply can still reach the caller, now or when it resumes the stream."""
        ...

    @property
    def still_there(self) -> bool:
        """Whether the caller can have received what was written."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the caller waits for the reply: its connection is open, or it has resumed the stream on another."""
        ...


@runtime_checkable
class ResumableOutlet(Protocol):
    """An outlet whose stream the caller can resume."""

    def prime(self, retry_ms: int | None) -> None:
        """Send an event id from which the caller can resume."""
        ...

    def pause(self) -> None:
        """Close the connection; later messages wait until the caller resumes."""
        ...
