"""How much time the tasks of this process have left, by the monotonic clock.

The deadlines in a task's record are times of the store's clock, for other gateways and later lives. That clock can be set: an
hour forward would end every run, an hour back would let it go on for an hour longer. So when this process first sees a deadline,
it notes how much time is left and counts that down by the monotonic clock. An approval ends by whichever of the two clocks is
first.
"""

from __future__ import annotations

import heapq

from taskgate import clock
from taskgate.core.tasks.deadlines import try_until_ms
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.ports.store import Store


class TaskDeadlines:
    def __init__(self, store: Store, events: EventHub) -> None:
        self._store = store
        self._executions: dict[str, float] = {}
        self._tries: dict[str, float] = {}
        self._next: list[tuple[float, str]] = []
        """Ends of executions, the first one first. One that no longer holds is dropped when its time has come."""
        events.subscribe(TaskChanged, lambda event: self.note(event.task))

    def __contains__(self, task_id: str) -> bool:
        """Whether the end of the task's execution is known here."""
        return task_id in self._executions

    def note(self, task: Task) -> None:
        """The task has changed, or has just become ours."""
        if task.state.is_terminal or task.execution_deadline_ms is None:
            # Without a deadline nothing is out (any more): the clock of the execution has not started.
            self._executions.pop(task.id, None)
        elif task.id not in self._executions and task.owner == self._store.ownership.owner:
            left_ms = min(task.execution_deadline_ms - self._store.now_ms(), task.execution_budget_ms)
            end = self._executions[task.id] = clock.monotonic() + max(0, left_ms) / 1000
            heapq.heappush(self._next, (end, task.id))

    def forget(self, task_id: str) -> None:
        """The task is not ours any more."""
        self._executions.pop(task_id, None)

    def over(self) -> list[str]:
        """The tasks whose execution has taken all its time, until each has ended or is forgotten."""
        due, now = [], clock.monotonic()
        while self._next and self._next[0][0] <= now:
            end, task_id = heapq.heappop(self._next)
            if self._executions.get(task_id) == end:
                due.append((end, task_id))
        for each in due:
            heapq.heappush(self._next, each)
        return [task_id for _, task_id in due]

    def try_left_s(self, task: Task) -> float | None:
        """For how long a failed try may be followed by another (`endings.try_until_ms`); None without a limit."""
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

    def run_ended(self, task_id: str) -> None:
        """No further try follows here."""
        self._tries.pop(task_id, None)
