"""How long a task may still be known to its server, and when to warn about it.

Counts from the moment this client learnt of the task, because the clocks of two machines differ; only a resumed
task has to be counted from the server's own time of creation. Used by the task handle.
"""

from __future__ import annotations

from datetime import UTC, datetime

from taskgate import clock
from taskgate.client.results import Task


class Expiry:
    """The life of one task, seen from here."""

    __slots__ = ("_begun", "warned")

    def __init__(self) -> None:
        self._begun = clock.monotonic()
        self.warned = False

    def began_at(self, created_at: str | None) -> None:
        """The task began earlier, at this time of its server's clock."""
        try:
            created = datetime.fromisoformat(created_at or "")
        except ValueError:
            return
        age = datetime.now(UTC) - (created if created.tzinfo else created.replace(tzinfo=UTC))
        self._begun = clock.monotonic() - max(0.0, age.total_seconds())

    def remaining(self, task: Task | None) -> float | None:
        """Seconds until the server may forget the task; None if it never may."""
        if task is None or task.ttl is None:
            return None
        return self._begun + task.ttl / 1000 - clock.monotonic()

    def until_warning(self, task: Task | None, earliest: float) -> float | None:
        """Seconds until a warning is due (0: now), None if none will be. A short life gets a short notice."""
        remaining = self.remaining(task)
        if remaining is None or task is None or task.ttl is None or self.warned:
            return None
        return max(0.0, remaining - min(earliest, task.ttl / 1000 * 0.2))
