"""Overload detection: whether calls keep waiting too long.

One long step (a large message, a garbage collection) delays every call at that moment, and the next calls are on time
again: refusing the delayed calls would only lose work that can be done at once. A standing queue delays every call. As
in CoDel (RFC 8289) the two differ in duration: calls are refused once every call has waited longer than the target
throughout an interval, until one is on time.
"""

from __future__ import annotations

from typing import Final

AGAIN_WITHIN: Final = 10.0
"""For this many intervals after an overload, the next late call is refused without waiting for an interval: it is the
same overload.
"""


class Lateness:
    """Decides which calls to refuse. The target, the longest acceptable wait, is also the interval."""

    __slots__ = ("_ended_at", "_last_late_at", "_late_since", "_refusing", "is_late", "target_s")

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.is_late = False
        """Whether the last call was late."""
        self._late_since: float | None = None
        """When the first call of the current series of late calls was processed."""
        self._last_late_at = 0.0
        self._refusing = False
        self._ended_at = float("-inf")
        """When calls were last refused."""

    def refuses(self, now: float, waited_s: float) -> bool:
        """Whether to refuse a call that is processed now and has waited this long."""
        if waited_s <= self.target_s:
            if self._late_since is not None:
                self._end(now)
            return False
        if self._late_since is None or now - waited_s > self._last_late_at:
            # It arrived after the last late call was processed, when the queue was empty: this is another delay.
            self._end(self._last_late_at)
            self._late_since = now
            self.is_late = True
        self._last_late_at = now
        if not self._refusing:
            lasts = now - self._late_since >= self.target_s
            self._refusing = lasts or now - self._ended_at < AGAIN_WITHIN * self.target_s
        return self._refusing

    def _end(self, at: float) -> None:
        if self._refusing:
            self._ended_at = at
        self._late_since, self._refusing, self.is_late = None, False, False
