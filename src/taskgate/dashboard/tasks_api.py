"""Tasks of every caller for operators, as JSON: list, look, follow, cancel. The paths are in docs/api-reference.md.

Who may see may look, who may act may cancel. A caller sees, follows and cancels its own tasks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.identity.roles import Permission
from taskgate.core.ids import is_task_id
from taskgate.core.tasks.task import OutcomeKind, Task
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import ROWS, TEXT, Route, Visit, closed_object, get, post, refusal
from taskgate.dashboard.rows import status_event, task_row
from taskgate.dashboard.task_filters import FILTERS, point_in_time, task_states
from taskgate.dashboard.web import Answer, EventAnswer, json_answer, limit_of, problem
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.store_answers import TaskFilter, TaskPage

PING_S: Final = 15.0
LONGEST_WAIT_S: Final = 20
"""How long a request for a result waits for the task's end at most; less than clients and proxies wait for a reply."""
_NO_SUCH_TASK: Final = "Task not found."
_PAGE: Final = closed_object(("tasks", "next"), tasks=ROWS, next={"type": ["string", "null"]})
_REASON: Final = closed_object(reason=TEXT)


class TasksApi:
    def __init__(self, gateway: ConsoleServices, records: Records) -> None:
        self._gateway = gateway
        self._records = records
        self._store = gateway.tasks.store

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/tasks",
                Access.LOGIN,
                self._page,
                "Tasks, newest first: those of all callers, or yours.",
                answer=_PAGE,
                command="taskgate tasks list --all",
                query=FILTERS,
            ),
            get(
                "/tasks/{id}",
                Access.LOGIN,
                self._show,
                "One task with its arguments (redacted fields are marked), timeline and questions.",
                command="taskgate tasks show {id}",
            ),
            get(
                "/tasks/{id}/result",
                Access.LOGIN,
                self._result,
                "The result or error of a finished task; `ended` is false until then.",
                command="taskgate tasks result {id}",
                query={"wait": "seconds to wait for the task to finish, 20 at most"},
            ),
            get(
                "/tasks/{id}/events",
                Access.LOGIN,
                self._events,
                "Status changes of a task.",
                command="taskgate tasks watch {id}",
                stream=True,
                anonymous=True,
            ),
            post(
                "/tasks/{id}/cancel",
                Access.LOGIN,
                self._cancel,
                "Cancel a task: your own, or with the permission `act` any task.",
                _REASON,
                command="taskgate tasks cancel {id}",
            ),
        )

    async def find(self, visit: Visit, task_id: str) -> Task | None:
        """The task, if this person may see it; somebody else's looks like one that does not exist."""
        return await self._records.task(visit.who, task_id)

    async def page(self, visit: Visit, limit: int) -> TaskPage:
        """The tasks that fit what the address asks for, of those that this person may see. Raises ValueError."""
        now = self._store.now_ms()
        wanted = TaskFilter(
            principal=visit.asked("caller"),
            server=visit.asked("server"),
            scope=visit.asked("scope"),
            tool=visit.asked("tool"),
            text=visit.asked("text"),
            states=task_states(visit.asked("state")),
            since_ms=point_in_time("since", visit.asked("since"), now),
            until_ms=point_in_time("until", visit.asked("until"), now),
        )
        return await self._records.tasks(visit.who, wanted, only=visit.only, after=visit.asked("after"), limit=limit)

    async def _page(self, visit: Visit) -> Answer:
        page = await self.page(visit, limit_of(visit.request))
        return json_answer({"tasks": [operator_row(task) for task in page.tasks], "next": page.after})

    async def _show(self, visit: Visit) -> Answer:
        task = await self.find(visit, visit.values["id"])
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        arguments, hidden = self.shown_arguments(task)
        questions = [
            {"key": question.key, "method": question.method, "request": wire.parse_strictly(question.request)}
            for question in await self._store.questions(task.id)
        ]
        return json_answer({**operator_row(task), "arguments": arguments, "hidden": hidden, "questions": questions})

    async def _result(self, visit: Visit) -> Answer:
        """Looking at a task as its operator starts nothing: only its caller's look may, who may be the operator."""
        task = await self.find(visit, visit.values["id"])
        self._start_if_own(visit, task)
        wait_s = _seconds(visit.asked("wait"))
        if task is not None and not task.state.is_terminal and wait_s:
            task = await self._ended(visit, task, wait_s)
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        row = {**operator_row(task), "ended": task.state.is_terminal}
        if not task.state.is_terminal:
            return json_answer(row)
        if task.outcome is None:
            text = task.status_message or f"The task ended as {task.state.value}."
            return json_answer({**row, "result": {"content": [{"type": "text", "text": text}], "isError": True}})
        body = await self._gateway.tasks.records.result_bytes(task)
        if body is None:
            return problem(410, f"This task ended as {task.state.value}; its result has expired.")
        name = "error" if task.outcome.kind is OutcomeKind.ERROR else "result"
        return json_answer({**row, name: msgspec.Raw(body)})

    async def _ended(self, visit: Visit, task: Task, wait_s: float) -> Task | None:
        """The task once it has ended, or as it is when the time is up; None if it is gone."""
        changes, end = self._gateway.tasks.records.changes, clock.monotonic() + wait_s
        current: Task | None = task
        while current is not None and not current.state.is_terminal and not self._gateway.tasks.draining:
            left = end - clock.monotonic()
            if left <= 0:
                break
            await changes.next_change(task.id, left)
            current = await self.find(visit, task.id)
            self._start_if_own(visit, current)
        return current

    def _start_if_own(self, visit: Visit, task: Task | None) -> None:
        if task is not None and task.principal == visit.who.id:
            self._gateway.tasks.methods.start_for_result(task)

    def shown_arguments(self, task: Task) -> tuple[Any, list[str]]:
        """With everything hidden that any workflow hides: a task page is no way round an approval page."""
        value: Any = wire.parse_strictly(task.arguments or b"{}")
        hidden: list[str] = []
        for redaction in self._gateway.plan.value.governing.redactions.values():
            redacted = redaction.redact(value)
            value = redacted.value
            hidden += [path for path in redacted.hidden if path not in hidden]
        return value, hidden

    async def _cancel(self, visit: Visit) -> Answer:
        said = visit.request.json()
        reason = said.get("reason")
        if set(said) - {"reason"} or (reason is not None and type(reason) is not str):
            return problem(400, 'The body may contain only "reason", a string.')
        task = await self.find(visit, visit.values["id"])
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        if not self.may_cancel(visit.who, task):
            return problem(403, refusal(Permission.ACT))
        if task.state.is_terminal:
            return problem(409, f"This task has already finished with state {task.state.value}.")
        return json_answer(operator_row(await self.cancel(visit.who, task, reason)))

    def may_cancel(self, who: Approver, task: Task) -> bool:
        return who.may(Permission.ACT) or (task.principal == who.id and who.id != ANONYMOUS)

    async def cancel(self, who: Approver, task: Task, reason: str | None) -> Task:
        told = f"by {who.id}: {reason}" if reason else f"by {who.id}"
        return await self._gateway.tasks.methods.cancel_task(task, told)

    async def _events(self, visit: Visit) -> Answer | EventAnswer:
        task_id = visit.values["id"]
        task = await (self._find_anonymous(task_id) if visit.person is None else self.find(visit, task_id))
        return EventAnswer(self._follow(task)) if task is not None else problem(404, _NO_SUCH_TASK)

    async def _find_anonymous(self, task_id: str) -> Task | None:
        """Anonymous callers prove by the unguessable id that a task is theirs; it opens anonymous tasks only."""
        task = await self._store.get(task_id) if is_task_id(task_id) else None
        return task if task is not None and task.principal == ANONYMOUS else None

    async def _follow(self, task: Task) -> AsyncGenerator[bytes]:
        """`task_status` whenever something changes, `:ping` while nothing does, the end with the task."""
        changes = self._gateway.tasks.records.changes
        last: dict[str, Any] | None = None
        while True:
            shown = status_event(task)
            if shown != last:
                last = shown
                yield b"event: task_status\ndata: " + msgspec.json.encode(shown) + b"\n\n"
            if task.state.is_terminal or self._gateway.tasks.draining:
                return
            if not await changes.next_change(task.id, PING_S):
                yield b":ping\n\n"
            current = await self._store.get(task.id)
            if current is None:
                return
            task = current


def operator_row(task: Task) -> dict[str, Any]:
    """A task with whose it is: the principal, and the conversation that asked for it."""
    return {**task_row(task), "caller": task.caller, "attempts": task.attempts, "keep_result_ms": task.keep_result_ms}


def _seconds(asked: str | None) -> int:
    if asked is None:
        return 0
    if not (asked.isascii() and asked.isdigit() and len(asked) < 6):
        raise ValueError("wait must be a whole number of seconds")
    return min(int(asked), LONGEST_WAIT_S)
