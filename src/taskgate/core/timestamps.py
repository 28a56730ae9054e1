"""Stored times as text."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def iso(ms: int) -> str:
    """Return a stored time as ISO 8601 in UTC with milliseconds."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """Cached, because most displayed times fall into the same few seconds and formatting one costs as much as the rest
    of a task.
    """
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
