"""Recorded calls, on which other rules can be tried, and usage by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.usage import UsageRow


class RecordedPage(NamedTuple):
    """A page of recorded calls. `after` is the position of the next page, None if this is the last one."""

    calls: tuple[RecordedCall, ...]
    after: int | None


class UsageStore(Protocol):
    """Recorded calls, and usage by day, principal, server and tool."""

    def record_calls(self, calls: Sequence[RecordedCall]) -> None:
        """Write with the next commit. `at_ms` 0 is replaced by the store's time."""
        ...

    async def recorded_calls(self, since_ms: int, after: int = 0, limit: int = 1_000) -> RecordedPage:
        """Return recorded calls in the order in which they were recorded."""
        ...

    async def last_recorded_call(self) -> int:
        """Return the number of the last recorded call; 0 if there is none."""
        ...

    async def forget_recorded_calls(self, keep_ms: int, portions: int = 1) -> bool:
        """Delete up to that many portions of calls that are too old or too many, and of old usage; return whether there may be
        more."""
        ...

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the counts of the same day, principal, server and tool, with the next commit."""
        ...

    async def usage(self, first: str, last: str) -> tuple[UsageRow, ...]:
        """Return the usage of all days from the first to the last, both as `2026-01-31`."""
        ...
