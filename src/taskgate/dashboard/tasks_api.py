"""Tasks of every caller for operators, as JSON: list, look, follow, cancel. The paths are in docs/api-reference.md.

Who may see may look, who may act may cancel. A caller may follow the events of its own task and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.caller import ANONYMOUS
from taskgate.core.governance.approval import Approver
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks import ids
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Task
from taskgate.dashboard.rows import status_event, task_row
from taskgate.dashboard.web import Answer, EventAnswer, Route, WebRequest, json_answer, limit_of, problem
from taskgate.gateway.gateway import Gateway

PING_S: Final = 15.0
_NO_SUCH_TASK: Final = "There is no such task."

ApiRoute = Route[Callable[[WebRequest, Approver, list[str]], Awaitable[Answer | EventAnswer]]]
"""A route of the API: its handler gets the parts of the path below `/api` or `/api/v1`."""


class TasksApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.tasks.store

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            Route("GET", "tasks", Permission.SEE, self._page),
            Route("GET", "tasks/*", Permission.SEE, self._show),
            Route("GET", "tasks/*/events", Permission.SEE, self._events),
            Route("POST", "tasks/*/cancel", Permission.ACT, self._cancel),
        )

    async def _page(self, request: WebRequest, _who: Approver, _parts: list[str]) -> Answer:
        page = await self._store.page(
            None,
            after=request.query.get("after"),
            limit=limit_of(request),
            server=request.query.get("server"),
            states=_states(request.query.get("state")),
        )
        return json_answer({"tasks": [operator_row(task) for task in page.tasks], "next": page.after})

    async def _show(self, _request: WebRequest, _who: Approver, parts: list[str]) -> Answer:
        task = await self._find(parts[1])
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        arguments, hidden = self._shown_arguments(task)
        questions = [
            {"key": question.key, "method": question.method, "request": wire.parse_strictly(question.request)}
            for question in await self._store.questions(task.id)
        ]
        return json_answer({**operator_row(task), "arguments": arguments, "hidden": hidden, "questions": questions})

    def _shown_arguments(self, task: Task) -> tuple[Any, list[str]]:
        """With everything hidden that any workflow hides: a task page is no way round an approval page."""
        value: Any = wire.parse_strictly(task.arguments or b"{}")
        hidden: list[str] = []
        for redaction in self._gateway.context.plan.governing.redactions.values():
            redacted = redaction.redact(value)
            value = redacted.value
            hidden += [path for path in redacted.hidden if path not in hidden]
        return value, hidden

    async def _cancel(self, request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        said = request.json()
        reason = said.get("reason")
        if set(said) - {"reason"} or (reason is not None and type(reason) is not str):
            return problem(400, 'The body may hold "reason", a string, and nothing else.')
        task = await self._find(parts[1])
        if task is None:
            return problem(404, _NO_SUCH_TASK)
        if task.state.is_terminal:
            return problem(409, f"This task has ended already, as {task.state.value}.")
        told = f"by {who.id}: {reason}" if reason else f"by {who.id}"
        return json_answer(operator_row(await self._gateway.tasks.methods.cancel_task(task, told)))

    async def _events(self, _request: WebRequest, _who: Approver, parts: list[str]) -> Answer | EventAnswer:
        return await self.events(parts[1])

    async def events(self, task_id: str) -> Answer | EventAnswer:
        task = await self._find(task_id)
        return EventAnswer(self._follow(task)) if task is not None else problem(404, _NO_SUCH_TASK)

    async def may_follow(self, task_id: str, principal: str | None) -> bool:
        """Whether a caller may follow this task: its own, or, for anonymous callers, one whose unguessable id it knows."""
        task = await self._find(task_id)
        return task is not None and task.principal == (principal if principal is not None else ANONYMOUS)

    async def _find(self, task_id: str) -> Task | None:
        return await self._store.get(task_id) if ids.is_task_id(task_id) else None

    async def _follow(self, task: Task) -> AsyncIterator[bytes]:
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


def _states(asked: str | None) -> frozenset[TaskState] | None:
    if asked is None or asked == "all":
        return None
    if asked == "open":
        return OPEN
    try:
        return frozenset({TaskState(asked)})
    except ValueError:
        known = ", ".join(state.value for state in TaskState)
        raise ValueError(f"state must be open, all or one of {known}") from None
