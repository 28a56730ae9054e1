"""Read the audit log from the newest row back, across all of its chains.

With a shared store each start of a gateway has a chain of its own. Their rows are merged by time; rows of one chain stay in the
order of their numbers. A search continues after the position of the last row that was read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from taskgate import clock
from taskgate.core.audit.chain import Row
from taskgate.ports.store import Store
from taskgate.store.operations.audit import AuditRows, AuditTimes, ChainEnd, ChainEnds

SCANNED: Final = 1_000
"""Maximum number of rows that one search reads."""
_SLICE: Final = 200


class Position(NamedTuple):
    """A row in the merged order: newer times first, then by the name of the chain, then higher numbers first."""

    at_ms: int
    chain: str
    number: int

    @property
    def text(self) -> str:
        """Its spelling in addresses: the number of the row, with time and chain where there are several chains."""
        return f"{self.at_ms}:{self.number}:{self.chain}" if self.chain else str(self.number)


def read_position(text: str) -> Position:
    """Raises ValueError."""
    at_ms, _, rest = text.rpartition(":")[0].partition(":") if ":" in text else ("0", "", text)
    chain = text.rpartition(":")[2] if ":" in text else ""
    if not all(part.isascii() and part.isdigit() and len(part) <= 15 for part in (at_ms, rest)):
        raise ValueError("before must be the value of `next` of an earlier reply")
    return Position(int(at_ms), chain, int(rest))


class _Backwards:
    """The rows of one chain before a number, in slices."""

    __slots__ = ("_log", "_rows", "chain", "end")

    def __init__(self, log: Store, chain: str, end: int) -> None:
        self._log = log
        self._rows: list[Row] = []
        self.chain = chain
        self.end = end
        """The number before which rows are read next."""

    async def load(self) -> int:
        """Read a slice unless one is left. Return the number of rows that were read."""
        if self._rows or self.end <= 1:
            return 0
        begin = max(1, self.end - _SLICE)
        found = await self._log.ask(AuditRows(begin - 1, self.end - begin, chain=self.chain))
        self._rows = [row for row in found if row.number < self.end]
        self.end = begin
        return len(self._rows)

    def take(self) -> Row | None:
        return self._rows.pop() if self._rows else None


async def newest_first(
    log: Store, after: Position | None, since_ms: int, until_ms: int = 0
) -> AsyncGenerator[tuple[Position, Row]]:
    """Yield up to `SCANNED` rows that come after a position (from the newest row if it is None) and are not older than a time.

    Rows from `until_ms` on, if it is not 0, are skipped without being read: the first row before it is found by bisection.
    """
    starts = [start for end in await log.ask(ChainEnds()) if (start := await _start(log, end, after)) is not None]
    waiting = [await _before(log, start, until_ms) for start in starts] if until_ms else starts
    heapify(waiting)
    left = SCANNED
    while waiting and left > 0:
        key, chain, source, row = heappop(waiting)
        if -key < since_ms:
            return
        if row is not None:
            left -= 1
            yield Position(row.entry.at_ms, chain, row.number), row
        if await source.load():
            # Let other requests run.
            await clock.sleep(0)
        following = source.take()
        # Retention deletes the oldest rows only, so nothing is left before a slice without rows.
        if following is not None:
            heappush(waiting, (-following.entry.at_ms, chain, source, following))


_Waiting = tuple[int, str, _Backwards, Row | None]


async def _start(log: Store, end: ChainEnd, after: Position | None) -> _Waiting | None:
    """Where the search begins in a chain, before its first slice is read; None if it has no row after the position."""
    if after is None or (after.chain == end.chain and after.number > end.number):
        return (-end.at_ms, end.chain, _Backwards(log, end.chain, end.number + 1), None)
    if after.chain == end.chain:
        at_ms = after.at_ms if after.chain else end.at_ms
        return (-at_ms, end.chain, _Backwards(log, end.chain, after.number), None)
    latest = after.at_ms if end.chain > after.chain else after.at_ms - 1
    if end.began_ms > latest:
        return None
    number = end.number if end.at_ms <= latest else await _last_until(log, end.chain, end.number, latest)
    return (-min(end.at_ms, latest), end.chain, _Backwards(log, end.chain, number + 1), None)


async def _before(log: Store, start: _Waiting, until_ms: int) -> _Waiting:
    """The same chain from its last row before a time, if it would begin later."""
    key, chain, source, row = start
    if -key < until_ms:
        return start
    number = await _last_until(log, chain, source.end - 1, until_ms - 1)
    return (1 - until_ms, chain, _Backwards(log, chain, number + 1), row)


async def _last_until(log: Store, chain: str, newest: int, latest_ms: int) -> int:
    """The number of the last row of a chain, up to number `newest`, that is not newer than a time; 0 if there is none."""
    low, high = 0, newest
    while low < high:
        middle = (low + high + 1) // 2
        found = await log.ask(AuditTimes(middle - 1, 1, chain=chain))
        if found and found[0].at_ms <= latest_ms:
            low = max(middle, found[0].number)
        else:
            high = middle - 1
    return min(low, newest)
