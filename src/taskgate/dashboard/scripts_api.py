"""Running scripts as JSON: list those of all callers, and stop those of a principal, of a scope, or all."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.errors import CallerError, Executed
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.tasks.state import OPEN
from taskgate.core.tasks.task import Task
from taskgate.dashboard.ports import Tasks
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.rows import operator_task
from taskgate.dashboard.web import Answer, RequestProblem, json_answer, problem
from taskgate.gateway.scripts.call_outcomes import executed_value
from taskgate.ports.store_answers import TaskFilter
from taskgate.replies.fields import extended
from taskgate.replies.tasks import Scripts, StoppedScript, StoppedScripts
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.scripts import CallsOfScript

_PAGE: Final = 200
_TOGETHER: Final = 50
"""Scripts that are stopped at the same time."""
_NAMED_TOOLS: Final = 20
"""Tools that the row of the audit log names."""
_WHICH: Final = closed_object(principal=TEXT, scope=TEXT, all={"type": "boolean"}, reason=TEXT)


class ScriptsApi:
    def __init__(self, tasks: Tasks, records: Records) -> None:
        self._tasks = tasks
        self._records = records

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/scripts",
                Access.SEE,
                self._list,
                "Scripts that have not ended, of all callers, newest first.",
                command="taskgate scripts list",
                query={"principal": "only those of this principal", "scope": "only those in this scope"},
                answer=Scripts,
            ),
            post(
                "/scripts/stop",
                Access.ACT,
                self._stop,
                "Stop scripts of a principal, of a scope, of both together, or all, at every gateway on the store. Calls that were "
                "sent end as when a task is cancelled.",
                _WHICH,
                command="taskgate scripts stop",
                answer=StoppedScripts,
            ),
        )

    async def _list(self, visit: Visit) -> Answer:
        found = await self._open(visit.user, visit.parameter("principal"), visit.parameter("scope"))
        return json_answer(Scripts(scripts=[operator_task(task) for task in found]))

    async def _stop(self, visit: Visit) -> Answer:
        body = visit.request.json()
        principal, scope, reason = body.get("principal"), body.get("scope"), body.get("reason")
        texts_only = all(given is None or type(given) is str for given in (principal, scope, reason))
        if set(body) - {"principal", "scope", "all", "reason"} or not texts_only:
            return problem(400, "The body may contain only principal, scope, all and reason.")
        rows = await self.stop(visit, principal, scope, reason, everything=body.get("all") is True)
        return json_answer(StoppedScripts(stopped=rows))

    async def stop(
        self, visit: Visit, principal: str | None, scope: str | None, reason: str | None, *, everything: bool
    ) -> list[StoppedScript]:
        """Stop the scripts of a principal, of a scope, of both together, or all; a row for each. Raises RequestProblem if
        none of them is given.
        """
        if everything is (principal is not None or scope is not None):
            raise RequestProblem(400, 'Give a principal, a scope or both, or "all": true.')
        found = await self._open(visit.user, principal, scope)
        rows: list[StoppedScript] = []
        for first in range(0, len(found), _TOGETHER):
            some = found[first : first + _TOGETHER]
            rows += [
                row for row in await asyncio.gather(*(self._stop_one(visit, task, reason) for task in some)) if row
            ]
        return rows

    async def any_runs(self, user: Approver, principal: str | None, scope: str | None) -> bool:
        """Whether a script that this person may see has not ended."""
        page = await self._records.tasks(user, _running(principal, scope), only=None, limit=_PAGE)
        return any(task.script for task in page.tasks)

    async def _stop_one(self, visit: Visit, script: Task, reason: str | None) -> StoppedScript | None:
        """None if the script has ended meanwhile."""
        by = f"by {visit.user.id}: {reason}" if reason else f"by {visit.user.id}"
        try:
            stopped = await self._tasks.methods.cancel_task(script, by)
        except CallerError:
            return None
        executed, ran = await self._what_ran(script)
        entry = AuditEntry(
            0,
            "script_stopped",
            script.principal,
            scope=script.scope,
            kind="script",
            decision="cancelled",
            task_id=script.id,
            executed=executed.value,
            reason=f"{by}; {ran}",
        )
        await self._records.store.do(RecordAudit(entry))
        return extended(StoppedScript, operator_task(stopped), ran=ran)

    async def _what_ran(self, script: Task) -> tuple[Executed, str]:
        """Whether calls of the script were executed, and which were or may have been, as text."""
        tools: Counter[str] = Counter()
        words: set[str] = set()
        after = -1
        while calls := await self._records.store.ask(CallsOfScript(script.id, after)):
            words |= {executed_value(call.task) for call in calls}
            tools.update(call.task.wire_name for call in calls if executed_value(call.task) != "no")
            after = calls[-1].number
        executed = Executed.MAYBE if "unknown" in words else Executed.YES if "yes" in words else Executed.NO
        named = [f"{tool} ({count})" for tool, count in list(tools.items())[:_NAMED_TOOLS]]
        more = f" and {len(tools) - _NAMED_TOOLS} more tools" if len(tools) > _NAMED_TOOLS else ""
        return executed, f"executed, or sent: {', '.join(named)}{more}" if named else "no call was executed"

    async def _open(self, user: Approver, principal: str | None, scope: str | None) -> list[Task]:
        """The scripts that have not ended, of those that this person may see."""
        wanted = _running(principal, scope)
        found: list[Task] = []
        after: str | None = None
        while True:
            page = await self._records.tasks(user, wanted, only=None, after=after, limit=_PAGE)
            found += [task for task in page.tasks if task.script]
            after = page.after
            if after is None:
                return found


def _running(principal: str | None, scope: str | None) -> TaskFilter:
    name = OwnToolName.RUN_SCRIPT.value
    return TaskFilter(principal=principal, scope=scope, server=OWN_SERVER, tool=name, states=OPEN)
