"""The result of a script: its value, what it printed, and which of its calls were executed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import Executed
from taskgate.core.scripts.record import RefusedCall, ScriptRecord
from taskgate.core.tasks.transition import ResultReceived
from taskgate.core.wire import Raw
from taskgate.gateway.scripts.call_outcomes import executed_value
from taskgate.ports.script_interpreter import Failed, FailureReason
from taskgate.ports.script_store import ScriptCall

REFUSED: Final = "refused"
"""The state of a call that was refused before it became a task."""
_GROUPS: Final = {"yes": "executed", "no": "not_executed", "unknown": "unknown"}
_ERROR_TYPES: Final = {
    FailureReason.SCRIPT: "script_failed",
    FailureReason.LIMIT: "script_limit",
    FailureReason.WORKER: "script_interrupted",
    FailureReason.INTERPRETER: "script_not_resumable",
}


def calls_by_execution(
    calls: Sequence[ScriptCall], refused: Sequence[RefusedCall] = (), received: Collection[int] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Every tool call of a script, by whether it was executed. Refused calls have no task.

    `received` are calls whose outcomes the script has received, and that are not yet marked in the store.
    """
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in _GROUPS.values()}
    for call in calls:
        shown: dict[str, Any] = {"tool": call.task.wire_name, "line": call.line, "task_id": call.task.id}
        # Whether the script received the outcome before it ended.
        delivered = call.delivered_step is not None or call.number in received
        shown |= {"state": call.task.state.value, "delivered": delivered}
        groups[_GROUPS[executed_value(call.task)]].append(shown)
    for call_refused in refused:
        shown = {"tool": call_refused.tool, "line": call_refused.line, "task_id": None, "state": REFUSED}
        groups["not_executed"].append({**shown, "delivered": True, "error_type": call_refused.error_type})
    return groups


def executed_by(calls: Sequence[ScriptCall]) -> Executed:
    """Whether a script had effects, from the records of its calls."""
    words = {executed_value(call.task) for call in calls}
    return Executed.MAYBE if "unknown" in words else Executed.YES if "yes" in words else Executed.NO


def finished(value: bytes, record: ScriptRecord, calls: Sequence[ScriptCall]) -> ResultReceived:
    """The end of a script that returned a value."""
    counts = {name: len(found) for name, found in calls_by_execution(calls, record.refused).items()}
    counts["not_executed"] += record.more_refused
    structured: dict[str, Any] = {"result": Raw(value), "calls": counts}
    decoded = wire.parse_strictly(value)
    text = decoded if type(decoded) is str else value.decode("utf-8")
    return ResultReceived(_result(text, record, structured, is_error=False))


def failed(
    problem: Failed, record: ScriptRecord, calls: Sequence[ScriptCall], received: Collection[int] = ()
) -> ResultReceived:
    """The end of a script that raised or exceeded a limit, with every call that it made."""
    where = f" (line {problem.line})" if problem.line else ""
    error_type = _ERROR_TYPES[problem.reason]
    groups, executed = calls_by_execution(calls, record.refused, received), executed_by(calls)
    text = f"The script failed{where}: {problem.error_type}: {problem.message}\n{_summary(groups)}"
    error = {
        "error_type": error_type,
        "exception": problem.error_type,
        "message": problem.message,
        "line": problem.line,
        "executed": executed.value,
    }
    structured: dict[str, Any] = {"error": error, "calls": groups}
    if record.more_refused:
        structured["refused_not_listed"] = record.more_refused
    body = _result(text, record, structured, is_error=True, error=error)
    return ResultReceived(body, is_error=True, message=text[:500])


def _summary(groups: dict[str, list[dict[str, Any]]]) -> str:
    lines = []
    for name, found in groups.items():
        named = ", ".join(f"{call['tool']} (line {call['line']})" for call in found[:20])
        more = f" and {len(found) - 20} more" if len(found) > 20 else ""
        lines.append(f"{name.replace('_', ' ')}: {named + more if found else 'none'}")
    return "Calls " + "; ".join(lines) + "."


def _result(
    text: str,
    record: ScriptRecord,
    structured: dict[str, Any],
    *,
    is_error: bool,
    error: dict[str, Any] | None = None,
) -> bytes:
    content = [{"type": "text", "text": text}]
    if record.printed:
        cut = f"\n({record.dropped} more characters were printed and not kept)" if record.dropped else ""
        content.append({"type": "text", "text": f"Printed:\n{record.printed}{cut}"})
    structured = {**structured, "printed": record.printed}
    result: dict[str, Any] = {"content": content, "structuredContent": structured, "isError": is_error}
    if error is not None:
        result["_meta"] = {"taskgate/error": error}
    return wire.encode(result)
