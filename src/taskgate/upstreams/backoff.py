"""When to try again: full jitter between nothing and a bound that doubles, from half a second to a minute, for ever."""

from __future__ import annotations

import random

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
