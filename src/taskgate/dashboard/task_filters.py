"""Query parameters of the task list, and the filter that they describe."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from taskgate.core.tasks.state import OPEN, TaskState

FILTERS: Final = {
    "state": "open, all, or one state",
    "server": "name of the server",
    "tool": "part of the tool's name",
    "caller": "principal that made the call",
    "scope": "scope of the call",
    "since": "created since: 30m, 24h, 7d, or a date or time",
    "until": "created before",
    "text": "up to four parts of the id or the names of caller, scope, server and tool, separated by spaces; ASCII case is ignored",
    "after": "start of the next page, from `next`",
    "limit": "maximum number of rows, up to 1000",
}


def task_states(given: str | None) -> frozenset[TaskState] | None:
    if given is None or given == "all":
        return None
    if given == "open":
        return OPEN
    try:
        return frozenset({TaskState(given)})
    except ValueError:
        known = ", ".join(state.value for state in TaskState)
        raise ValueError(f"state must be open, all or one of {known}") from None


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def point_in_time(name: str, given: str | None, now_ms: int) -> int | None:
    """A time in milliseconds: so long ago, or a date or time of day (UTC, if it names no zone)."""
    if given is None:
        return None
    if given[-1] in _UNITS and given[:-1].isascii() and given[:-1].isdigit() and len(given) < 8:
        return now_ms - int(given[:-1]) * _UNITS[given[-1]] * 1000
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"{name} must be like 30m, 24h, 7d, 2026-07-28 or 2026-07-28T10:00:00Z") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
