"""Token buckets for rate limits, and a gateway's share of a limit that several gateways have in common."""

from __future__ import annotations

import msgspec


class TokenBucket(msgspec.Struct, frozen=True):
    """A rate: `per_second` on average, `burst` at once."""

    per_second: float
    burst: float


class BucketLevel(msgspec.Struct, frozen=True):
    """The number of tokens of one caller at a time."""

    tokens: float
    at: float


def take(bucket: TokenBucket, level: BucketLevel | None, now: float, cost: float = 1.0) -> tuple[BucketLevel, float]:
    """Take tokens from a bucket, which starts full. Return its new level and 0, or the level and the seconds to wait.

    A clock that runs backwards neither refills nor costs anything.
    """
    if level is None:
        level = BucketLevel(bucket.burst, now)
    tokens = min(bucket.burst, level.tokens + max(0.0, now - level.at) * bucket.per_second)
    # A cost above the burst is allowed when the bucket is full, and leaves a debt.
    missing = min(cost, bucket.burst) - tokens
    if missing <= 0:
        return BucketLevel(tokens - cost, now), 0.0
    return BucketLevel(tokens, now), missing / bucket.per_second if bucket.per_second > 0 else float("inf")


def share(limit: int, place: int, among: int) -> int:
    """Return one gateway's part of a limit: all parts add up to the limit, but each is at least one."""
    return max(1, limit // among + (1 if place < limit % among else 0))
