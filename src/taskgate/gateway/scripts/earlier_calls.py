"""The calls of an earlier script, whose results a corrected script receives instead of repeating them (`resume_of`).

A call matches if tool and arguments are equal. Each is used once, the oldest first, also after calls that differ. Neither a call
whose outcome is unknown nor one whose result has expired is sent again: the first raises in the script if it may run only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from taskgate.core.errors import CallerError, Executed
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.gateway.scripts.call_outcomes import outcome_of
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.script_interpreter import CallOutcome, Raised

_Key = tuple[str, str, str]


class EarlierCalls:
    def __init__(self, records: TaskRecords, calls: Collection[Task], used: Collection[str]) -> None:
        """`calls`: in the order in which the earlier script made them. `used`: those whose results were handed over before."""
        self._records = records
        self._left: dict[_Key, deque[Task]] = {}
        for task in calls:
            if task.id not in used and task.state.is_terminal and _counts(task):
                self._left.setdefault(_key(task), deque()).append(task)

    async def outcome(self, draft: Task) -> tuple[Task, CallOutcome] | None:
        """The task and outcome of the oldest equal call that was not used yet; None if the call must be made."""
        waiting = self._left.get(_key(draft))
        if not waiting:
            return None
        task = waiting.popleft()
        body = await self._records.result_bytes(task)
        if task.outcome is not None and body is None:
            text = f"{task.wire_name} was executed by the earlier script, but its result is no longer kept. It was not sent again."
            return task, Raised("result_expired", text, "yes")
        return task, outcome_of(task, body)


def _counts(task: Task) -> bool:
    """Whether the call has a result or may have had an effect. Calls that were not executed are made again, and so are calls with
    an unknown outcome that may be repeated.
    """
    if task.outcome is not None and task.outcome.kind is OutcomeKind.RESULT:
        return True
    return task.executed is Executed.YES or (task.executed is Executed.MAYBE and not task.tool_class.may_repeat)


def _key(task: Task) -> _Key:
    return task.server, task.tool, task.digest


async def earlier_calls(
    records: TaskRecords, script: Task, resume_of: str | None, used: Collection[str]
) -> EarlierCalls:
    """The calls of the script that `resume_of` names. Raises CallerError unless it belongs to the same caller and scope."""
    if resume_of is None:
        return EarlierCalls(records, (), ())
    before = await records.store.get(resume_of)
    same = before is not None and before.script and (before.principal, before.scope) == (script.principal, script.scope)
    if before is None or not same:
        raise CallerError("unknown_task", "There is no such script to resume, or it is no longer kept.")
    if not before.state.is_terminal:
        raise CallerError("script_open", "The script to resume has not ended. Wait for it, or cancel it.")
    calls: list[Task] = []
    after = -1
    while found := await records.store.script_calls(resume_of, after):
        calls += [call.task for call in found]
        after = found[-1].number
    return EarlierCalls(records, calls, used)
