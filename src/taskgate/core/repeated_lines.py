"""Which log lines are left out when one statement writes them over and over."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from taskgate.core.token_bucket import BucketLevel, TokenBucket, take

BURST: Final = 50
PER_SECOND: Final = 1.0
MOST_SOURCES: Final = 2_000
"""Sources that are counted separately. The oldest is forgotten when there are more."""


class LinesLeftOut(NamedTuple):
    """Lines of one source that were not written: the text and the level of the last one, and how many."""

    level: str
    event: str
    lines: int


class RepeatedLines:
    """The first `BURST` lines of a source pass, then `PER_SECOND`. Lines that are left out are counted.

    A source is what counts as the same line. A plain object without locks or time.
    """

    __slots__ = ("_left_out", "_levels")

    def __init__(self) -> None:
        self._levels: dict[Hashable, BucketLevel] = {}
        self._left_out: dict[Hashable, LinesLeftOut] = {}

    def passes(self, source: Hashable, level: str, event: str, now: float) -> int | None:
        """How many lines of this source were left out since the last one that passed; None if this one is left out."""
        if not self._takes(source, now):
            before = self._left_out.get(source)
            self._left_out[source] = LinesLeftOut(level, event, 1 if before is None else before.lines + 1)
            return None
        told = self._left_out.pop(source, None)
        return 0 if told is None else told.lines

    def reports(self, now: float) -> list[LinesLeftOut]:
        """Of each source that wrote no line since it may again: what was left out. To be asked for about once a second."""
        return [self._left_out.pop(source) for source in list(self._left_out) if self._takes(source, now)]

    def all_reports(self) -> list[LinesLeftOut]:
        """Everything that was left out and not reported, at the end of the process."""
        left_out, self._left_out = list(self._left_out.values()), {}
        return left_out

    def _takes(self, source: Hashable, now: float) -> bool:
        level, wait_s = take(TokenBucket(PER_SECOND, BURST), self._levels.get(source), now)
        if source not in self._levels and len(self._levels) >= MOST_SOURCES:
            oldest = next(iter(self._levels))
            del self._levels[oldest]
            self._left_out.pop(oldest, None)
        self._levels[source] = level
        return wait_s == 0
