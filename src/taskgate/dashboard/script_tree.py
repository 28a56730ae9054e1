"""The calls of a script as rows: each with its tool, line, state and task, in the order in which the script made them.

One page of calls is read by the primary key of their table. Calls of the gateway's own functions (`sleep`, `ask`) are listed while
the script waits for them; they are no tasks. Nor are calls that were refused, of which the first are kept in the script's record.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.history.classify import outcome_of_task
from taskgate.core.scripts.record import OpenCall, RefusedCall
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.dashboard.records import Records
from taskgate.gateway.scripts.call_outcomes import executed_value
from taskgate.gateway.scripts.script_result import REFUSED
from taskgate.ports.script_store import ScriptCall

SHOWN: Final = 100
"""Calls on one page; the next page begins after the last of them."""
MAX_DIGITS: Final = 9


async def script_tree(records: Records, script: Task | None, after: int = -1) -> dict[str, Any] | None:
    """A page of the calls of a script, or None if the task is no script."""
    if script is None or not script.script:
        return None
    record, found = await records.script_calls(script, after, SHOWN + 1)
    page = found[:SHOWN]
    following = page[-1].number if len(found) > SHOWN else None
    waiting = [
        call for call in record.pending if not call.child and call.settled is None and not script.state.is_terminal
    ]
    rows = [_call_row(call) for call in page] + [
        row
        for row in (*map(_refused_row, record.refused), *map(_waiting_row, waiting))
        if row["number"] > after and (following is None or row["number"] <= following)
    ]
    return {
        "steps": record.step,
        "calls_made": record.calls,
        "calls": sorted(rows, key=lambda row: row["number"]),
        "next": following,
    }


def calls_after(given: str | None) -> int:
    """The number of the call after which a page begins. Raises ValueError."""
    if given is None:
        return -1
    if not (given.isascii() and given.isdigit()) or len(given) > MAX_DIGITS:
        raise ValueError("calls_after must be the number of a call")
    return int(given)


def _call_row(call: ScriptCall) -> dict[str, Any]:
    task, outcome = call.task, outcome_of_task(call.task)
    return {
        "number": call.number,
        "line": call.line,
        "tool": task.wire_name,
        "task_id": task.id,
        "state": "tool_error" if outcome is not None and outcome.value == "tool_error" else task.state.value,
        "executed": executed_value(task) if task.state.is_terminal else None,
        "received": call.delivered_step is not None,
        "message": task.status_message or "",
        "created_at": iso(task.created_ms),
        "finished_at": iso(task.finished_ms) if task.finished_ms is not None else None,
        "waits_until": None,
    }


def _refused_row(call: RefusedCall) -> dict[str, Any]:
    row = _row_without_task(call.number, call.line, call.tool, REFUSED)
    return {**row, "executed": "no", "received": True, "message": call.error_type}


def _waiting_row(call: OpenCall) -> dict[str, Any]:
    row = _row_without_task(call.number, call.line, call.function, "waiting")
    return {**row, "waits_until": iso(call.due_ms) if call.due_ms is not None else None}


def _row_without_task(number: int, line: int, tool: str, state: str) -> dict[str, Any]:
    return {
        "number": number,
        "line": line,
        "tool": tool,
        "task_id": None,
        "state": state,
        "executed": None,
        "received": False,
        "message": "",
        "created_at": None,
        "finished_at": None,
        "waits_until": None,
    }
