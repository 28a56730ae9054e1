"""How long a caller should wait before it polls a task again.

The interval grows with the number of open tasks, so that the total polling rate stays near a fixed value, and is longer
while a task waits for an approval. A caller that polls earlier is delayed by the gateway, not refused.
"""

from __future__ import annotations

from typing import Final

from taskgate.core.tasks.state import TaskState

FASTEST_MS: Final = 1_000
FASTEST_FOR_APPROVAL_MS: Final = 15_000
SLOWEST_MS: Final = 60_000
POLLS_PER_SECOND: Final = 500


def poll_interval_ms(
    state: TaskState,
    open_tasks: int,
    fastest_ms: int = FASTEST_MS,
    fastest_for_approval_ms: int = FASTEST_FOR_APPROVAL_MS,
) -> int:
    """Return the interval for one task while `open_tasks` tasks are open in the whole gateway."""
    shared = open_tasks * 1_000 // POLLS_PER_SECOND
    floor = fastest_for_approval_ms if state is TaskState.AWAITING_APPROVAL else fastest_ms
    return max(floor, min(shared, SLOWEST_MS))
