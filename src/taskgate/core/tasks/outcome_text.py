"""The sentences about calls whose effect is not known, and about cancelled and expired ones. Plain text for people."""

from __future__ import annotations

from datetime import UTC, datetime

from taskgate.core.tasks.task import Task


def iso(ms: int) -> str:
    """A stored time as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def outcome_unknown(task: Task) -> str:
    """What a caller reads when a call that may not be repeated was lost on the way."""
    attempt = task.last_attempt
    sent = iso(attempt.sent_at_ms if attempt is not None else task.updated_ms)
    return (
        f"Outcome unknown. Taskgate sent `{task.tool}` to `{task.server}` at {sent} and lost contact before a result "
        "arrived. The call may or may not have taken effect. It was not sent again because this tool is not known to "
        "be safe to repeat. "
        f"Check the target system before trying again. Ref {task.id}, attempt {task.attempts}."
    )


def gave_up(task: Task) -> str:
    """What a caller reads when a repeatable call was tried as often as is allowed."""
    return (
        f"Taskgate sent `{task.tool}` to `{task.server}` {_times(task.times_sent)} and never got a result. "
        "The tool is known to be safe to repeat, so you may try again. "
        f"Ref {task.id}."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def past_deadline(task: Task) -> str:
    """What a caller reads when a run took longer than its budget."""
    seconds = task.execution_budget_ms / 1000
    return (
        f"`{task.tool}` on `{task.server}` did not finish within {seconds:g} s and was cancelled. "
        f"It may have taken effect in part. Ref {task.id}."
    )


def stopped_between_rounds(task: Task, why: str) -> str:
    """What a caller reads when a call could not go on after its questions were answered."""
    return (
        f"`{task.tool}` on `{task.server}` had begun, asked for input, and could not be continued with the answers: {why} "
        f"What it did before it asked may have taken effect. Ref {task.id}."
    )


def restored(task: Task) -> str:
    """What a caller reads whose call waited in a store that was put back from a backup."""
    return (
        f"Outcome unknown. Taskgate found its store older than it had left it, as after a restored backup. `{task.tool}` on "
        f"`{task.server}` may have run since the backup was made, so it was not sent. Check the target system before trying "
        f"again. Ref {task.id}."
    )
