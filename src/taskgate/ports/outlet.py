"""How to reach the one who asked while its request is open, or a session outside any request."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Outlet(Protocol):
    def send(self, message: bytes) -> None:
        """Hand over one whole JSON-RPC message. Never blocks; a full buffer drops the stream, not the process."""
        ...


class SessionOutlet(Outlet, Protocol):
    """The way to a session outside any request."""

    @property
    def followed(self) -> bool:
        """Whether somebody reads it just now; what is sent meanwhile is kept within limits."""
        ...


class ReplyOutlet(Outlet, Protocol):
    """The way back to whoever made one request: what comes before the reply, and the reply."""

    def hold_open(self) -> None:
        """The reply takes long: begin whatever keeps the connection alive until it comes."""
        ...

    async def finish(self, status: int, body: bytes) -> None: ...

    @property
    def still_there(self) -> bool:
        """Whether what was written can have arrived."""
        ...


@runtime_checkable
class ResumableOutlet(Protocol):
    """An outlet whose stream the caller can take up again after a break."""

    def prime(self, retry_ms: int | None) -> None:
        """Give the caller a point to resume from, now."""
        ...

    def pause(self) -> None:
        """Hang up for now; what comes later waits for the caller to come back."""
        ...
