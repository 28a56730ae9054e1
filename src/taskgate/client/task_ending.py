"""How a task ends: when the server may delete it, and the result or error of its terminal status.

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
    """The remaining time to live of one task."""

    __slots__ = ("_begun", "_warned")

    def __init__(self) -> None:
        self._begun = clock.monotonic()
        self._warned = False

    def began_at(self, created_at: str | None) -> None:
        """Set the creation time of a resumed task, by the server's clock."""
        try:
            created = datetime.fromisoformat(created_at or "")
        except ValueError:
            return
        age = datetime.now(UTC) - (created if created.tzinfo else created.replace(tzinfo=UTC))
        self._begun = clock.monotonic() - max(0.0, age.total_seconds())

    def remaining(self, task: Task | None) -> float | None:
        """Return the seconds until the server may delete the task, or None if it has no ttl."""
        if task is None or task.ttl is None:
            return None
        return self._begun + task.ttl / 1000 - clock.monotonic()

    def note_warning(self) -> None:
        """Record that the warning was issued; there is only one."""
        self._warned = True

    def until_warning(self, task: Task | None, earliest: float) -> float | None:
        """Return the seconds until the expiry warning is due (0: now), or None. A short ttl has a short notice."""
        remaining = self.remaining(task)
        if remaining is None or task is None or task.ttl is None or self._warned:
            return None
        return max(0.0, remaining - min(earliest, task.ttl / 1000 * 0.2))


UNKNOWN_TASK = -32602


def ending_of(task: Task, generation: Generation) -> ToolResult | ClientError | None:
    """Return the outcome of a terminal task, or None if its result must be fetched separately."""
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
    return InvalidReply(f"the server reports task {task.task_id} as completed, without a result")


def checked(task: Task, fetched: ToolResult) -> ToolResult:
    """Return the fetched result of a terminal task. Raises TaskFailed for an empty success of a failed task."""
    if task.status is TaskStatus.FAILED and not fetched.is_error and not fetched.content:
        raise failed(task)
    return fetched


def failed(task: Task) -> TaskFailed:
    return TaskFailed(task.task_id, f"task {task.task_id} failed{_detail(task)}")


def gone(task_id: str, remaining: float | None, grace: float) -> ClientError:
    """Return the error for a task that the server no longer has, with `remaining` seconds of its ttl."""
    if remaining is not None and remaining <= grace:
        return TaskExpired(task_id, f"task {task_id} expired before its result was collected")
    return TaskVanished(task_id, f"the server no longer has task {task_id}")


def _detail(task: Task) -> str:
    return f": {task.message}" if task.message else ""
