"""Why a call is cancelled, in the words of whoever cancels it.

It travels as the message of the cancellation itself (`task.cancel(CancelNote(...))`), so that nothing has to be kept for calls that
nobody cancels. Links pass it on to servers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

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
