"""The calls of earlier scripts, whose results a corrected script receives instead of repeating them (`resume_of`).

They are those of the resumed script and of all that it has resumed itself (`script_chain.py`). A call matches if tool and
arguments are equal. Each is used once, the oldest first, also after calls that differ. Neither a call
whose outcome is unknown nor one whose result has expired is sent again: the first raises in the script if it may run only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from taskgate.core.errors import CallerError, Executed
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.gateway.scripts.call_outcomes import outcome_of
from taskgate.gateway.scripts.cancel_call import cancel_call
from taskgate.gateway.scripts.script_chain import ChainPart, calls_of, earlier_scripts
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.gateway.scripts.script_result import resume_data
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.script_interpreter import CallOutcome, Raised
from taskgate.ports.store import Store
from taskgate.store.operations.scripts import JoinChain

_Key = tuple[str, str, str]


class EarlierCalls:
    def __init__(self, records: TaskRecords, chain: Collection[ChainPart], used: Collection[str]) -> None:
        """`chain`: the earlier scripts, the first one first. `used`: the calls whose results were handed over before."""
        self.chain = tuple(chain)
        self._records = records
        self._left: dict[_Key, deque[Task]] = {}
        for part in self.chain:
            for call in part.calls:
                task = call.task
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
            text = f"{task.wire_name} was executed by an earlier script, but its result is no longer kept. It was not sent again."
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


async def earlier_calls(parts: ScriptParts, script: Task, used: Collection[str]) -> EarlierCalls:
    """The calls of the scripts that this one resumes. Raises CallerError if one of these is not known or has not ended, or if
    another script has resumed them.
    """
    records = parts.tasks.records
    chain = []
    scripts = await earlier_scripts(records.store, script)
    await _follow_newest(records.store, script, scripts)
    for earlier in scripts:
        calls = await calls_of(records.store, earlier.id)
        left_open = [call.task.id for call in calls if not call.task.state.is_terminal]
        if left_open:
            # Their script was cancelled a moment ago, or a crash came before they were. No script waits for them.
            for task_id in left_open:
                await cancel_call(parts, task_id, "its script has ended")
            calls = await calls_of(records.store, earlier.id)
        chain.append(ChainPart(earlier.id, calls))
    return EarlierCalls(records, chain, used)


async def _follow_newest(store: Store, script: Task, earlier: Sequence[Task]) -> None:
    """Refuse a second correction of a script: it does not know which calls the first one made, and would repeat them. The store
    decides which of two that begin at the same time is the first.
    """
    if not earlier:
        return
    newest = await store.do(JoinChain(script.id, [one.id for one in earlier]))
    if newest is None:
        raise CallerError("unknown_task", "The first of the scripts to resume is no longer kept.")
    if newest != script.id:
        text = (
            f"{newest} has already resumed the script, and calls that it made could be repeated. Nothing was executed. Read the "
            f'result of {newest}; if it is not what you need, call run_script with resume_of="{newest}".'
        )
        raise CallerError("script_resumed", text, data={"resume_with": resume_data(newest)["resume_with"]})
