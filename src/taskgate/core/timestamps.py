"""Stored times as text."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

# The sentences about calls whose effect is not known, and about cancelled and expired ones. Plain text for people.


def iso(ms: int) -> str:
    """A stored time as ISO 8601 in UTC with milliseconds."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """Most times that are shown lie in the same few seconds, and to write one out costs as much as the rest of a task's answer."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
