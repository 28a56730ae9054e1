"""How a task ends: when the server may delete it, and which result or error its terminal status stands for.

The ttl counts from the moment this client received the task, because the clocks of two machines differ. Only for a resumed
task does it count from the server's creation time.
"""

from __future__ import annotations

from datetime import UTC, datetime

from taskgate import clock
from taskgate.client.errors import (
    ClientError,
    InvalidReply,
    ServerError,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskVanished,
)
from taskgate.client.options import Generation
from taskgate.client.results import Task, TaskStatus, ToolResult


class Expiry:
    """The life of one task, seen from here."""

    __slots__ = ("_begun", "_warned")

    def __init__(self) -> None:
        self._begun = clock.monotonic()
        self._warned = False

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

    def note_warning(self) -> None:
        """There is one warning only."""
        self._warned = True

    def until_warning(self, task: Task | None, earliest: float) -> float | None:
        """Seconds until a warning is due (0: now), None if none will be. A short life gets a short notice."""
        remaining = self.remaining(task)
        if remaining is None or task is None or task.ttl is None or self._warned:
            return None
        return max(0.0, remaining - min(earliest, task.ttl / 1000 * 0.2))


UNKNOWN_TASK = -32602


def ending_of(task: Task, generation: Generation) -> ToolResult | ClientError | None:
    """The outcome of a task in a terminal status; None where the result has to be asked for separately."""
    if task.status is TaskStatus.CANCELLED:
        return TaskCancelled(task.task_id, f"task {task.task_id} was cancelled{_detail(task)}")
    if generation is Generation.STATEFUL:
        return None
    if task.status is TaskStatus.COMPLETED and task.result is not None:
        return ToolResult(dict(task.result))
    if task.status is TaskStatus.FAILED and task.error is not None:
        code = task.error.get("code")
        return ServerError(code if isinstance(code, int) else 0, str(task.error.get("message")), task.error.get("data"))
    if task.status is TaskStatus.FAILED:
        return failed(task)
    return InvalidReply(f"the server says task {task.task_id} is completed but gives no result")


def checked(task: Task, fetched: ToolResult) -> ToolResult:
    """A result that was fetched for a terminal task. Some servers hand over an empty success for work that crashed."""
    if task.status is TaskStatus.FAILED and not fetched.is_error and not fetched.content:
        raise failed(task)
    return fetched


def failed(task: Task) -> TaskFailed:
    return TaskFailed(task.task_id, f"task {task.task_id} failed{_detail(task)}")


def gone(task_id: str, remaining: float | None, grace: float) -> ClientError:
    """Why a server no longer knows a task that had `remaining` seconds to live."""
    if remaining is not None and remaining <= grace:
        return TaskExpired(task_id, f"task {task_id} expired before its result was collected")
    return TaskVanished(task_id, f"the server no longer knows task {task_id}")


def _detail(task: Task) -> str:
    return f": {task.message}" if task.message else ""
