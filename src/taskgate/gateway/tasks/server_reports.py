"""What a server reports while it runs the call of a task: progress, and what it waits for."""

from __future__ import annotations

import msgspec

from taskgate.core import wire
from taskgate.core.questions.question import Question
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    Noted,
)
from taskgate.core.wire import Raw
from taskgate.gateway.tasks.task_records import TaskRecords


class TaskSide(msgspec.Struct, eq=False):
    """Implements `CallSide` for a task: what the server waits for is shown in the status of the task."""

    _records: TaskRecords
    _task: Task

    def can_carry(self, question: Question) -> bool:
        return False

    def can_keep(self) -> bool:
        return True

    def server_waits(self, text: str | None) -> None:
        note = text or f"{self._task.server} has the answer that it waited for."
        self._records.note(self._task.id, self._task.principal, Noted(note[:500]))


def progress_note(method: str, raw: Raw | None) -> Noted | None:
    if method != "notifications/progress" or raw is None:
        return None
    params = wire.parse_strictly(bytes(raw))
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    number = isinstance(progress, int | float) and not isinstance(progress, bool)
    return Noted(
        message[:500] if type(message) is str else None,
        float(progress) if number else None,
        float(total) if isinstance(total, int | float) and not isinstance(total, bool) else None,
    )
