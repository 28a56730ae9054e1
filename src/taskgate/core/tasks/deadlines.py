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

# What time and a crash do to tasks: their three clocks, and what the next owner does with what it finds.

# The three clocks of a task: approval deadline, execution deadline, and how long a finished task is kept.
#
# Expiry is a fact that follows from stored times; it is computed when a task is read or swept, and no timer in a
# process carries it. A task that is still open is never forgotten at its ttl.

DEFAULT_TTL_MS: Final = 600_000
MAX_TTL_MS: Final = 86_400_000
SHOWN_AS_EXPIRED_MS: Final = 3_600_000
"""How long after its result is gone a task can still be seen, as expired."""
RESEND_WINDOW_MS: Final = 600_000


class Ttl(msgspec.Struct, frozen=True):
    """A ttl as it will be honoured and reported; `clamped` asks for a warning in the log."""

    ms: int
    clamped: bool = False


def read_ttl(asked: Any, *, default_ms: int = DEFAULT_TTL_MS, max_ms: int = MAX_TTL_MS) -> Ttl:
    """A caller's `ttl`: absent gives the default, too much is clamped, anything but a positive whole number is an
    error.
    """
    if asked is None:
        return Ttl(min(default_ms, max_ms))
    if isinstance(asked, bool) or not isinstance(asked, int) or asked <= 0:
        raise CallerError(
            "invalid_params",
            "task.ttl must be a positive whole number of milliseconds. Leave it out to get the default.",
            data={"max_ttl_ms": max_ms},
        )
    return Ttl(min(asked, max_ms), clamped=asked > max_ms)


def kept_until_ms(task: Task) -> int | None:
    """Up to when a finished task and its result can be read; None while it is open.

    The ttl counts from the creation, as MCP says, but a call that took longer than its ttl is worth reading too.
    """
    if task.finished_ms is None:
        return None
    return max(task.created_ms + task.ttl_ms, task.finished_ms + task.keep_result_ms)


def is_gone(task: Task, now_ms: int) -> bool:
    """Whether a reader must treat the task as deleted, swept or not."""
    until = kept_until_ms(task)
    return until is not None and now_ms >= until


def approval_is_over(task: Task, now_ms: int) -> bool:
    """Nobody decided in time, or the decision was not used while it was good."""
    waiting = task.state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
    return waiting and task.approval_deadline_ms is not None and now_ms >= task.approval_deadline_ms


def execution_is_over(task: Task, now_ms: int) -> bool:
    """The run took longer than its budget: the upstream is to be cancelled and the task ends by its class."""
    running = task.state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED)
    return running and task.execution_deadline_ms is not None and now_ms >= task.execution_deadline_ms


def try_until_ms(task: Task) -> int | None:
    """Up to when a failed try may be followed by another: what was certainly never sent, until its approval or its ttl is over;
    what was sent, until the end of its execution.
    """
    if task.may_have_been_sent:
        return task.execution_deadline_ms
    until = task.created_ms + task.ttl_ms
    return until if task.approval_deadline_ms is None else min(until, task.approval_deadline_ms)


def may_resend_until_ms(task: Task) -> int | None:
    """Up to when a repeatable call may be sent again, counted from the last attempt; None if it was never sent."""
    return None if task.last_attempt is None else task.last_attempt.sent_at_ms + RESEND_WINDOW_MS
