"""Which caller may see a task."""

from __future__ import annotations

from taskgate.core.errors import CallerError, Executed
from taskgate.core.history.row import HistoryRow
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.gateway.requests.request import Request


def unknown_task() -> CallerError:
    return CallerError("unknown_task", "There is no such task, or it is no longer kept.")


def ended_task(row: HistoryRow) -> CallerError:
    """The error for a task of the caller's own principal that has ended and is no longer stored."""
    ended = iso(row.ended_ms)
    text = f"This task ended at {ended} with the outcome {row.outcome.value}. Its result is no longer stored."
    error = CallerError("result_expired", text, data={"outcome": row.outcome.value, "ended_at": ended})
    error.is_proven_by_record(Executed(row.executed), row.task_id)
    return error


def may_see(request: Request, task: Task, *, by_session: bool) -> bool:
    """A task is bound to its principal. Without authentication, the unguessable id is the proof.

    `by_session`: without authentication the conversation must be that of the call, too (`auth.anonymous_tasks: session`).
    """
    if task.principal != request.caller.principal:
        return False
    return not by_session or not request.caller.anonymous or task.caller == request.caller_key
