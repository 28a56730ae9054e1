"""How a task looks to its callers: in both generations, to the vendor methods, and in replies of the gateway's own tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from taskgate.core import wire
from taskgate.core.tasks.endings import is_gone, iso
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.wire import Raw

# How a task looks to a caller of the stateful generation (2025-11-25, tasks in core).
#
# The `Task` object of that revision, plus the extra keys callers of this gateway know from the approval design:
# `toolName` in lists, and the flat twin of the task in the create result. `tasks/result` bytes are not made here: they
# are relayed as stored.


def stateful_status(task: Task) -> str:
    """The revision's five words. A result that says `isError` counts as failed."""
    match task.state:
        case TaskState.QUEUED | TaskState.APPROVED | TaskState.RUNNING:
            return "working"
        case TaskState.AWAITING_APPROVAL | TaskState.INPUT_REQUIRED:
            return "input_required"
        case TaskState.COMPLETED:
            return "failed" if task.outcome is not None and task.outcome.is_error else "completed"
        case TaskState.CANCELLED:
            return "cancelled"
        case TaskState.FAILED | TaskState.REJECTED | TaskState.EXPIRED | TaskState.OUTCOME_UNKNOWN:
            return "failed"
        case _:
            assert_never(task.state)


def stateful_task(task: Task, poll_ms: int) -> dict[str, Any]:
    """`Task`: the answer to tasks/get and tasks/cancel, and the params of the status notification."""
    shown: dict[str, Any] = {"taskId": task.id, "status": stateful_status(task)}
    message = status_message(task)
    if message is not None:
        shown["statusMessage"] = message
    shown["createdAt"] = iso(task.created_ms)
    shown["lastUpdatedAt"] = iso(task.updated_ms)
    shown["ttl"] = task.ttl_ms
    shown["pollInterval"] = poll_ms
    return shown


def status_message(task: Task) -> str | None:
    """Clients that stop at `failed` show only this text, so a failed task always has one."""
    if task.status_message is None and stateful_status(task) == "failed":
        return f"`{task.wire_name}` reported an error. Ask for the result to see it."
    return task.status_message


def stateful_create_result(task: Task, poll_ms: int) -> dict[str, Any]:
    """CreateTaskResult: the full task, and its main members again at the top for callers that look there.

    A new task starts in `working` (2025-11-25, tasks, "Task Status Lifecycle"), also when an approver will be asked.
    """
    inner = {**stateful_task(task, poll_ms), "status": "working"}
    repeated = ("taskId", "status", "statusMessage", "pollInterval")
    return {"task": inner, **{key: value for key, value in inner.items() if key in repeated}}


def stateful_list_row(task: Task, poll_ms: int) -> dict[str, Any]:
    """One entry of tasks/list."""
    return {**stateful_task(task, poll_ms), "toolName": task.wire_name}


# How a task looks to a caller of the stateless generation (2026-07-28 with the extension
# io.modelcontextprotocol/tasks).
#
# Flat objects with `ttlMs` and `pollIntervalMs` and no key of our own: the conformance suite refuses those. The
# extension has no progress notifications for tasks, so the numbers of one that runs travel in `_meta`, where anybody
# may put what is theirs. Waiting for *our* approver is `working` here, because `input_required` must list questions the
# caller can answer. A result with `isError` is a completed task. Stored bytes are embedded as they are.

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
    """The answer to a tools/call that became a task."""
    return {"resultType": "task", **stateless_task(task, poll_ms)}


def stateless_detailed(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """`DetailedTask`: with the result, the error or the open questions inlined.

    `outcome` is the stored body (read from its spill file if need be), `questions` the raw requests by key.
    """
    shown = stateless_task(task, poll_ms)
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


def stateless_get_result(
    task: Task, poll_ms: int, *, outcome: bytes | None = None, questions: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """The answer to tasks/get; the params of notifications/tasks are the same without `resultType`."""
    return {"resultType": "complete", **stateless_detailed(task, poll_ms, outcome=outcome, questions=questions)}


# How a task looks to callers of the vendor methods (`tasks/create` and its relatives): whole numbers for times,
# `pending`.
#
# Only served where the operator switched those methods on. Everything else about the task is the same.


TOOL_FAILED_CODE: Final = -32000


def vendor_status(task: Task) -> str:
    """`pending` until something moves; then as on the stateful wire, where waiting counts as working."""
    if task.state is TaskState.QUEUED:
        return "pending"
    word = stateful_status(task)
    return "working" if word == "input_required" else word


def vendor_created(task: Task) -> dict[str, Any]:
    return {"taskId": task.vendor_id or task.id, "status": vendor_status(task), "createdAt": task.created_ms}


def vendor_task(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """With the outcome inline, once there is one; MCP's other members beside, which these callers pass over."""
    shown: dict[str, Any] = {
        **vendor_created(task),
        "action": task.wire_name,
        "updatedAt": task.updated_ms,
        "lastUpdatedAt": iso(task.updated_ms),
        "ttl": task.ttl_ms,
    }
    if task.status_message is not None:
        shown["statusMessage"] = task.status_message
    return {**shown, **vendor_outcome(task, outcome)}


def vendor_outcome(task: Task, outcome: bytes | None) -> dict[str, Any]:
    """`result` or `error` as these callers expect it inside a task. A tool that reported an error gives both: its result as it is,
    and an error, because the task is `failed`."""
    if task.outcome is None or outcome is None:
        return {}
    if task.outcome.kind is not OutcomeKind.RESULT:
        return {"error": msgspec.Raw(outcome)}
    if not task.outcome.is_error:
        return {"result": msgspec.Raw(outcome)}
    message = task.status_message or "The tool reported an error."
    error = {"code": TOOL_FAILED_CODE, "message": message, "data": {"error_type": "tool_failed"}}
    return {"result": msgspec.Raw(outcome), "error": error}


def vendor_result(task: Task, outcome: bytes) -> bytes:
    """The tool's own result, as MCP wants it, and the same again in the form of these callers."""
    return wire.join(
        {
            **wire.members_of(outcome),
            "taskId": wire.raw(task.vendor_id or task.id),
            "result": Raw(outcome),
            "completedAt": wire.raw(task.finished_ms),
        }
    )


def vendor_cancelled(task: Task) -> dict[str, Any]:
    return {**vendor_task(task, None), "cancelledAt": task.finished_ms}


# How a task looks in the replies of the helper and facade tools: snake_case, five plain words.
#
# Callers here know no MCP tasks. A task stays `working` through approvals and questions; `waiting_for` says for whom.
# What is no longer kept is `expired`.

MAX_SHOWN_ARGUMENTS: Final = 4_096
STATUSES: Final = ("working", "completed", "failed", "cancelled", "expired")


def shown_status(task: Task, now_ms: int) -> str:
    if is_gone(task, now_ms):
        return "expired"
    match task.state:
        case TaskState.COMPLETED:
            return "failed" if task.outcome is not None and task.outcome.is_error else "completed"
        case TaskState.CANCELLED:
            return "cancelled"
        case TaskState.EXPIRED:
            return "expired"
        case TaskState.FAILED | TaskState.REJECTED | TaskState.OUTCOME_UNKNOWN:
            return "failed"
        case (
            TaskState.QUEUED
            | TaskState.AWAITING_APPROVAL
            | TaskState.APPROVED
            | TaskState.RUNNING
            | TaskState.INPUT_REQUIRED
        ):
            return "working"
        case _:
            assert_never(task.state)


def states_shown_as(word: str) -> frozenset[TaskState]:
    """The states to look for when a caller filters by one of the words; an unknown word finds nothing.

    A completed task whose result is an error is shown as failed, so both words look among the completed ones too, and
    the caller of this function keeps the rows whose `status` is the word.
    """
    return frozenset(_STATES_BY_WORD.get(word, ()))


_STATES_BY_WORD: Final = {
    "working": (
        TaskState.QUEUED,
        TaskState.AWAITING_APPROVAL,
        TaskState.APPROVED,
        TaskState.RUNNING,
        TaskState.INPUT_REQUIRED,
    ),
    "completed": (TaskState.COMPLETED,),
    "failed": (TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED, TaskState.OUTCOME_UNKNOWN),
    "cancelled": (TaskState.CANCELLED,),
    # Whatever ended long enough ago is shown as expired.
    "expired": (
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.REJECTED,
        TaskState.EXPIRED,
        TaskState.OUTCOME_UNKNOWN,
    ),
}


def proxy_task(task: Task, now_ms: int) -> dict[str, Any]:
    """The object in the reply that tells a caller its call became a task."""
    return {
        "task_id": task.id,
        "status": shown_status(task, now_ms),
        "created_at": iso(task.created_ms),
        "server": task.server,
        "tool": task.tool,
    }


def shown_task(task: Task, now_ms: int) -> dict[str, Any]:
    """The object in the replies of `get_task` and `list_tasks`."""
    shown = {
        "task_id": task.id,
        "status": shown_status(task, now_ms),
        "created_at": iso(task.created_ms),
        "last_updated_at": iso(task.updated_ms),
        "server": task.server,
        "tool": task.tool,
        "ttl": task.ttl_ms,
    }
    arguments = _shown_arguments(task)
    if arguments is not None:
        shown["args"] = arguments
    if task.status_message is not None:
        shown["status_message"] = task.status_message
    if task.progress is not None:
        shown["progress"] = task.progress
    if task.progress_total is not None:
        shown["progress_total"] = task.progress_total
    if task.state is TaskState.AWAITING_APPROVAL:
        shown["waiting_for"] = "approval"
    elif task.state is TaskState.INPUT_REQUIRED:
        shown["waiting_for"] = "input"
    if task.outcome is not None and task.outcome.is_error:
        shown["is_error"] = True
        shown["error"] = task.status_message or "The tool answered with an error; get_task_result shows it."
    if task.state.is_terminal and task.executed is not None:
        shown["executed"] = task.executed.value
    return shown


def _shown_arguments(task: Task) -> Any:
    """What the call was asked with, by which its caller tells it from others; None where it is too long to show."""
    if not task.arguments or len(task.arguments) > MAX_SHOWN_ARGUMENTS:
        return None
    return wire.parse_strictly(task.arguments)
