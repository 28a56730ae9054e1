"""How often a program may die before it is left alone for a while."""

from __future__ import annotations

from collections import deque
from typing import Final

LEFT_ALONE_S: Final = 60.0


class CrashLoop:
    def __init__(self, limit: int, within_s: float) -> None:
        self.limit = limit
        self.within_s = within_s
        self._crashes: deque[float] = deque(maxlen=limit)
        self._until = 0.0

    def crashed(self, now: float) -> bool:
        """Remember a crash. True if that was one too many: leave the program alone for a minute."""
        self._crashes.append(now)
        if len(self._crashes) < self.limit or now - self._crashes[0] > self.within_s:
            return False
        self._crashes.clear()
        self._until = now + LEFT_ALONE_S
        return True

    def left_alone_s(self, now: float) -> float:
        """How much longer it is left alone."""
        return max(0.0, self._until - now)
