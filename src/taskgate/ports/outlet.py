"""How to reach the one who asked while its request is open, and why a call is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, runtime_checkable

import msgspec


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
    def can_send(self) -> bool:
        """Whether something can still go before the reply and reach the caller, now or when it resumes the stream."""
        ...

    @property
    def still_there(self) -> bool:
        """Whether what was written can have arrived."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the caller waits for the reply: its connection is open, or it has taken the stream up again on another."""
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


# Why a call is cancelled, in the words of whoever cancels it.
#
# It travels as the message of the cancellation itself (`task.cancel(CancelNote(...))`), so that nothing has to be kept
# for calls that nobody cancels. Links pass it on to servers.

MAX_REASON: Final = 500
_UNSAID: Final = "The caller cancelled the request."


class CancelNote(msgspec.Struct, frozen=True):
    reason: str = _UNSAID
    timestamp: int | str | None = None

    @staticmethod
    def read(params: Any) -> CancelNote:
        """What `notifications/cancelled` says of the why and when; what is not of the right type is left out."""
        given = params if type(params) is dict else {}
        reason, timestamp = given.get("reason"), given.get("timestamp")
        return CancelNote(
            reason[:MAX_REASON] if type(reason) is str and reason else _UNSAID,
            timestamp if type(timestamp) in (int, str) else None,
        )

    @staticmethod
    def of(cancelled: asyncio.CancelledError) -> CancelNote:
        """The note that a cancellation carries, or one that says only that it happened."""
        return next((note for note in cancelled.args if isinstance(note, CancelNote)), CancelNote())

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"reason": self.reason}
        return shown if self.timestamp is None else {**shown, "timestamp": self.timestamp}


TOOK_TOO_LONG: Final = CancelNote("The request took too long.")
