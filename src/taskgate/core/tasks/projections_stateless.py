"""A task as callers of the stateless generation see it (2026-07-28, extension io.modelcontextprotocol/tasks).

Flat objects with `ttlMs` and `pollIntervalMs` and no keys of our own, which the conformance suite rejects. The
extension has no progress notifications for tasks, so progress is in `_meta`. A task that waits for an approver is
`working`, because `input_required` must list questions that the caller can answer. A result with `isError` is a
completed task. Stored bytes are embedded unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

from taskgate.core.raw_json import Raw
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso

PROGRESS: Final = "taskgate/progress"


def stateless_status(task: Task) -> str:
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


def stateless_task(task: Task, poll_ms: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"taskId": task.id, "status": stateless_status(task)}
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


def stateless_create_result(task: Task, poll_ms: int) -> dict[str, Any]:
    """Build the result of a tools/call that became a task."""
    return {"resultType": "task", **stateless_task(task, poll_ms)}


def stateless_detailed(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Build `DetailedTask`, with the result, the error or the open questions inlined.

    `outcome` is the stored body (read from its spill file if there is one), `questions` are the raw requests by key.
    """
    shown = stateless_task(task, poll_ms)
    if questions and shown["status"] == "working":
        # A script works while servers ask questions of its calls.
        shown["status"] = "input_required"
    match shown["status"]:
        case "input_required":
            asked = questions if questions is not None else {}
            shown["inputRequests"] = {key: Raw(body) for key, body in asked.items()}
        case "completed" if outcome is not None:
            shown["result"] = Raw(outcome)
        case "failed" if outcome is not None:
            shown["error"] = Raw(outcome)
        case _:
            pass
    return shown


def stateless_get_result(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Build the result of tasks/get; the params of notifications/tasks are the same without `resultType`."""
    return {"resultType": "complete", **stateless_detailed(task, poll_ms, outcome=outcome, questions=questions)}
