"""The reason of a cancellation, as the canceller gave it.

It is the message of the cancellation itself (`task.cancel(CancelNote(...))`), so calls that are not cancelled store nothing. Links
pass it on to servers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

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
