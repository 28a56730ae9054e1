"""Token buckets for rate limits, and a gateway's share of a limit that several gateways have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A rate: `per_second` on average, `burst` at once."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class BucketLevel:
    """How full one caller's bucket was, and when."""

    tokens: float
    at: float


def take(bucket: TokenBucket, level: BucketLevel | None, now: float, cost: float = 1.0) -> tuple[BucketLevel, float]:
    """Take from a bucket, which starts full. Gives its new level and 0, or the unchanged tokens and the seconds to
    wait.

    A clock that runs backwards refills nothing and costs nothing.
    """
    if level is None:
        level = BucketLevel(bucket.burst, now)
    tokens = min(bucket.burst, level.tokens + max(0.0, now - level.at) * bucket.per_second)
    # What costs more than a full bucket goes when it is full, and leaves a debt.
    missing = min(cost, bucket.burst) - tokens
    if missing <= 0:
        return BucketLevel(tokens - cost, now), 0.0
    return BucketLevel(tokens, now), missing / bucket.per_second if bucket.per_second > 0 else float("inf")


def share(limit: int, place: int, among: int) -> int:
    """The part of a limit that is for one of several gateways: together they have the limit, but never less than one each."""
    return max(1, limit // among + (1 if place < limit % among else 0))
