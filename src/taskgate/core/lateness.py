"""Overload detection: whether calls keep waiting too long because the gateway is overloaded.

One long step (a large message, a garbage collection) delays every call at that moment, and the next calls are on time
again: refusing the delayed calls would only lose work that can be done at once. A standing queue delays every call. As
in CoDel (RFC 8289) the two differ in duration: calls are refused once every call has waited longer than the target
throughout an interval, until one is on time.

Calls are also late if other programs use the CPU. Refusing them would not help, so an interval counts only if the process
itself used the CPU in it, or if a long queue of calls was waiting.
"""

from __future__ import annotations

from typing import Final, NamedTuple

AGAIN_WITHIN: Final = 10.0
"""For this many intervals after an overload, the next late call is refused without waiting for an interval: it is the
same overload.
"""
BUSY_SHARE: Final = 0.8
"""An interval counts if the process used more than this share of one core in it."""
LONG_QUEUE: Final = 100
"""An interval also counts if more calls than this were waiting at the same time."""


class TimeAndCpu(NamedTuple):
    """A point in time by two clocks."""

    at: float
    """The monotonic clock."""
    cpu_s: float
    """The CPU time that the process has used."""


class Lateness:
    """Decides which calls to refuse. The target, the longest acceptable wait, is also the interval."""

    __slots__ = ("_began", "_ended", "_last_late", "_queue", "_queue_at", "_queued", "_refusing", "is_late", "target_s")

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.is_late = False
        """Whether the last call was late."""
        self._began = TimeAndCpu(0.0, 0.0)
        """When the current interval of late calls began."""
        self._last_late = TimeAndCpu(0.0, 0.0)
        """When the last late call was processed."""
        self._ended = TimeAndCpu(float("-inf"), 0.0)
        """When calls were last refused."""
        self._queue_at = float("-inf")
        self._queued = 0
        """How many calls processed so far had been waiting at `_queue_at`."""
        self._queue = 0
        """The number that the previous count reached."""
        self._refusing = False

    def refuses(self, now: TimeAndCpu, waited_s: float) -> bool:
        """Whether to refuse a call that is processed now and has waited this long."""
        if waited_s <= self.target_s:
            if self.is_late:
                self._end(now)
            return False
        arrived = now.at - waited_s
        self._count(now, arrived)
        if not self.is_late or arrived > self._last_late.at:
            # It arrived after the last late call was processed, when the queue was empty: this is another delay.
            self._end(self._last_late)
            again = now.at - self._ended.at < AGAIN_WITHIN * self.target_s
            self._refusing = again and self._counts(self._ended, now)
            self._began, self.is_late = now, True
        elif now.at - self._began.at >= self.target_s:
            self._refusing = self._counts(self._began, now)
            self._began = now
        self._last_late = now
        return self._refusing

    def _count(self, now: TimeAndCpu, arrived: float) -> None:
        """Count the calls that were waiting at one moment; they are all processed when a call arrived after it."""
        if arrived > self._queue_at:
            self._queue_at, self._queue, self._queued = now.at, self._queued, 0
        self._queued += 1

    def _counts(self, since: TimeAndCpu, now: TimeAndCpu) -> bool:
        """Whether the gateway itself is the reason for late calls since then."""
        used_s = now.cpu_s - since.cpu_s
        return max(self._queue, self._queued) > LONG_QUEUE or used_s > BUSY_SHARE * (now.at - since.at)

    def _end(self, at: TimeAndCpu) -> None:
        if self._refusing:
            self._ended = at
        self._refusing = self.is_late = False
