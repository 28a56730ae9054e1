"""When a gateway has more to do than time to do it: calls wait for too long, and go on waiting for too long.

One long step (a large message, a collection of garbage) makes every call of that moment late, and the next ones are on
time again: refusing those calls would only lose work that can be done at once. A queue that stands makes every call
late. What tells the two apart is how long it lasts, as in CoDel (RFC 8289): calls are refused once each of them has
waited longer than the target throughout an interval, until one was on time.
"""

from __future__ import annotations

from typing import Final

AGAIN_WITHIN: Final = 10.0
"""So many intervals after an overload, the next late call is refused without waiting for an interval: it is the same overload."""


class Lateness:
    """The target, the longest wait of a call that is no sign of overload, is also the interval."""

    __slots__ = ("_ended_at", "_last_late_at", "_late_since", "_refusing", "target_s")

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self._late_since: float | None = None
        """When the first of the calls was looked at that were late one after the other."""
        self._last_late_at = 0.0
        self._refusing = False
        self._ended_at = float("-inf")
        """When calls were refused last."""

    def refuses(self, now: float, waited_s: float) -> bool:
        """Whether to refuse a call that has waited so long until it is looked at now."""
        if waited_s <= self.target_s:
            if self._late_since is not None:
                self._end(now)
            return False
        if self._late_since is None or now - waited_s > self._last_late_at:
            # It came after the last late call was looked at, behind which nothing was waiting then: this is another delay.
            self._end(self._last_late_at)
            self._late_since = now
        self._last_late_at = now
        if not self._refusing:
            lasts = now - self._late_since >= self.target_s
            self._refusing = lasts or now - self._ended_at < AGAIN_WITHIN * self.target_s
        return self._refusing

    def _end(self, at: float) -> None:
        if self._refusing:
            self._ended_at = at
        self._late_since, self._refusing = None, False
