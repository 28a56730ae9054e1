"""The report of a script that failed, as lines of text: what was executed, what was not, and what is unknown."""

from __future__ import annotations

from typing import Any, Final

LISTED: Final = 50
"""Calls of each group that are listed."""
_GROUPS: Final = {
    "executed": "Executed",
    "not_executed": "Not executed",
    "unknown": "Outcome unknown (find out at the server before you repeat them)",
}


def report_lines(structured: Any) -> list[str]:
    """Return the report in the structured content of a result; nothing for the result of anything else."""
    found = structured if isinstance(structured, dict) else {}
    error, calls = found.get("error"), found.get("calls")
    if not isinstance(error, dict) or not isinstance(calls, dict) or set(_GROUPS) - set(calls):
        return []
    lines = []
    for name, label in _GROUPS.items():
        group = [call for call in calls[name] if isinstance(call, dict)] if isinstance(calls[name], list) else []
        lines.append(f"{label}: {len(group) or 'none'}")
        lines += [_line(call) for call in group[:LISTED]]
        if len(group) > LISTED:
            lines.append(f"  and {len(group) - LISTED} more")
    return lines


def _line(call: dict[str, Any]) -> str:
    """A refused call has the type of its error instead of a task."""
    why = call.get("task_id") or call.get("error_type") or ""
    earlier = f"called by {call['script']}" if call.get("script") else ""
    return f"  line {call.get('line')}  {call.get('tool')}  {call.get('state', '')}  {why}  {earlier}".rstrip()
