"""When somebody last looked at each task: polls that come too often are refused, and a caller that polls is still there."""

from __future__ import annotations

from typing import Final

from taskgate import clock
from taskgate.core.errors import GatewayFault

ABUSE_PER_S: Final = 50
MAX_REMEMBERED: Final = 20_000


class Polls:
    def __init__(self) -> None:
        # By task: when the last poll came, since when they are counted, and how many there were.
        self._seen: dict[str, tuple[float, float, int]] = {}

    def note(self, task_id: str) -> float:
        """Seconds since the last poll of this task; infinite for the first. Raises when they come so often that it is abuse."""
        now = clock.monotonic()
        last, since, count = self._seen.get(task_id, (float("-inf"), now, 0))
        if now - since >= 1.0:
            since, count = now, 0
        if count >= ABUSE_PER_S:
            raise GatewayFault(
                "rate_limited", "This task is asked for too often; keep to its poll interval.", retry_after_s=1
            )
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[task_id] = (now, since, count + 1)
        return now - last

    def since_last_s(self, task_id: str) -> float | None:
        """Seconds since somebody looked at this task; None if nobody did, as far as is known."""
        seen = self._seen.get(task_id)
        return clock.monotonic() - seen[0] if seen is not None else None

    def forget(self, task_id: str) -> None:
        self._seen.pop(task_id, None)
