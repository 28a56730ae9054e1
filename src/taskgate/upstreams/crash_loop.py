"""Detect a process that crashes repeatedly, and stop restarting it for a while."""

from __future__ import annotations

from collections import deque
from typing import Final

PAUSE_S: Final = 60.0


class CrashLoop:
    def __init__(self, limit: int, within_s: float) -> None:
        self.limit = limit
        self.within_s = within_s
        self._crashes: deque[float] = deque(maxlen=limit)
        self._until = 0.0

    def crashed(self, now: float) -> bool:
        """Record a crash. Return True if the limit is reached and restarts must pause."""
        self._crashes.append(now)
        if len(self._crashes) < self.limit or now - self._crashes[0] > self.within_s:
            return False
        self._crashes.clear()
        self._until = now + PAUSE_S
        return True

    def paused_s(self, now: float) -> float:
        """Return the remaining pause in seconds."""
        return max(0.0, self._until - now)
