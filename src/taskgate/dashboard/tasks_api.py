"""Tasks as JSON: list, show, result, events, cancel. The paths are in docs/http-api.md.

The permission `see` shows tasks of all callers, `act` cancels them. A caller sees, follows and cancels its own tasks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from taskgate import clock
from taskgate.access.routes import RouteKind
from taskgate.core import wire
from taskgate.core.governance.approver import Approver
from taskgate.core.history.classify import trace_in
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.roles import Permission
from taskgate.core.ids import is_task_id
from taskgate.core.raw_json import Raw
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.core.timestamps import iso
from taskgate.dashboard.ports import Tasks
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post, refusal
from taskgate.dashboard.rows import operator_task, task_row, task_status
from taskgate.dashboard.script_tree import calls_after, script_tree
from taskgate.dashboard.task_filters import FILTERS, point_in_time, task_states
from taskgate.dashboard.task_phases import phases
from taskgate.dashboard.task_timeline import MAX_ATTEMPTS, attempts_of, timeline
from taskgate.dashboard.web import Answer, EventAnswer, RequestProblem, json_answer, limit_of, problem
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.ports.store_answers import TaskFilter
from taskgate.replies.fields import about, extended
from taskgate.replies.tasks import (
    OpenQuestion,
    OperatorTask,
    TaskDetail,
    TaskList,
    TaskPhase,
    TaskResult,
    TaskRow,
    TaskStatus,
)
from taskgate.store.operations.approvals import FindHeld
from taskgate.store.operations.task_queries import AttemptsOf, FindTask, QuestionsOf

PING_S: Final = 15.0
LONGEST_WAIT_S: Final = 20
"""Longest wait for a result; shorter than the timeouts of clients and proxies."""
_NO_SUCH_TASK: Final = "Task not found."
_REASON: Final = closed_object(reason=TEXT)


class TasksApi:
    def __init__(
        self,
        tasks: Tasks,
        plan: Live[Plan],
        records: Records,
        address: PublicAddress,
    ) -> None:
        self._tasks = tasks
        self._plan = plan
        self._records = records
        self._address = address
        self._store = tasks.store

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/api/tasks",
                access=Access.SEE,
                kind=RouteKind.API,
                handler=self._list_without_version,
                summary="Tasks of all callers in the format of version 0.1; see /api/v1/tasks.",
                query={
                    "after": "start of the next page, from the header x-next-after",
                    "limit": "maximum number of rows, up to 1000",
                },
                answer=list[TaskRow],
            ),
            get(
                "/tasks",
                Access.LOGIN,
                self._list,
                "Tasks, newest first: those of all callers, or yours.",
                command="taskgate tasks list --all",
                query=FILTERS,
                answer=TaskList,
            ),
            get(
                "/tasks/{id}",
                Access.LOGIN,
                self._show,
                "One task with its arguments (redacted fields are marked), timeline and questions.",
                command="taskgate tasks show {id}",
                query={"calls_after": "of a script: the call after which the page of calls begins, as in `next`"},
                answer=TaskDetail,
            ),
            get(
                "/tasks/{id}/result",
                Access.LOGIN,
                self._result,
                "The result or error of a finished task; `ended` is false until then.",
                command="taskgate tasks result {id}",
                query={"wait": "seconds to wait for the task to finish, 20 at most"},
                answer=TaskResult,
            ),
            get(
                "/tasks/{id}/events",
                Access.LOGIN,
                self._events,
                "Status changes of a task.",
                command="taskgate tasks watch {id}",
                stream=True,
                anonymous=True,
                answer=Annotated[
                    str,
                    about(
                        "events `task_status` with the fields of a task and `taskId`, `status`, `statusMessage`, `timestamp`"
                    ),
                ],
            ),
            post(
                "/tasks/{id}/cancel",
                Access.LOGIN,
                self._cancel,
                "Cancel a task: your own, or with the permission `act` any task.",
                _REASON,
                command="taskgate tasks cancel {id}",
                answer=OperatorTask,
            ),
        )

    async def listed(self, visit: Visit, limit: int, *, states: frozenset[TaskState] | None = None) -> TaskList:
        """The tasks that match the query parameters, of those that this person may see; `states` replaces the parameter of
        that name. Raises ValueError."""
        now = self._store.now_ms()
        filters = TaskFilter(
            principal=visit.parameter("caller"),
            server=visit.parameter("server"),
            scope=visit.parameter("scope"),
            tool=visit.parameter("tool"),
            text=visit.parameter("text"),
            states=states if states is not None else task_states(visit.parameter("state")),
            since_ms=point_in_time("since", visit.parameter("since"), now),
            until_ms=point_in_time("until", visit.parameter("until"), now),
        )
        after = visit.parameter("after")
        page = await self._records.tasks(visit.user, filters, only=visit.only, after=after, limit=limit)
        return TaskList(tasks=[operator_task(task) for task in page.tasks], next=page.after)

    async def detail(self, visit: Visit) -> TaskDetail:
        """The task that the path names, with arguments, timeline and questions. Raises RequestProblem."""
        task = await self._found(visit)
        arguments, hidden = self._redacted_arguments(task)
        held = await self._store.ask(FindHeld(task.approval_id)) if task.approval_id is not None else None
        answered = await self._store.ask(QuestionsOf(task.id, answered=True))
        unanswered = await self._store.ask(QuestionsOf(task.id))
        stored = await self._store.ask(AttemptsOf(task.id, MAX_ATTEMPTS)) if task.attempts > 1 else ()
        attempts = attempts_of(task, stored)
        questions = [
            OpenQuestion(key=question.key, method=question.method, request=wire.parse_strictly(question.request))
            for question in unanswered
        ]
        trace = trace_in(task.params_rest)
        return extended(
            TaskDetail,
            operator_task(task),
            trace=trace or None,
            trace_url=self._plan.value.trace_link(trace),
            arguments_digest=task.digest,
            arguments=arguments,
            hidden=hidden,
            questions=questions,
            timeline=timeline(task, held, answered, unanswered, attempts),
            rule=held.approval.rule if held is not None else None,
            upstream_task=task.upstream_handle.task_id if task.upstream_handle is not None else None,
            parent=task.parent or None,
            script_line=task.script_line if task.parent else None,
            script_calls=await script_tree(self._records, task, calls_after(visit.parameter("calls_after"))),
            phases=[
                TaskPhase(begin=iso(one.from_ms), to=iso(one.to_ms), kind=one.kind.value, label=one.label)
                for one in phases(task, held, answered, attempts, self._records.now_ms())
            ],
            may_cancel=not task.state.is_terminal and _may_cancel(visit.user, task),
        )

    async def stored_result(self, visit: Visit) -> bytes | None:
        """The result or error of the task that the path names, as the server sent it; None while there is none."""
        return await self._tasks.records.result_bytes(await self._found(visit))

    async def cancel(self, visit: Visit, reason: str | None) -> OperatorTask:
        """Raises RequestProblem where the task cannot be cancelled by this person."""
        task = await self._found(visit)
        if not _may_cancel(visit.user, task):
            raise RequestProblem(403, refusal(Permission.ACT))
        if task.state.is_terminal:
            raise RequestProblem(409, f"This task has already finished with state {task.state.value}.")
        by = f"by {visit.user.id}: {reason}" if reason else f"by {visit.user.id}"
        return operator_task(await self._tasks.methods.cancel_task(task, by))

    def mcp_address(self, scope: str) -> str:
        """The address at which MCP clients call in a scope."""
        path = "/mcp" if scope == self._plan.value.default_scope else f"/mcp/{quote(scope, safe='')}"
        return f"{self._address.base()}{path}"

    async def _found(self, visit: Visit) -> Task:
        """The task that the path names. A task of another caller looks like one that does not exist."""
        task = await self._records.task(visit.user, visit.values["id"])
        if task is None:
            raise RequestProblem(404, _NO_SUCH_TASK)
        return task

    async def _list(self, visit: Visit) -> Answer:
        return json_answer(await self.listed(visit, limit_of(visit.request)))

    async def _list_without_version(self, visit: Visit) -> Answer:
        after, limit = visit.request.query.get("after"), limit_of(visit.request)
        page = await self._records.tasks(visit.user, TaskFilter(), only=None, after=after, limit=limit)
        headers = ((b"x-next-after", page.after.encode("ascii")),) if page.after is not None else ()
        return json_answer([task_row(task) for task in page.tasks], headers=headers)

    async def _show(self, visit: Visit) -> Answer:
        return json_answer(await self.detail(visit))

    async def _result(self, visit: Visit) -> Answer:
        """Reading a result starts an approved task only for its own caller, not for an operator."""
        task: Task | None = await self._found(visit)
        self._start_if_own(visit, task)
        wait_s = _seconds(visit.parameter("wait"))
        if task is not None and not task.state.is_terminal and wait_s:
            task = await self._ended(visit, task, wait_s)
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        row = operator_task(task)
        if not task.state.is_terminal:
            return json_answer(extended(TaskResult, row, ended=False))
        if task.outcome is None:
            text = task.status_message or f"The task ended as {task.state.value}."
            result = {"content": [{"type": "text", "text": text}], "isError": True}
            return json_answer(extended(TaskResult, row, ended=True, result=result))
        body = await self._tasks.records.result_bytes(task)
        if body is None:
            return problem(410, f"This task ended as {task.state.value}; its result has expired.")
        is_error = task.outcome.kind is OutcomeKind.ERROR
        received = {"error": Raw(body)} if is_error else {"result": Raw(body)}
        return json_answer(extended(TaskResult, row, ended=True, **received))

    async def _ended(self, visit: Visit, task: Task, wait_s: float) -> Task | None:
        """The task when it has finished, or as it is when the time is up; None if it no longer exists."""
        changes, end = self._tasks.records.changes, clock.monotonic() + wait_s
        current: Task | None = task
        while current is not None and not current.state.is_terminal and not self._tasks.draining:
            left = end - clock.monotonic()
            if left <= 0:
                break
            await changes.next_change(current, left)
            current = await self._records.task(visit.user, task.id)
            self._start_if_own(visit, current)
        return current

    def _start_if_own(self, visit: Visit, task: Task | None) -> None:
        if task is not None and task.principal == visit.user.id:
            self._tasks.methods.start_for_result(task)

    def _redacted_arguments(self, task: Task) -> tuple[Any, list[str]]:
        """Redacted by every workflow, so that a task page does not show what an approval page hides."""
        value: Any = wire.parse_strictly(task.arguments or b"{}")
        hidden: list[str] = []
        for redaction in self._plan.value.governing.redactions.values():
            redacted = redaction.redact(value)
            value = redacted.value
            hidden += [path for path in redacted.hidden if path not in hidden]
        return value, hidden

    async def _cancel(self, visit: Visit) -> Answer:
        body = visit.request.json()
        reason = body.get("reason")
        if set(body) - {"reason"} or (reason is not None and type(reason) is not str):
            return problem(400, 'The body may contain only "reason", a string.')
        return json_answer(await self.cancel(visit, reason))

    async def _events(self, visit: Visit) -> Answer | EventAnswer:
        task_id = visit.values["id"]
        task = await (
            self._find_anonymous(task_id) if visit.person is None else self._records.task(visit.user, task_id)
        )
        return EventAnswer(self._follow(task)) if task is not None else problem(404, _NO_SUCH_TASK)

    async def _find_anonymous(self, task_id: str) -> Task | None:
        """An anonymous caller proves ownership by the unguessable id; it opens anonymous tasks only."""
        task = await self._store.ask(FindTask(task_id)) if is_task_id(task_id) else None
        return task if task is not None and task.principal == ANONYMOUS else None

    async def _follow(self, task: Task) -> AsyncGenerator[bytes]:
        """A `task_status` event per change, `:ping` while idle; the stream ends with the task."""
        changes = self._tasks.records.changes
        last: TaskStatus | None = None
        while True:
            shown = task_status(task)
            if shown != last:
                last = shown
                yield b"event: task_status\ndata: " + msgspec.json.encode(shown) + b"\n\n"
            if task.state.is_terminal or self._tasks.draining:
                return
            if not await changes.next_change(task, PING_S):
                yield b":ping\n\n"
            current = await self._store.ask(FindTask(task.id))
            if current is None:
                return
            task = current


def _may_cancel(user: Approver, task: Task) -> bool:
    return user.may(Permission.ACT) or (task.principal == user.id and user.id != ANONYMOUS)


def _seconds(given: str | None) -> int:
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) < 6):
        raise ValueError("wait must be a whole number of seconds")
    return min(int(given), LONGEST_WAIT_S)
