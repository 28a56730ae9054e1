"""How much time the tasks of this process have left, by the monotonic clock.

The deadlines in a task's record are times of the store's clock, for other gateways and for the time after a restart. That clock
can be set: an hour forward would end every run, an hour back would extend it. So when this process first sees a deadline, it
notes the time that is left and counts it down by the monotonic clock. An approval ends by whichever of the two clocks is first.
"""

from __future__ import annotations

import heapq
from typing import Final

from taskgate import clock
from taskgate.core.tasks.deadlines import try_until_ms
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.ports.store import Store

_OUTDATED: Final = 100
"""How many entries of ended tasks are kept besides one for each open task. A task usually ends long before its deadline."""


class TaskDeadlines:
    def __init__(self, store: Store, events: EventHub) -> None:
        self._store = store
        self._executions: dict[str, float] = {}
        self._tries: dict[str, float] = {}
        self._next: list[tuple[float, str]] = []
        """A heap of execution deadlines. Outdated entries are dropped when they are due, or when most are outdated."""
        events.subscribe(TaskChanged, lambda event: self.note(event.task))

    def __contains__(self, task_id: str) -> bool:
        """Whether the deadline of the task's execution is known here."""
        return task_id in self._executions

    def note(self, task: Task) -> None:
        """Update the deadline of a task that changed or that this gateway has taken over."""
        if task.state.is_terminal or task.execution_deadline_ms is None:
            # Without a deadline nothing is in flight, so the execution time does not run.
            self._executions.pop(task.id, None)
        elif task.id not in self._executions and task.owner == self._store.ownership.owner:
            left_ms = min(task.execution_deadline_ms - self._store.now_ms(), task.execution_budget_ms)
            end = self._executions[task.id] = clock.monotonic() + max(0, left_ms) / 1000
            heapq.heappush(self._next, (end, task.id))
            if len(self._next) > 2 * len(self._executions) + _OUTDATED:
                self._next = [(end, task_id) for task_id, end in self._executions.items()]
                heapq.heapify(self._next)

    def forget(self, task_id: str) -> None:
        """Drop a task that another gateway owns."""
        self._executions.pop(task_id, None)

    def expired(self) -> list[str]:
        """The tasks whose execution time is over, until each has ended or is forgotten."""
        due, now = [], clock.monotonic()
        while self._next and self._next[0][0] <= now:
            end, task_id = heapq.heappop(self._next)
            if self._executions.get(task_id) == end:
                due.append((end, task_id))
        for each in due:
            heapq.heappush(self._next, each)
        return [task_id for _, task_id in due]

    def retry_time_left_s(self, task: Task) -> float | None:
        """For how long a failed attempt may be followed by another one (`endings.try_until_ms`); None without a limit."""
        now = clock.monotonic()
        if task.may_have_been_sent:
            self.note(task)
            end = self._executions.get(task.id)
            return None if end is None else end - now
        if task.id not in self._tries:
            until = try_until_ms(task)
            assert until is not None
            self._tries[task.id] = now + (until - self._store.now_ms()) / 1000
        left_s = self._tries[task.id] - now
        if task.approval_deadline_ms is None:
            return left_s
        return min(left_s, (task.approval_deadline_ms - self._store.now_ms()) / 1000)

    def max_wait_s(self, task: Task) -> float | None:
        """How long the next attempt may wait for its slot; None without a limit."""
        left_s = self.retry_time_left_s(task)
        return None if left_s is None else max(0.0, left_s)

    def run_ended(self, task_id: str) -> None:
        """No further attempt follows in this process."""
        self._tries.pop(task_id, None)
