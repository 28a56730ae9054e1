"""The calls of a script as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.cli import printing

if TYPE_CHECKING:
    from taskgate.replies.scripts import CallOfScript, CallTree


def call_lines(tree: CallTree, task_id: str | None) -> list[str]:
    """One line for each call: the line in the source, the tool, the state, and the task."""
    rows = [_cells(call, task_id) for call in tree.calls]
    if not rows:
        return ["  no tool calls"]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), *row[3:]]).rstrip()
        for row in rows
    ]
    if tree.next is not None:
        lines.append(f"  more: taskgate tasks show {task_id} --calls-after {tree.next}")
    return lines


def _cells(call: CallOfScript, task_id: str | None) -> tuple[str, str, str, str, str]:
    until = f" until {printing.local_time(call.waits_until)}" if call.waits_until else ""
    earlier = f"called by {call.script}" if call.script not in ("", task_id) else ""
    return f"line {call.line}", printing.one_line(call.tool), call.state + until, call.task_id or "", earlier
