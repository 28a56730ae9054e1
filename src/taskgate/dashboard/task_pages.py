"""Now, the tasks, and one task: what runs, waits and has failed, whose it is, and how each came to be where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState, Task
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.inbox import Inbox
from taskgate.dashboard.now_api import NowApi
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.web import PAGE, Answer, redirect, with_query
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.store_answers import TaskFilter

FIRST_LOOK: Final = 4_000
MOST_SHOWN: Final = 1_000_000
_FIELDS: Final = ("state", "server", "tool", "caller", "scope", "since", "until", "text")
_WORDS: Final = {
    TaskState.QUEUED: "queued",
    TaskState.AWAITING_APPROVAL: "waiting for approval",
    TaskState.APPROVED: "approved; runs when the caller polls the task",
    TaskState.RUNNING: "waiting for the server",
    TaskState.INPUT_REQUIRED: "waiting for input",
}


_ATTEMPTS: Final = {
    AttemptState.DISPATCHING: "no reply yet",
    AttemptState.VOID: "not executed",
    AttemptState.ANSWERED: "reply received",
}


def sparkline(counts: Sequence[int]) -> str:
    """The points of a line in a box of 100 by 20."""
    most = max(1, *counts)
    step = 100 / max(1, len(counts) - 1)
    return " ".join(f"{place * step:.1f},{19 - count / most * 18:.1f}" for place, count in enumerate(counts))


class TaskPages:
    def __init__(
        self,
        gateway: ConsoleServices,
        frame: Frame,
        *,
        tasks: TasksApi,
        now: NowApi,
        questions: QuestionsApi,
        inbox: Inbox,
    ) -> None:
        self._gateway = gateway
        self._frame = frame
        self._tasks = tasks
        self._now_api = now
        self._questions = questions
        self._inbox = inbox
        self._store = gateway.tasks.store

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/now", Access.LOGIN, self._now),
            page_route("/tasks", Access.LOGIN, self._list),
            page_route("/tasks/{id}", Access.LOGIN, self._show),
            form_route("/tasks/{id}/cancel", Access.LOGIN, self._cancel),
        )

    async def _now(self, visit: Visit) -> Answer:
        running, failed = await self._now_api.open_and_failed(visit)
        servers = self._now_api.traffic(visit.who)
        empty = not running and not (await self._inbox.records.tasks(visit.who, TaskFilter(), only=None, limit=1)).tasks
        return await self._frame.page(
            visit,
            "now",
            "now.html",
            running=[task_line(task) for task in running],
            failed=[task_line(task) for task in failed],
            servers=[{**row, "points": sparkline(row["counts"])} for row in servers],
            first_visit=empty and visit.who.may(Permission.ACT),
        )

    async def _list(self, visit: Visit) -> Answer:
        asked = {name: visit.asked(name) for name in _FIELDS}
        try:
            page, note = await self._tasks.page(visit, PAGE), None
        except ValueError as problem:
            page, note = None, str(problem)
        wanted = {**asked, "after": visit.asked("after")}
        return await self._frame.page(
            visit,
            "tasks",
            "tasks.html",
            note=note,
            note_kind="bad",
            asked=asked,
            rows=[task_line(task) for task in page.tasks] if page is not None else [],
            next=with_query("/tasks", asked, after=page.after) if page is not None and page.after else None,
            states=[state.value for state in TaskState],
            filtered=any(asked.values()),
            api=with_query("/api/v1/tasks", wanted),
            command=command_for(asked),
            servers=sorted(self._gateway.upstreams.value) if visit.only is None else [],
        )

    async def _show(self, visit: Visit, note: str | None = None, status: int = 200) -> Answer:
        task = await self._tasks.find(visit, visit.values["id"])
        if task is None:
            return self._frame.message(
                visit.request,
                visit.who,
                404,
                "Task not found",
                "It may have expired, or belongs to another caller.",
            )
        limit = MOST_SHOWN if visit.asked("full") == "1" else FIRST_LOOK
        arguments, hidden = self._tasks.shown_arguments(task)
        result = await self._gateway.tasks.records.result_bytes(task)
        return await self._frame.page(
            visit,
            "tasks",
            "task.html",
            title=clear(task.wire_name),
            status=status,
            note=note,
            note_kind="bad" if status >= 400 else "",
            task=task_line(task),
            timeline=await self._timeline(task),
            arguments=excerpt(show_json(arguments), limit),
            hidden=hidden,
            result=_shown_result(result, limit) if result is not None else None,
            questions=[w for w in self._questions.asked_of(visit.who) if w.task_id == task.id],
            may_cancel=not task.state.is_terminal and self._tasks.may_cancel(visit.who, task),
            may_decide=visit.who.may(Permission.SEE),
            api=f"/api/v1/tasks/{task.id}",
            command=self._frame.command_for("GET", "/api/v1/tasks/{id}", id=task.id),
        )

    async def _timeline(self, task: Task) -> list[dict[str, Any]]:
        """The events of a task, oldest first."""
        promoted = task.last_attempt is not None and task.last_attempt.sent_at_ms <= task.created_ms
        word = "Promoted to a task" if promoted else "Created"
        timeline = [_step(task.created_ms, word, f"from {clear(task.principal)} in scope {clear(task.scope)}")]
        held = await self._store.held(task.approval_id) if task.approval_id is not None else None
        if held is not None:
            timeline.append(
                _step(held.approval.asked_at_ms, "Approval requested", f"rule: {clear(held.approval.rule)}")
            )
            for vote in held.approval.votes:
                word = "Approved" if vote.verdict.value == "approve" else "Denied"
                timeline.append(_step(vote.at_ms, f"{word} by {clear(vote.approver)}", clear(vote.reason)))
        if task.last_attempt is not None:
            number = f"attempt {task.last_attempt.number}, " if task.last_attempt.number > 1 else ""
            said = f"{number}{_ATTEMPTS[task.last_attempt.state]}"
            timeline.append(_step(task.last_attempt.sent_at_ms, f"Sent to {clear(task.last_attempt.upstream)}", said))
        for answered, word in ((True, "Question answered"), (False, "Question open")):
            asked = await self._store.questions(task.id, answered=answered)
            timeline += [_step(question.asked_ms, word, question.method) for question in asked]
        if task.finished_ms is not None:
            timeline.append(_step(task.finished_ms, f"Finished: {task.state.value}", clear(task.status_message or "")))
        elif task.progress is not None:
            timeline.append(_step(task.updated_ms, "Progress", clear(task.status_message or "")))
        return sorted(timeline, key=lambda step: step["at"])

    async def _cancel(self, visit: Visit) -> Answer:
        task = await self._tasks.find(visit, visit.values["id"])
        if task is None or not self._tasks.may_cancel(visit.who, task):
            return await self._show(visit, "You do not have permission to cancel this task.", 403)
        if task.state.is_terminal:
            return await self._show(visit, f"This task has already finished with state {task.state.value}.", 409)
        await self._tasks.cancel(visit.who, task, visit.request.form().get("reason", "").strip()[:500] or None)
        return redirect(f"/tasks/{task.id}")


def _step(at: int | None, event: str, detail: str = "") -> dict[str, Any]:
    return {"at": at or 0, "event": event, "detail": detail}


def _shown_result(result: bytes, limit: int) -> Any:
    """As JSON in lines, everything invisible escaped; a part of it, if it is long."""
    try:
        text = show_json(wire.parse_strictly(result))
    except ValueError:
        text = clear(result.decode("utf-8", "replace"))
    return excerpt(text, limit)


def task_line(task: Task) -> dict[str, Any]:
    """One task for one line of a list, every foreign text made visible."""
    share = None
    if task.progress is not None and task.progress_total:
        share = round(max(0.0, min(1.0, task.progress / task.progress_total)) * 100)
    return {
        "id": task.id,
        "tool": clear(task.wire_name),
        "server": clear(task.server),
        "principal": clear(task.principal),
        "scope": clear(task.scope),
        "state": task.state.value,
        "is_over": task.state.is_terminal,
        "waits_for": _WORDS.get(task.state, ""),
        "message": clear(task.status_message or "")[:500],
        "share": share,
        "created": task.created_ms,
        "updated": task.updated_ms,
        "finished": task.finished_ms,
        "attempts": task.attempts,
        "executed": task.executed.value if task.executed is not None else None,
        "approval_id": task.approval_id,
        "conversation": clear(task.conversation),
    }


def command_for(asked: Mapping[str, str | None]) -> str:
    """The command that lists the same."""
    import shlex

    given = {name: value for name, value in asked.items() if value}
    state = given.pop("state", "all")
    words = ["taskgate", "tasks", "list", *(["--all"] if state == "all" else ["--state", state])]
    for name, value in given.items():
        words += ["--in-scope" if name == "scope" else f"--{name}", value]
    return shlex.join(words)
