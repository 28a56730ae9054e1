"""When each task was last polled, and a limit on polls that come too often."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.errors import GatewayFault

PRESENT_INTERVALS: Final = 3
"""A caller that polled within this many of its poll intervals is present."""
MAX_POLLS_PER_S: Final = 50
MAX_REMEMBERED: Final = 20_000


class _Poll(msgspec.Struct, frozen=True):
    at: float
    interval_s: float
    second: float
    """When the second began in which polls are counted."""
    polls: int


class TaskPolls:
    """The last poll of each task, for a limited number of tasks."""

    def __init__(self) -> None:
        self._polls: dict[str, _Poll] = {}

    def note_poll(self, task_id: str, interval_s: float) -> float:
        """Record a poll and return the time of the last one. Raises GatewayFault if the task is polled far too often."""
        now = clock.monotonic()
        last = self._polls.get(task_id, _Poll(0.0, interval_s, now, 0))
        second, count = (last.second, last.polls) if now - last.second < 1.0 else (now, 0)
        if count >= MAX_POLLS_PER_S:
            text = "This task is polled too often; keep to its poll interval."
            raise GatewayFault("rate_limited", text, retry_after_s=1)
        if len(self._polls) >= MAX_REMEMBERED:
            self._polls.clear()
        self._polls[task_id] = _Poll(now, interval_s, second, count + 1)
        return last.at

    def forget(self, task_id: str) -> None:
        self._polls.pop(task_id, None)

    def seconds_since(self, task_id: str) -> float | None:
        known = self._polls.get(task_id)
        return clock.monotonic() - known.at if known is not None else None

    def was_recent(self, task_id: str) -> bool:
        known = self._polls.get(task_id)
        return known is not None and clock.monotonic() - known.at <= PRESENT_INTERVALS * known.interval_s
