"""Delays between attempts to reach a server."""

from __future__ import annotations

import random

FIRST_S = 0.5
LONGEST_S = 60.0


class Backoff:
    """Exponential backoff with jitter over consecutive failures. A success resets it."""

    def __init__(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> None:
        bound = min(LONGEST_S, FIRST_S * 2 ** min(self.attempt, 10))
        self.attempt += 1
        self.retry_at = now + random.uniform(0, bound)

    def pause_until(self, until: float) -> None:
        """Do not retry before this time, regardless of the count."""
        self.attempt = max(1, self.attempt)
        self.retry_at = max(self.retry_at, until)

    def succeeded(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self.retry_at - now)
