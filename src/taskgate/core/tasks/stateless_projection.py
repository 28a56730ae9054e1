"""How a task looks to a caller of the stateless generation (2026-07-28 with the extension
io.modelcontextprotocol/tasks).

Flat objects with `ttlMs` and `pollIntervalMs` and no key of our own: the conformance suite refuses those. The extension has no
progress notifications for tasks, so the numbers of one that runs travel in `_meta`, where anybody may put what is theirs. Waiting
for *our* approver is `working` here, because `input_required` must list questions the caller can answer. A result
with `isError` is a completed task. Stored bytes are embedded as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from taskgate.core.tasks.outcome_text import iso
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task

PROGRESS: Final = "taskgate/progress"


def status(task: Task) -> str:
    match task.state:
        case TaskState.QUEUED | TaskState.AWAITING_APPROVAL | TaskState.APPROVED | TaskState.RUNNING:
            return "working"
        case TaskState.INPUT_REQUIRED:
            return "input_required"
        case TaskState.COMPLETED:
            return "completed"
        case TaskState.CANCELLED:
            return "cancelled"
        case TaskState.FAILED | TaskState.REJECTED | TaskState.EXPIRED | TaskState.OUTCOME_UNKNOWN:
            return "failed"
        case _:
            assert_never(task.state)


def task_object(task: Task, poll_ms: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"taskId": task.id, "status": status(task)}
    if task.status_message is not None:
        shown["statusMessage"] = task.status_message
    shown["createdAt"] = iso(task.created_ms)
    shown["lastUpdatedAt"] = iso(task.updated_ms)
    shown["ttlMs"] = task.ttl_ms
    shown["pollIntervalMs"] = poll_ms
    if task.progress is not None and not task.state.is_terminal:
        total = {} if task.progress_total is None else {"total": task.progress_total}
        shown["_meta"] = {PROGRESS: {"progress": task.progress, **total}}
    return shown


def create_result(task: Task, poll_ms: int) -> dict[str, Any]:
    """The answer to a tools/call that became a task."""
    return {"resultType": "task", **task_object(task, poll_ms)}


def detailed(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """`DetailedTask`: with the result, the error or the open questions inlined.

    `outcome` is the stored body (read from its spill file if need be), `questions` the raw requests by key.
    """
    shown = task_object(task, poll_ms)
    match shown["status"]:
        case "input_required":
            asked = questions if questions is not None else {}
            shown["inputRequests"] = {key: msgspec.Raw(body) for key, body in asked.items()}
        case "completed" if outcome is not None:
            shown["result"] = msgspec.Raw(outcome)
        case "failed" if outcome is not None:
            shown["error"] = msgspec.Raw(outcome)
        case _:
            pass
    return shown


def get_result(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """The answer to tasks/get; the params of notifications/tasks are the same without `resultType`."""
    return {"resultType": "complete", **detailed(task, poll_ms, outcome=outcome, questions=questions)}
