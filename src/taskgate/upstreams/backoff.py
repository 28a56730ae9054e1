"""When to try again: full jitter between nothing and a bound that doubles, from half a second to a minute, for ever.

How often a program may die before it is left alone for a while.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final

FIRST_S = 0.5
LONGEST_S = 60.0


class Backoff:
    """Counts failures in a row; one success forgets them all."""

    def __init__(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> None:
        bound = min(LONGEST_S, FIRST_S * 2 ** min(self.attempt, 10))
        self.attempt += 1
        self.retry_at = now + random.uniform(0, bound)

    def leave_alone(self, until: float) -> None:
        """Not before this time, whatever the count says."""
        self.attempt = max(1, self.attempt)
        self.retry_at = max(self.retry_at, until)

    def succeeded(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self.retry_at - now)


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
