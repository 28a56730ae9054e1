"""CPU seconds per minute of each caller or tenant, as steps of scripts use them."""

from __future__ import annotations

from typing import Final

from taskgate import clock
from taskgate.core.token_bucket import BucketLevel, TokenBucket, take

_MAX_NAMES: Final = 10_000
_MINUTE_S: Final = 60.0


class CpuLimit:
    """A limit for each name, which is a caller or a tenant. What is used above it is a debt that is paid off by waiting."""

    def __init__(self) -> None:
        self._rate: TokenBucket | None = None
        self._levels: dict[str, BucketLevel] = {}

    def adopt(self, seconds_per_minute: float | None) -> None:
        """Apply a limit, also a changed one. What was used stays counted."""
        rate = seconds_per_minute
        self._rate = None if rate is None else TokenBucket(rate / _MINUTE_S, rate)

    def wait_s(self, name: str) -> float:
        """After how many seconds this name may compute again; 0 if it may now."""
        if self._rate is None:
            return 0.0
        return take(self._rate, self._levels.get(name), clock.monotonic(), cost=0.0)[1]

    def charge(self, name: str, seconds: float) -> None:
        """Count what was used."""
        if self._rate is None:
            return
        level, _ = take(self._rate, self._levels.pop(name, None), clock.monotonic(), cost=0.0)
        self._levels[name] = BucketLevel(level.tokens - seconds, level.at)
        if len(self._levels) > _MAX_NAMES:
            # The one that computed longest ago.
            del self._levels[next(iter(self._levels))]
