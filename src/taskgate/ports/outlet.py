"""Ports for messages to a caller: within a session, and before and with the reply to one request. Reasons of cancellation."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, runtime_checkable

import msgspec


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


# The reason of a cancellation, as the canceller gave it. It is the message of the cancellation itself
# (`task.cancel(CancelNote(...))`), so calls that are not cancelled store nothing. Links pass it on to servers.

MAX_REASON: Final = 500
_NO_REASON: Final = "The caller cancelled the request."


class CancelNote(msgspec.Struct, frozen=True):
    reason: str = _NO_REASON
    timestamp: int | str | None = None

    @staticmethod
    def read(params: Any) -> CancelNote:
        """Read the reason and time in `notifications/cancelled`; values of the wrong type are ignored."""
        given = params if type(params) is dict else {}
        reason, timestamp = given.get("reason"), given.get("timestamp")
        return CancelNote(
            reason[:MAX_REASON] if type(reason) is str and reason else _NO_REASON,
            timestamp if type(timestamp) in (int, str) else None,
        )

    @staticmethod
    def of(cancelled: asyncio.CancelledError) -> CancelNote:
        """Return the note of a cancellation, or one without a reason."""
        return next((note for note in cancelled.args if isinstance(note, CancelNote)), CancelNote())

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"reason": self.reason}
        return shown if self.timestamp is None else {**shown, "timestamp": self.timestamp}


TOOK_TOO_LONG: Final = CancelNote("The request took too long.")
