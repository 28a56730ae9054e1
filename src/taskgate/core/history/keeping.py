"""Which plain calls leave a row, how equal rows are summed, and which rows are deleted first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from taskgate.core.history.classify import SLOW_MS
from taskgate.core.history.row import CallOutcome, HistoryRow

SUM_MS: Final = 60_000
"""Equal rows within this time after the first one become one row."""
_OK: Final = CallOutcome.OK
_SLOW_S: Final = SLOW_MS / 1000
MAX_KINDS: Final = 500
"""Different rows that are summed at the same time; others are summed by caller, and beyond that all together."""


class Sample:
    """Which plain calls get a row: those that did not succeed, took long or asked a question, and the first ones of each second."""

    def __init__(self) -> None:
        self._second = -1
        self._taken = 0

    def keeps(self, outcome: CallOutcome, took_s: float, ended_s: float, *, asked: bool, per_second: int) -> bool:
        if outcome is not _OK or asked or took_s >= _SLOW_S:
            return True
        second = int(ended_s)
        if second != self._second:
            self._second, self._taken = second, 0
        self._taken += 1
        return self._taken <= per_second


class _Alike(msgspec.Struct, frozen=True):
    outcome: CallOutcome
    caller: str
    scope: str
    server: str
    tool: str
    client: str
    error_type: str
    rule: str


class _Sum:
    __slots__ = ("count", "first_ms", "last_ms", "number", "row", "taken", "until_ms")

    def __init__(self, row: HistoryRow) -> None:
        self.row = row
        self.first_ms = self.last_ms = row.ended_ms
        self.until_ms = row.ended_ms + SUM_MS
        self.count = self.taken = 0
        self.number = 0

    def add(self, at_ms: int) -> None:
        if not self.count:
            self.first_ms = at_ms
        self.count, self.last_ms = self.count + 1, at_ms

    def take(self, number_of: Callable[[int], int]) -> HistoryRow:
        """The row of what was added so far. The trace is that of the first one, which has a row of its own."""
        self.taken, self.number = self.count, self.number or number_of(self.last_ms)
        return msgspec.structs.replace(
            self.row,
            number=self.number,
            count=self.count,
            trace="",
            accepted_ms=self.first_ms,
            ended_ms=self.last_ms,
        )


class Summed(msgspec.Struct, frozen=True):
    """Rows of sums: those that are new, and those that have grown since they were written."""

    new: list[HistoryRow]
    grown: list[HistoryRow]


class EqualRows:
    """Sums equal rows, such as denials. The first one is a row of its own; those that follow within `SUM_MS` become one row, which
    grows."""

    def __init__(self) -> None:
        self._sums: dict[_Alike, _Sum] = {}

    def add(self, row: HistoryRow) -> HistoryRow | None:
        """Return the row to write now, or None if it is summed."""
        kind = _Alike(
            outcome=row.outcome,
            caller=row.caller,
            scope=row.scope,
            server=row.server,
            tool=row.tool,
            client=row.client,
            error_type=row.error_type,
            rule=row.rule,
        )
        if kind not in self._sums and len(self._sums) >= MAX_KINDS:
            kind = _Alike(
                outcome=row.outcome,
                caller=row.caller if len(self._sums) < 2 * MAX_KINDS else "",
                scope="",
                server="",
                tool="",
                client="",
                error_type="",
                rule="",
            )
            if not kind.caller:
                row = msgspec.structs.replace(row, caller="")
            row = msgspec.structs.replace(
                row, scope="", server="", tool="", client="", error_type="", rule="", reason=""
            )
        found = self._sums.get(kind)
        if found is None:
            self._sums[kind] = _Sum(row)
            return row
        found.add(row.ended_ms)
        return None

    def forget(self, caller: str) -> None:
        """Drop what was summed of a caller."""
        self._sums = {kind: found for kind, found in self._sums.items() if kind.caller != caller}

    def take(self, now_ms: int, number_of: Callable[[int], int]) -> Summed:
        """Return the sums that were added to since the last time, so that a crash loses no more of them than of other rows.
        `number_of` assigns the number of a row that ended at this time. An interval also ends if the clock was set back."""
        taken = Summed([], [])
        for kind, found in list(self._sums.items()):
            if now_ms >= found.until_ms or now_ms < found.until_ms - 2 * SUM_MS:
                del self._sums[kind]
            if found.count == found.taken:
                continue
            rows = taken.grown if found.number else taken.new
            rows.append(found.take(number_of))
        return taken


def to_delete(rows_of: Mapping[str, int], maximum: int, portion: int) -> dict[str, int]:
    """How many of the oldest rows each caller loses so that at most `maximum` remain, up to a portion.

    The caller with the most rows loses first, down to the next one, and so on: a caller that has few rows keeps them, whatever the
    others do.
    """
    excess = min(sum(rows_of.values()) - maximum, portion)
    largest = [(-count, caller) for caller, count in rows_of.items()]
    heapq.heapify(largest)
    lost: dict[str, int] = {}
    while excess > 0 and largest:
        count, caller = -largest[0][0], largest[0][1]
        heapq.heappop(largest)
        next_count = -largest[0][0] if largest else 0
        taken = min(excess, max(1, count - next_count))
        lost[caller] = lost.get(caller, 0) + taken
        excess -= taken
        if count > taken:
            heapq.heappush(largest, (taken - count, caller))
    return lost
