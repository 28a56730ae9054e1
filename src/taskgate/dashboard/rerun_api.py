"""Run a finished task again: a new task of the person who requests it, linked to the first one.

The call runs with the credential of that person, in a scope that it opens, and through the same rules as any other call. The
arguments must still be stored, and none of them may be redacted: a person must not run what they may not read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.history.row import is_row_id
from taskgate.core.identity.access import Access
from taskgate.core.tasks.task import Task
from taskgate.dashboard.console_calls import ConsoleCalls
from taskgate.dashboard.history_api import reach_of
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, post
from taskgate.dashboard.web import Answer, RequestProblem, WebRequest, json_answer
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.history_reader import HistoryReader
from taskgate.replies.calls import CallResult

_BODY: Final = closed_object(scope=TEXT)


class RerunApi(msgspec.Struct, eq=False):
    _records: Records
    _history: HistoryReader
    _calls: ConsoleCalls
    _plan: Live[Plan]

    def routes(self) -> tuple[Route, ...]:
        return (
            post(
                "/tasks/{id}/rerun",
                Access.CALL,
                self._rerun,
                "Call the tool of a finished task again with the same arguments, as yourself. The new task is linked to it.",
                _BODY,
                command="taskgate tasks rerun {id}",
                scope=_named_scope,
                answer=CallResult,
            ),
        )

    async def rerun(self, visit: Visit) -> CallResult:
        """Raises RequestProblem if the task cannot be run again by this person."""
        task = await self._found(visit)
        arguments = self.runnable(task)
        return await self._calls.call(visit.authorized, task.wire_name, arguments, rerun_of=task.id)

    def runnable(self, task: Task) -> dict[str, Any]:
        """The arguments of a task that may be run again. Raises RequestProblem."""
        if not task.state.is_terminal:
            raise RequestProblem(409, "This task has not ended. Wait for its end, or cancel it.")
        arguments: Any = wire.parse_strictly(task.arguments or b"{}")
        for redaction in self._plan.value.governing.redactions.values():
            if redaction.redact(arguments).hidden:
                raise RequestProblem(409, "Arguments of this task are redacted, so it cannot be run again from here.")
        if type(arguments) is not dict:
            raise RequestProblem(409, "The arguments of this task are not an object.")
        return arguments

    async def _found(self, visit: Visit) -> Task:
        """The task that the path names, as far as this person may see it."""
        task_id = visit.values["id"]
        task = await self._records.task(visit.user, task_id)
        if task is not None:
            return task
        row = await self._history.row(reach_of(visit), task_id) if is_row_id(task_id) else None
        if row is not None:
            raise RequestProblem(410, "The arguments of this call are no longer stored, so it cannot be run again.")
        raise RequestProblem(404, "Task not found.")

    async def _rerun(self, visit: Visit) -> Answer:
        body = visit.request.json()
        if set(body) - {"scope"} or type(body.get("scope", "")) is not str:
            raise ValueError('send at most "scope", a string')
        return json_answer(await self.rerun(visit))


def _named_scope(request: WebRequest) -> str | None:
    scope = request.json().get("scope")
    return scope if type(scope) is str else None
