"""Scripts for templates: the code, the plan, the calls, and the report of a script that failed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from taskgate.core import wire
from taskgate.core.governance.script_changes import LineKind
from taskgate.core.governance.script_plan import Meets, PlannedScript, lines_text, meets_word, plan_notes
from taskgate.dashboard import units
from taskgate.dashboard.text_filters import clear, shown_name
from taskgate.replies.approvals import ApprovalDetail
from taskgate.replies.differences import ValueChange
from taskgate.replies.scripts import CallOfScript, CallTree, PlanOfScript, ScriptDifference, ScriptLine

LISTED: Final = 50
"""Calls of each group in the report; the list of calls shows all of them."""
_STATES: Final = {
    Meets.FORWARD: "approved",
    Meets.APPROVAL: "awaiting_approval",
    Meets.POLICY: "open",
    Meets.DENIED: "denied",
}
"""The colours of what a call would meet."""
_CODE: Final = "code"
_SIGNS: Final = {LineKind.SAME: " ", LineKind.REMOVED: "-", LineKind.ADDED: "+"}
_GROUPS: Final = {
    "executed": "Executed",
    "not_executed": "Not executed",
    "unknown": "Outcome unknown",
}


def shown_plan(plan: PlanOfScript | None) -> dict[str, Any] | None:
    """The plan of a script, with words for people."""
    if plan is None:
        return None
    notes = plan_notes(
        PlannedScript(
            unknown_lines=tuple(plan.unknown_tools_on_lines),
            computed_lines=tuple(plan.computed_names_on_lines),
            question_lines=tuple(plan.questions_on_lines),
        )
    )
    tools = [
        {
            "tool": shown_name(tool.tool),
            "word": meets_word(tool.meets),
            "state": _STATES[tool.meets],
            "lines": lines_text(tool.lines),
        }
        for tool in plan.tools
    ]
    return {"tools": tools, "notes": notes, "left_out": plan.tools_left_out}


def shown_changes(row: ApprovalDetail) -> list[ValueChange]:
    """The changed arguments of an approval, without the code of a script: its lines are compared on their own."""
    found = row.changes.list if row.changes is not None else []
    compared = row.script_changes is not None and row.script_changes.compared
    return [change for change in found if not (compared and change.path == _CODE)]


class LineBlocks(NamedTuple):
    """The changed lines of a script: each with its sign, in blocks that are next to each other."""

    blocks: list[list[tuple[str, ScriptLine]]]
    left_out: int


def shown_script_changes(found: ScriptDifference | None) -> LineBlocks | None:
    """None if no line has changed."""
    if found is None or not found.lines:
        return None
    blocks: list[list[tuple[str, ScriptLine]]] = []
    last: tuple[int, int] = (-1, -1)
    for line in found.lines:
        follows = line.before in (None, last[0] + 1) and line.after in (None, last[1] + 1)
        if not blocks or not follows:
            blocks.append([])
        blocks[-1].append((_SIGNS[line.kind], line))
        last = (line.before or last[0], line.after or last[1])
    return LineBlocks(blocks, found.left_out)


class CallsWithTimes(NamedTuple):
    """The calls of a script, each with the time since the script began, and how long it took; empty where unknown."""

    tree: CallTree
    calls: list[tuple[CallOfScript, str, str]]


def shown_calls(tree: CallTree | None, began_at: str) -> CallsWithTimes | None:
    if tree is None:
        return None
    return CallsWithTimes(tree, [(call, *_times(call, began_at)) for call in tree.calls])


def _times(call: CallOfScript, began_at: str) -> tuple[str, str]:
    begin, end = call.created_at, call.finished_at
    offset = units.duration(max(0, _ms(begin) - _ms(began_at))) if begin else ""
    return offset, units.duration(max(0, _ms(end) - _ms(begin))) if begin and end else ""


def shown_report(result: bytes | None) -> dict[str, Any] | None:
    """What a failed script executed, what it did not, and what is unknown; None if the result is no such report."""
    try:
        value: Any = wire.parse_strictly(result) if result is not None else None
    except ValueError:
        return None
    found = value.get("structuredContent") if type(value) is dict else None
    error, calls = (found.get("error"), found.get("calls")) if type(found) is dict else (None, None)
    if type(error) is not dict or type(calls) is not dict:
        return None
    line = error.get("line")
    return {
        "type": clear(str(error.get("error_type", ""))),
        "exception": clear(str(error.get("exception", "")))[:200],
        "message": clear(str(error.get("message", "")))[:2_000],
        "line": line if type(line) is int and line > 0 else None,
        "groups": [_group(name, label, calls.get(name)) for name, label in _GROUPS.items()],
    }


def _group(name: str, label: str, calls: Any) -> dict[str, Any]:
    listed = [call for call in calls if type(call) is dict] if type(calls) is list else []
    rows = [
        {
            "tool": clear(str(call.get("tool", ""))),
            "line": call.get("line"),
            "task_id": call.get("task_id"),
            "script": call.get("script"),
        }
        for call in listed[:LISTED]
    ]
    return {"name": name, "label": label, "count": len(listed), "calls": rows, "more": max(0, len(listed) - LISTED)}


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
