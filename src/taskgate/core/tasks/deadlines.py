"""Deadlines of a task: approval, execution, and how long a finished task is kept.

Whether a deadline has passed is computed from stored times when a task is read or swept; no timer in a process is
needed for it. A task that is still open is not deleted when its ttl has passed.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task

DEFAULT_TTL_MS: Final = 600_000
MAX_TTL_MS: Final = 86_400_000
SHOWN_AS_EXPIRED_MS: Final = 3_600_000
"""How long a task is still shown as expired after its result was deleted."""
RESEND_WINDOW_MS: Final = 600_000


class Ttl(msgspec.Struct, frozen=True):
    """A ttl as it is applied and reported. `clamped`: the requested value was too large, and a warning is logged."""

    ms: int
    clamped: bool = False


def read_ttl(requested: Any, *, default_ms: int = DEFAULT_TTL_MS, max_ms: int = MAX_TTL_MS) -> Ttl:
    """Parse a caller's `ttl`: the default if absent, clamped if too large. Raises CallerError unless it is a positive
    integer.
    """
    if requested is None:
        return Ttl(min(default_ms, max_ms))
    if isinstance(requested, bool) or not isinstance(requested, int) or requested <= 0:
        raise CallerError(
            "invalid_params",
            "task.ttl must be a positive whole number of milliseconds. Leave it out to get the default.",
            data={"max_ttl_ms": max_ms},
        )
    return Ttl(min(requested, max_ms), clamped=requested > max_ms)


def kept_until_ms(task: Task) -> int | None:
    """Until when a finished task and its result can be read; None while it is open, and for calls of scripts.

    The ttl counts from the creation, as MCP requires, but the result of a call that took longer than its ttl can be
    read as well. A call of a script is deleted with its script and not by its own time: the script may still need the result.
    """
    if task.finished_ms is None or task.parent:
        return None
    return max(task.created_ms + task.ttl_ms, task.finished_ms + task.keep_result_ms)


def is_expired(task: Task, now_ms: int) -> bool:
    """Whether a reader must treat the task as deleted, even if it has not been swept yet."""
    until = kept_until_ms(task)
    return until is not None and now_ms >= until


def approval_is_over(task: Task, now_ms: int) -> bool:
    """Whether the call was not decided in time, or the decision was not used while it was valid."""
    waiting = task.state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
    return waiting and task.approval_deadline_ms is not None and now_ms >= task.approval_deadline_ms


def execution_is_over(task: Task, now_ms: int) -> bool:
    """Whether the run exceeded its budget: the server is to be notified, and the task ends according to its class."""
    running = task.state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED)
    return running and task.execution_deadline_ms is not None and now_ms >= task.execution_deadline_ms


def try_until_ms(task: Task) -> int | None:
    """Until when a failed attempt may be followed by another one: for a call that was never sent, until its approval or
    ttl ends; for a call that was sent, until its execution deadline.
    """
    if task.may_have_been_sent:
        return task.execution_deadline_ms
    until = task.created_ms + task.ttl_ms
    return until if task.approval_deadline_ms is None else min(until, task.approval_deadline_ms)


def may_resend_until_ms(task: Task) -> int | None:
    """Until when a repeatable call may be sent again, counted from the last attempt; None if it was never sent."""
    return None if task.last_attempt is None else task.last_attempt.sent_at_ms + RESEND_WINDOW_MS
