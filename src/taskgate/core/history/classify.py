"""Classify how a task or a held request ended, and build its row of history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core.governance.approval import Approval, State
from taskgate.core.history.row import LONGEST_REASON, CallOutcome, HistoryRow, RowKind, as_key, cleaned
from taskgate.core.meta import meta_of
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.mcp.json_errors import UNDECODABLE

SLOW_MS: Final = 2_000
"""A plain call that takes longer is slow: it always gets a row."""
_BY_STATE: Final = {
    TaskState.COMPLETED: CallOutcome.OK,
    TaskState.FAILED: CallOutcome.FAILED,
    TaskState.CANCELLED: CallOutcome.CANCELLED,
    TaskState.REJECTED: CallOutcome.REJECTED,
    TaskState.EXPIRED: CallOutcome.EXPIRED,
    TaskState.OUTCOME_UNKNOWN: CallOutcome.OUTCOME_UNKNOWN,
}
_BY_APPROVAL: Final = {
    State.DENIED: CallOutcome.REJECTED,
    State.INVALID: CallOutcome.REJECTED,
    State.EXPIRED: CallOutcome.EXPIRED,
    State.CANCELLED: CallOutcome.CANCELLED,
}
_ZEROS: Final = "0" * 32


class _ErrorData(msgspec.Struct):
    error_type: str = ""


class _Error(msgspec.Struct):
    code: int = 0
    data: _ErrorData | None = None


_read_error: Final = msgspec.json.Decoder(_Error).decode
_read_meta: Final = msgspec.json.Decoder(type=dict[str, Any]).decode


def outcome_of_task(task: Task) -> CallOutcome | None:
    """How a task ended; None while it is open. A result with `isError` is a tool error, whatever the generation calls it."""
    if task.outcome is not None and task.outcome.kind is OutcomeKind.RESULT and task.outcome.is_error:
        return CallOutcome.TOOL_ERROR
    return _BY_STATE.get(task.state)


def error_type_of(body: bytes | None) -> str:
    """The error type in a JSON-RPC error object of the gateway; `jsonrpc CODE` of one that a server sent."""
    try:
        error = _read_error(body or b"{}")
    except UNDECODABLE:
        return "unknown"
    if error.data is not None and error.data.error_type:
        return cleaned(error.data.error_type)
    return f"jsonrpc {error.code}"


def row_of_task(task: Task, ended_ms: int, *, approved_by: str = "", with_reason: bool) -> HistoryRow:
    """The row of a task that has ended. `with_reason`: the status message may be shown, because it is not encrypted at rest."""
    outcome, ended = outcome_of_task(task), task.outcome
    assert outcome is not None
    is_error = ended is not None and ended.kind is OutcomeKind.ERROR
    attempt = task.last_attempt
    reason = task.status_message or "" if with_reason and outcome is not CallOutcome.OK else ""
    return HistoryRow(
        kind=RowKind.TASK,
        outcome=outcome,
        task_id=task.id,
        caller=as_key(task.principal),
        scope=as_key(task.scope),
        server=cleaned(task.server),
        tool=cleaned(task.tool),
        client=cleaned(task.client),
        generation=task.generation.value,
        trace=trace_in(task.params_rest),
        accepted_ms=task.created_ms,
        sent_ms=attempt.sent_at_ms if attempt is not None and task.may_have_been_sent else 0,
        ended_ms=task.finished_ms if task.finished_ms is not None else ended_ms,
        error_type=error_type_of(ended.body) if is_error and ended is not None else "",
        reason=cleaned(reason, LONGEST_REASON),
        executed=str(task.executed) if task.executed is not None else "maybe" if task.may_have_been_sent else "no",
        attempts=task.attempts,
        approval_id=task.approval_id or "",
        approved_by=approved_by,
        asked=task.asked,
        size_in=len(task.arguments),
        size_out=0 if ended is None else ended.size or len(ended.body or b""),
        digest=task.digest,
        parent=task.rerun_of,
    )


def row_of_held(approval: Approval, at_ms: int) -> HistoryRow | None:
    """The row of a request that was held without becoming a task and will not run; None if it may still run or has run."""
    outcome = _BY_APPROVAL.get(approval.state)
    if outcome is None:
        return None
    bound = approval.binding
    return HistoryRow(
        kind=RowKind.CALL,
        outcome=outcome,
        caller=as_key(bound.principal),
        scope=as_key(bound.scope),
        server=cleaned(bound.server),
        tool=cleaned(bound.tool),
        accepted_ms=approval.asked_at_ms,
        ended_ms=at_ms,
        error_type=f"approval_{outcome.value}",
        rule=cleaned(approval.rule),
        reason=cleaned(approval.reason, LONGEST_REASON),
        executed="no",
        approval_id=approval.id,
        digest=bound.arguments_digest,
    )


def trace_in(params: bytes) -> str:
    """The trace id in the params of a call."""
    if b'"traceparent"' not in params:
        return ""
    try:
        return trace_of(_read_meta(params))
    except UNDECODABLE:
        return ""


def trace_of(params: Mapping[str, Any]) -> str:
    """The trace id of a W3C `traceparent` in `_meta`, or an empty string."""
    given = meta_of(params).get("traceparent")
    parts = given.split("-") if type(given) is str and len(given) < 100 else []
    trace = parts[1] if len(parts) >= 4 else ""
    return trace if len(trace) == 32 and set(trace) <= set("0123456789abcdef") and trace != _ZEROS else ""
