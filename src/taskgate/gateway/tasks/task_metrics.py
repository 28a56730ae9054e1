"""Metrics of tasks, approvals, questions and sessions: state changes counted, and how many are open."""

from __future__ import annotations

from taskgate.core.tasks.state import TaskState
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.store import Store
from taskgate.store.operations.approvals import PendingCount
from taskgate.telemetry.metrics import Gauge, Metrics


class TaskMetrics:
    def __init__(
        self,
        records: TaskRecords,
        inbox: Inbox,
        sessions: SessionTable,
        store: Store,
        metrics: Metrics,
        *,
        events: EventHub,
    ) -> None:
        self._store = store
        self._transitions = metrics.transitions
        self._pending_approvals = 0
        # The last state of every open task that changed since the start, so that an event without a state change is not counted.
        self._states: dict[str, TaskState] = {}
        metrics.show(
            Gauge("taskgate_open_tasks", "Tasks that have not ended.", (), lambda: [((), records.open_tasks)]),
            Gauge(
                "taskgate_inbox_questions",
                "Questions of servers that wait in an inbox.",
                (),
                lambda: [((), len(inbox))],
            ),
            Gauge("taskgate_sessions", "Open sessions of 2025 callers.", (), lambda: [((), len(sessions))]),
            Gauge(
                "taskgate_pending_approvals",
                "Calls that wait for a person's approval, as of the last second.",
                (),
                lambda: [((), self._pending_approvals)],
            ),
        )
        events.subscribe(TaskChanged, self._changed)

    def _changed(self, event: TaskChanged) -> None:
        task = event.task
        if self._states.get(task.id) is task.state:
            return
        self._transitions.add(str(task.state))
        if task.state.is_terminal:
            self._states.pop(task.id, None)
        else:
            self._states[task.id] = task.state

    async def refresh(self) -> None:
        """Read the numbers that only the store has. Called once a second."""
        self._pending_approvals = await self._store.ask(PendingCount())
