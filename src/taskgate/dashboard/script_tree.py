"""The calls of a script as rows: each with its tool, line, state and task, in the order in which they were made.

A script that resumes others (`resume_of`) is shown after them, as one history: each row names the script that made the call. One
page of calls is read by the primary key of their table. Calls of the gateway's own functions (`sleep`, `ask`) are listed while the
script waits for them; they are no tasks. Nor are calls that were refused, of which the first are kept in the script's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from taskgate.core.history.classify import outcome_of_task
from taskgate.core.history.row import CallOutcome
from taskgate.core.scripts.record import OpenCall, RefusedCall, ScriptRecord
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.dashboard.records import Records
from taskgate.gateway.scripts.call_outcomes import executed_value
from taskgate.gateway.scripts.script_chain import kept_scripts
from taskgate.gateway.scripts.script_result import REFUSED
from taskgate.replies.scripts import CallOfScript, CallTree
from taskgate.store.operations.scripts import ScriptCall

SHOWN: Final = 100
"""Calls on one page; the next page begins after the last of them."""
MAX_DIGITS: Final = 9


class Position(NamedTuple):
    """A call of a chain of scripts: a page begins after it. Without a script: of the script that is shown."""

    script: str
    number: int


async def script_tree(records: Records, script: Task | None, after: Position | None = None) -> CallTree | None:
    """A page of the calls of a script and of those that it resumes, or None if the task is no script."""
    if script is None or not script.script:
        return None
    record, rows, following = await records.script_record(script), list[CallOfScript](), None
    parts, number = await _parts_from(records, script, after)
    left = SHOWN
    for part in parts:
        found = await records.script_calls(part, number, left + 1)
        page, left = found[:left], left - len(found)
        if left < 0 or (left == 0 and part is not script):
            following = page[-1].number
        its_record = record if part is script else await records.script_record(part)
        rows += _rows(part, its_record, page, number, following)
        if following is not None:
            break
        number = -1
    return CallTree(
        steps=record.step,
        calls_made=record.calls,
        calls=rows,
        next=following if following is None or part is script else f"{part.id}:{following}",
    )


async def _parts_from(records: Records, script: Task, after: Position | None) -> tuple[Sequence[Task], int]:
    """The scripts of a page, the first one first, and the number of the call in it after which the page begins."""
    if after is None:
        return await _chain(records, script), -1
    if after.script in ("", script.id):
        return (script,), after.number
    chain = await _chain(records, script)
    for place, part in enumerate(chain):
        if part.id == after.script:
            return chain[place:], after.number
    return (script,), -1


async def _chain(records: Records, script: Task) -> tuple[Task, ...]:
    """A script that the person may see, after those that it resumes: they belong to the same caller."""
    return *await kept_scripts(records.store, script), script


def _rows(
    script: Task, record: ScriptRecord, page: Sequence[ScriptCall], after: int, following: int | None
) -> list[CallOfScript]:
    """The rows of one script on one page, in the order of their numbers."""
    waiting = [
        call for call in record.pending if not call.child and call.settled is None and not script.state.is_terminal
    ]
    without_task = [
        *(_refused_row(script.id, call) for call in record.refused),
        *(_waiting_row(script.id, call) for call in waiting),
    ]
    rows = [_call_row(script.id, call) for call in page] + [
        row for row in without_task if row.number > after and (following is None or row.number <= following)
    ]
    return sorted(rows, key=lambda row: row.number)


def calls_after(given: str | None) -> Position | None:
    """The call after which a page begins: `NUMBER`, or `TASK:NUMBER` for one of an earlier script. Raises ValueError."""
    if given is None:
        return None
    script, _, number = given.rpartition(":")
    if not (number.isascii() and number.isdigit()) or len(number) > MAX_DIGITS:
        raise ValueError("calls_after must be the number of a call, or TASK:NUMBER of one of an earlier script")
    return Position(script, int(number))


def _call_row(script: str, call: ScriptCall) -> CallOfScript:
    task, outcome = call.task, outcome_of_task(call.task)
    return CallOfScript(
        number=call.number,
        script=script,
        line=call.line,
        tool=task.wire_name,
        task_id=task.id,
        state="tool_error" if outcome is CallOutcome.TOOL_ERROR else task.state.value,
        executed=executed_value(task) if task.state.is_terminal else None,
        received=call.delivered_step is not None,
        message=task.status_message or "",
        created_at=iso(task.created_ms),
        finished_at=iso(task.finished_ms) if task.finished_ms is not None else None,
        waits_until=None,
    )


def _refused_row(script: str, call: RefusedCall) -> CallOfScript:
    return CallOfScript(
        number=call.number,
        script=script,
        line=call.line,
        tool=call.tool,
        task_id=None,
        state=REFUSED,
        executed="no",
        received=True,
        message=call.error_type,
        created_at=None,
        finished_at=None,
        waits_until=None,
    )


def _waiting_row(script: str, call: OpenCall) -> CallOfScript:
    return CallOfScript(
        number=call.number,
        script=script,
        line=call.line,
        tool=call.function,
        task_id=None,
        state="waiting",
        executed=None,
        received=False,
        message="",
        created_at=None,
        finished_at=None,
        waits_until=iso(call.due_ms) if call.due_ms is not None else None,
    )
