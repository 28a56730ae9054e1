"""Suppression of log lines that one statement writes repeatedly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import msgspec

from taskgate.core.token_bucket import BucketLevel, TokenBucket, take

BURST: Final = 50
PER_SECOND: Final = 1.0
MAX_SOURCES: Final = 2_000
"""Sources that are counted separately. Beyond it the oldest is dropped."""


class SuppressedLines(msgspec.Struct, frozen=True):
    """Suppressed lines of one source: level and text of the last one, and how many."""

    level: str
    event: str
    lines: int


class RepeatedLines:
    """Passes the first `BURST` lines of a source, then `PER_SECOND`, and counts suppressed lines.

    Lines of one source count as the same line. The object has no locks and no clock.
    """

    __slots__ = ("_levels", "_suppressed")

    def __init__(self) -> None:
        self._levels: dict[Hashable, BucketLevel] = {}
        self._suppressed: dict[Hashable, SuppressedLines] = {}

    def passes(self, source: Hashable, level: str, event: str, now: float) -> int | None:
        """Number of lines of this source that were suppressed since the last one that passed; None if this line is
        suppressed.
        """
        if not self._takes(source, now):
            before = self._suppressed.get(source)
            self._suppressed[source] = SuppressedLines(level, event, 1 if before is None else before.lines + 1)
            return None
        suppressed = self._suppressed.pop(source, None)
        return 0 if suppressed is None else suppressed.lines

    def reports(self, now: float) -> list[SuppressedLines]:
        """For each source that has written no line since its rate allows one again: what was suppressed. To be called
        about once a second.
        """
        return [self._suppressed.pop(source) for source in list(self._suppressed) if self._takes(source, now)]

    def all_reports(self) -> list[SuppressedLines]:
        """Everything that was suppressed and not reported, at the end of the process."""
        suppressed, self._suppressed = list(self._suppressed.values()), {}
        return suppressed

    def _takes(self, source: Hashable, now: float) -> bool:
        level, wait_s = take(TokenBucket(PER_SECOND, BURST), self._levels.get(source), now)
        if source not in self._levels and len(self._levels) >= MAX_SOURCES:
            oldest = next(iter(self._levels))
            del self._levels[oldest]
            self._suppressed.pop(oldest, None)
        self._levels[source] = level
        return wait_s == 0
