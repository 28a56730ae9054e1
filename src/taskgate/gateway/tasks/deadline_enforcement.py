"""End tasks and approvals whose deadline has passed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.tasks import endings
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import ApprovalExpired
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.cancel_note import CancelNote
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.upkeep import FindDue
from taskgate.telemetry.damaged_rows import left_out

PAGE: Final = 500


class DeadlineEnforcement(msgspec.Struct):
    records: TaskRecords
    runs: Runs
    deadlines: TaskDeadlines
    approval_due: Callable[[str], Awaitable[None]]
    """Ends an approval that has timed out."""
    approvals_over: Callable[[], Iterable[str]]
    """Returns the approvals that have expired by the monotonic clock."""

    async def expire(self, task: Task) -> None:
        """End a task whose approval was not given or not used in time."""
        if task.approval_id is not None:
            await self.approval_due(task.approval_id)
            return
        text = "This call was not approved in time. The tool was not run."
        if task.state is TaskState.APPROVED:
            text = "The approval of this call was not used in time. The tool was not run."
        error = endings.by_error(task, CallerError("approval_expired", text)).error
        await self.records.conclude(task.id, ApprovalExpired(error, text))

    async def enforce_deadlines(self) -> None:
        """End executions whose deadline has passed by the monotonic clock, and approvals by whichever clock is first."""
        due = await self.records.store.ask(FindDue(PAGE))
        for approval_id in self.approvals_over():
            with left_out("approvals", approval_id):
                await self.approval_due(approval_id)
        for task_id in due.approvals:
            with left_out("tasks", task_id):
                task = await self.records.store.ask(FindTask(task_id))
                if task is not None:
                    await self.expire(task)
        for approval_id in due.holds:
            with left_out("approvals", approval_id):
                await self.approval_due(approval_id)
        for task_id in due.executions:
            with left_out("tasks", task_id):
                task = await self.records.store.ask(FindTask(task_id)) if task_id not in self.deadlines else None
                if task is not None:
                    self.deadlines.note(task)
        ours = self.records.store.ownership.owner
        for task_id in self.deadlines.expired():
            task = await self.records.store.ask(FindTask(task_id))
            if task is None or task.state.is_terminal or task.owner != ours:
                self.deadlines.forget(task_id)
                continue
            ended = await self.records.advance(task_id, endings.past_deadline(task))
            await self.runs.cancel(ended or task, CancelNote())
