"""The calls of a script as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.cli import printing


def call_lines(tree: Mapping[str, Any], task_id: str | None) -> list[str]:
    """One line for each call: the line in the source, the tool, the state, and the task."""
    rows = [_cells(call, task_id) for call in tree["calls"]]
    if not rows:
        return ["  no tool calls"]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), *row[3:]]).rstrip()
        for row in rows
    ]
    if tree["next"] is not None:
        lines.append(f"  more: taskgate tasks show {task_id} --calls-after {tree['next']}")
    return lines


def _cells(call: Mapping[str, Any], task_id: str | None) -> tuple[str, str, str, str, str]:
    until = f" until {printing.local_time(call['waits_until'])}" if call["waits_until"] else ""
    state, maker = call["state"] + until, call.get("script", task_id)
    earlier = f"called by {maker}" if maker != task_id else ""
    return f"line {call['line']}", printing.one_line(call["tool"]), state, call["task_id"] or "", earlier
