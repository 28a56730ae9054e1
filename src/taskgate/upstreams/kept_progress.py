"""Progress tokens that stay valid after the reply: of calls that became tasks, and of recently finished requests."""

from __future__ import annotations

from typing import Final

from taskgate.core.wire import Raw
from taskgate.upstreams.flight import Flight

MAX_TASKS: Final = 1000
_LATE_TOKENS: Final = 16
"""Progress after a reply is rare, and concerns only the last few requests."""


class KeptProgress:
    __slots__ = ("_late", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[int, Flight] = {}
        self._late: dict[int, Raw] = {}

    @property
    def has_tasks(self) -> bool:
        return bool(self._tasks)

    def keep_task(self, flight: Flight) -> None:
        """Keep the token of a call that became a task of the server; it is valid until that ends (2025-11-25, tasks)."""
        self._tasks[flight.number] = flight
        if len(self._tasks) > MAX_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def keep_late(self, number: int, token: Raw) -> None:
        """Keep the caller's token of a finished request, because servers may report progress after the reply."""
        self._late[number] = token
        if len(self._late) > _LATE_TOKENS:
            del self._late[next(iter(self._late))]

    def task(self, number: int) -> Flight | None:
        return self._tasks.get(number)

    def late(self, number: int) -> Raw | None:
        return self._late.get(number)
