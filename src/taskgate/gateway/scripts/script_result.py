"""The result of a script: its value, what it printed, and which of its calls were executed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.errors import Executed
from taskgate.core.scripts.record import ScriptRecord
from taskgate.core.tasks.transition import ResultReceived
from taskgate.core.wire import Raw
from taskgate.gateway.scripts.call_outcomes import executed_value
from taskgate.gateway.scripts.script_chain import ChainPart
from taskgate.ports.script_interpreter import Failed, FailureReason
from taskgate.store.operations.scripts import ScriptCall

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
    chain: Sequence[ChainPart], record: ScriptRecord, received: Collection[int] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Every tool call of a script, by whether it was executed, and what earlier scripts of its chain have executed.

    The last part of the chain is the script itself. Refused calls have no task. `received` are calls whose outcomes the script has
    received, and that are not yet marked in the store.
    """
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in _GROUPS.values()}
    *earlier, own = chain
    for part in earlier:
        for call in part.calls:
            executed = executed_value(call.task)
            # What an earlier script did not execute was made again, or is no longer part of the corrected one.
            if executed != "no":
                origin = {"script": part.script, "reused": call.task.id in record.reused}
                groups[_GROUPS[executed]].append({**_shown(call, delivered=call.delivered_step is not None), **origin})
    for call in own.calls:
        # Whether the script received the outcome before it ended.
        delivered = call.delivered_step is not None or call.number in received
        groups[_GROUPS[executed_value(call.task)]].append(_shown(call, delivered=delivered))
    for refused in record.refused:
        shown = {"tool": refused.tool, "line": refused.line, "task_id": None, "state": REFUSED}
        groups["not_executed"].append({**shown, "delivered": True, "error_type": refused.error_type})
    return groups


def _shown(call: ScriptCall, *, delivered: bool) -> dict[str, Any]:
    task = call.task
    return {
        "tool": task.wire_name,
        "line": call.line,
        "task_id": task.id,
        "state": task.state.value,
        "delivered": delivered,
    }


def executed_by(chain: Sequence[ChainPart]) -> Executed:
    """Whether a script had effects, from the records of its calls and of those of the scripts that it resumes."""
    words = {executed_value(call.task) for part in chain for call in part.calls}
    return Executed.MAYBE if "unknown" in words else Executed.YES if "yes" in words else Executed.NO


def finished(value: bytes, record: ScriptRecord, chain: Sequence[ChainPart]) -> ResultReceived:
    """The end of a script that returned a value."""
    counts = {name: len(found) for name, found in calls_by_execution(chain, record).items()}
    counts["not_executed"] += record.more_refused
    if len(chain) > 1:
        counts["reused"] = len(record.reused)
    structured: dict[str, Any] = {"result": Raw(value), "calls": counts}
    decoded = wire.parse_strictly(value)
    text = decoded if type(decoded) is str else value.decode("utf-8")
    return ResultReceived(_result(text, record, structured, is_error=False))


def failed(
    problem: Failed, record: ScriptRecord, chain: Sequence[ChainPart], received: Collection[int] = ()
) -> ResultReceived:
    """The end of a script that raised or exceeded a limit, with every call of its chain."""
    where = f" (line {problem.line})" if problem.line else ""
    error_type = _ERROR_TYPES[problem.reason]
    groups, executed = calls_by_execution(chain, record, received), executed_by(chain)
    script = chain[-1].script
    text = f"The script failed{where}: {problem.error_type}: {problem.message}\n{_summary(groups)}\n{how_to_resume(script)}"
    error = {
        "error_type": error_type,
        "exception": problem.error_type,
        "message": problem.message,
        "line": problem.line,
        "executed": executed.value,
        **resume_data(script),
    }
    structured: dict[str, Any] = {"error": error, "calls": groups}
    if record.more_refused:
        structured["refused_not_listed"] = record.more_refused
    body = _result(text, record, structured, is_error=True, error=error)
    return ResultReceived(body, is_error=True, message=text[:500])


def how_to_resume(script: str) -> str:
    """What to do about a script that failed, as text."""
    return (
        f'To continue, correct the script and call {OwnToolName.RUN_SCRIPT.value} with resume_of="{script}": calls that it made '
        "with the same arguments are then not made again."
    )


def resume_data(script: str) -> dict[str, Any]:
    """The task of a script that failed, and the call that resumes it, to which the corrected `code` is added."""
    call = {"tool": OwnToolName.RUN_SCRIPT.value, "arguments": {"resume_of": script}}
    return {"task_id": script, "resume_with": call}


def _summary(groups: dict[str, list[dict[str, Any]]]) -> str:
    lines = []
    for name, found in groups.items():
        named = ", ".join(map(_named, found[:20]))
        more = f" and {len(found) - 20} more" if len(found) > 20 else ""
        lines.append(f"{name.replace('_', ' ')}: {named + more if found else 'none'}")
    return "Calls " + "; ".join(lines) + "."


def _named(call: dict[str, Any]) -> str:
    """A line number counts in the source of the script that made the call."""
    source = f" of {call['script']}" if "script" in call else ""
    return f"{call['tool']} (line {call['line']}{source})"


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
