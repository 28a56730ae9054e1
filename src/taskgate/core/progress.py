"""Rate limit and order of progress notifications.

Each progress token has its own token bucket. Updates beyond the rate are held back, and a newer update replaces the
held one. The last update before the end is always sent. The object has no clock: its owner passes the time and calls
`due` when a timer fires.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.token_bucket import BucketLevel, TokenBucket, take

PROGRESS_RATE = TokenBucket(per_second=10.0, burst=20.0)


class ProgressUpdate(msgspec.Struct, frozen=True):
    """One update. `payload` is passed through."""

    progress: float
    total: float | None = None
    message: str | None = None
    payload: Any = None


class ProgressFlow:
    """The updates of one token, from its request to its end."""

    def __init__(self, rate: TokenBucket = PROGRESS_RATE) -> None:
        self.rate = rate
        self._level: BucketLevel | None = None
        self._held: ProgressUpdate | None = None
        self._highest = float("-inf")
        self._ended = False

    def offer(self, update: ProgressUpdate, now: float) -> tuple[ProgressUpdate | None, float | None]:
        """Take an update: return what to send now, or when to call `due`.

        MCP requires progress to increase (basic/utilities/progress). A server that repeats a value with a new message
        violates that, but the message is useful to the caller, as it is over a direct connection: values pass
        unchanged.
        """
        if self._ended:
            return None, None
        self._highest = max(self._highest, update.progress)
        self._held = update
        return self.due(now)

    def due(self, now: float) -> tuple[ProgressUpdate | None, float | None]:
        """Return what to send now if the rate allows it, else the time at which it will."""
        if self._held is None:
            return None, None
        self._level, wait = take(self.rate, self._level, now)
        if wait > 0:
            return None, now + wait
        held, self._held = self._held, None
        return held, None

    def heartbeat(self, message: str, now: float, step: float = 0.001) -> ProgressUpdate | None:
        """Return an update of the gateway, just above the last value; None while an update is held or after the end."""
        if self._ended or self._held is not None:
            return None
        base = self._highest if self._highest != float("-inf") else 0.0
        update = ProgressUpdate(base + step, None, message)
        if not update.progress > self._highest:  # the value is so large that adding a step does not change it
            return None
        sent, _ = self.offer(update, now)
        self._held = None  # a heartbeat is never held back
        return sent

    def end(self) -> ProgressUpdate | None:
        """The request has ended: return the held update, to be sent before the response."""
        held, self._held, self._ended = self._held, None, True
        return held
