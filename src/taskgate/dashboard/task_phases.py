"""The phases of a task, for a timeline drawn to scale: what it waited for, and when its server worked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.governance.approval import State
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.dashboard.task_timeline import was_repeated
from taskgate.ports.store_answers import TaskQuestion


class PhaseKind(StrEnum):
    WAITING = "waiting"
    """For a person, for its caller, or in a queue."""
    WORKING = "working"
    """Sent to the server."""


_Mark = tuple[int, PhaseKind, str]
"""When a phase begins; it ends where the next one begins."""
_FOR_AN_ANSWER: Final = "waiting for an answer"


class Phase(msgspec.Struct, frozen=True):
    kind: PhaseKind
    label: str
    from_ms: int
    to_ms: int


def phases(
    task: Task, held: HeldCall | None, answered: Sequence[TaskQuestion], attempts: Sequence[Attempt], now_ms: int
) -> list[Phase]:
    """From acceptance to end, or until now, without gaps. Phases without a length are left out, and none begins before the
    one before it, also where a clock was set."""
    end = task.finished_ms if task.finished_ms is not None else now_ms
    marks = _before_the_run(task, held) + _run(task, held, answered, attempts, end)
    if task.state is TaskState.INPUT_REQUIRED:
        marks.append((task.updated_ms, PhaseKind.WAITING, _FOR_AN_ANSWER))
    found: list[Phase] = []
    for place, (start, kind, label) in enumerate(marks):
        begin = max(start, task.created_ms)
        until = marks[place + 1][0] if place + 1 < len(marks) else end
        if until > begin:
            found.append(Phase(kind, label, begin, until))
    return found


def _before_the_run(task: Task, held: HeldCall | None) -> list[_Mark]:
    marks: list[_Mark] = [(task.created_ms, PhaseKind.WAITING, "queued")]
    if held is not None:
        marks.append((held.approval.asked_at_ms, PhaseKind.WAITING, "waiting for approval"))
        decided = held.approval.decided_at_ms
        if decided is not None and held.approval.state is not State.OPEN:
            marks.append((decided, PhaseKind.WAITING, "approved, waiting for the caller"))
    return marks


def _run(
    task: Task, held: HeldCall | None, answered: Sequence[TaskQuestion], attempts: Sequence[Attempt], end_ms: int
) -> list[_Mark]:
    """The work: each attempt, interrupted by the times at which a question was open or the next attempt was waited for."""
    marks: list[_Mark] = []
    if task.script and task.state not in (TaskState.QUEUED, TaskState.AWAITING_APPROVAL, TaskState.APPROVED):
        begin = held.approval.decided_at_ms if held is not None else task.created_ms
        if begin is not None and (held is None or held.approval.state in (State.APPROVED, State.USED)):
            marks.append((begin, PhaseKind.WORKING, "running the script"))
    numbered = was_repeated(attempts)
    for attempt in attempts:
        number = f", attempt {attempt.number}" if numbered else ""
        marks.append((attempt.sent_at_ms, PhaseKind.WORKING, f"running on {attempt.upstream}{number}"))
        if attempt.ended_ms is not None and attempt.ended_ms < end_ms:
            marks.append((attempt.ended_ms, PhaseKind.WAITING, "waiting for the next attempt"))
    if not marks:
        return marks
    working = [mark for mark in marks if mark[1] is PhaseKind.WORKING]
    for begin, until in _waits(answered, task.created_ms, end_ms):
        # The attempt that continues after the answer, or was sent with it: a server of MCP 2026-07-28 gets the call again.
        _, kind, label = max((mark for mark in working if mark[0] <= until), default=working[0])
        marks = [mark for mark in marks if not begin <= mark[0] < until]
        marks += [(begin, PhaseKind.WAITING, _FOR_AN_ANSWER), (until, kind, label)]
    return sorted(marks, key=lambda mark: mark[0])


def _waits(answered: Sequence[TaskQuestion], begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """When at least one of these questions was open, between two times, in order."""
    found: list[tuple[int, int]] = []
    for begin, until in sorted((one.asked_ms, one.answered_ms) for one in answered if one.answered_ms is not None):
        begin, until = max(begin, begin_ms), min(until, end_ms)
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        elif begin < until:
            found.append((begin, until))
    return found
