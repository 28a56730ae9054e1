"""The range of time of a page: `?range=hour`, `day` or `week` until now. One picker serves every chart of a page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from taskgate.dashboard.web import with_query

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


class TimeRange(msgspec.Struct, frozen=True):
    name: str
    label: str
    length_ms: int
    buckets: int
    """The number of columns of its charts."""


RANGES: Final = (
    TimeRange("hour", "Last hour", _HOUR_MS, 30),
    TimeRange("day", "Last day", _DAY_MS, 32),
    TimeRange("week", "Last week", 7 * _DAY_MS, 28),
)


def chosen_range(given: str | None) -> TimeRange:
    """The range that the address names; the last hour for anything else."""
    return next((one for one in RANGES if one.name == given), RANGES[0])


def range_links(path: str, chosen: TimeRange, **query: str | None) -> list[tuple[str, str, bool]]:
    """The picker: label, address, and whether it is the chosen one."""
    begin = with_query(path, query)
    separator = "&" if "?" in begin else "?"
    return [(one.label, f"{begin}{separator}range={one.name}", one is chosen) for one in RANGES]


def short_time(at_ms: int, *, with_day: bool) -> str:
    """A time as a label, in UTC; the script replaces it with the user's time."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%a %H:%M}" if with_day else f"{at:%H:%M}"


def stamp(at_ms: int) -> str:
    """A time as a query parameter: ISO 8601 in its basic format, which needs no escapes."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y%m%dT%H%M%SZ}"
