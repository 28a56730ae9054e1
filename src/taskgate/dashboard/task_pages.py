"""The pages Now, Tasks and one task. They render the values that the JSON API returns."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import TaskState
from taskgate.dashboard.charts.sparkline import sparkline
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.now_api import NowApi
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import PAGE, Answer, RequestProblem, redirect, with_query

EXCERPT: Final = 4_000
"""Characters of arguments and result on the page; `?full=1` shows more."""
MOST_SHOWN: Final = 1_000_000
_FILTERS: Final = ("state", "server", "tool", "caller", "scope", "since", "until", "text")
_STATUS: Final = {
    TaskState.QUEUED: "Queued",
    TaskState.AWAITING_APPROVAL: "Waiting for approval",
    TaskState.APPROVED: "Approved; runs when the caller polls the task",
    TaskState.RUNNING: "Waiting for the server",
    TaskState.INPUT_REQUIRED: "Waiting for input",
}


class TaskPages:
    def __init__(self, tasks: TasksApi, now: NowApi, questions: QuestionsApi, frame: Frame) -> None:
        self._tasks = tasks
        self._now_api = now
        self._questions = questions
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/now",
                Access.LOGIN,
                self._now,
                page=Page("now", "Now", "/api/v1/now", (Topic.TASKS, Topic.INBOX, Topic.SERVERS), menu=1),
            ),
            page_route(
                "/tasks", Access.LOGIN, self._list, page=Page("tasks", "Tasks", "/api/v1/tasks", (Topic.TASKS,), menu=2)
            ),
            page_route("/tasks/{id}", Access.LOGIN, self._show),
            form_route("/tasks/{id}/cancel", Access.LOGIN, self._cancel),
        )

    async def _now(self, visit: Visit) -> Answer:
        now = await self._now_api.now(visit)
        return await self._frame.page(
            visit,
            "now",
            "now.html",
            running=[task_line(row) for row in now["open"]],
            failed=[task_line(row) for row in now["failed"]],
            servers=[
                {**row, "drawn": sparkline(row["counts"], f"{row['calls']} calls in the last 10 minutes")}
                for row in now["servers"]
            ],
            first_visit=not now["has_tasks"] and visit.who.may(Permission.ACT),
        )

    async def _list(self, visit: Visit) -> Answer:
        filters = {name: visit.parameter(name) for name in _FILTERS}
        found: dict[str, Any] = {"tasks": [], "next": None}
        note = None
        try:
            found = await self._tasks.listed(visit, PAGE)
        except ValueError as problem:
            note = str(problem)
        return await self._frame.page(
            visit,
            "tasks",
            "tasks.html",
            note=note,
            note_kind="bad",
            filters=filters,
            rows=[task_line(row) for row in found["tasks"]],
            next=with_query("/tasks", filters, after=found["next"]) if found["next"] else None,
            states=[state.value for state in TaskState],
            filtered=any(filters.values()),
            api=with_query("/api/v1/tasks", {**filters, "after": visit.parameter("after")}),
            command=list_command(filters),
            servers=self._tasks.server_names(visit),
        )

    async def _show(self, visit: Visit, note: str | None = None, status: int = 200) -> Answer:
        row = await self._tasks.detail(visit)
        result = await self._tasks.stored_result(visit)
        limit = MOST_SHOWN if visit.parameter("full") == "1" else EXCERPT
        return await self._frame.page(
            visit,
            "tasks",
            "task.html",
            title=clear(row["tool"]),
            status=status,
            note=note,
            note_kind="bad" if status >= 400 else "",
            task=task_line(row),
            timeline=[
                {**step, "event": clear(step["event"]), "detail": clear(step["detail"])} for step in row["timeline"]
            ],
            arguments=excerpt(show_json(row["arguments"]), limit),
            hidden=row["hidden"],
            result=excerpt(_readable(result), limit) if result is not None else None,
            questions=self._questions.of_task(visit.who, row["id"]),
            may_cancel=row["may_cancel"],
            may_decide=visit.who.may(Permission.SEE),
            api=f"/api/v1/tasks/{row['id']}",
            command=self._frame.command_for("GET", "/api/v1/tasks/{id}", id=row["id"]),
        )

    async def _cancel(self, visit: Visit) -> Answer:
        try:
            row = await self._tasks.cancel(visit, visit.request.form().get("reason", "").strip()[:500] or None)
        except RequestProblem as problem:
            return await self._show(visit, problem.text, problem.status)
        return redirect(f"/tasks/{row['id']}")


def _readable(result: bytes) -> str:
    """Indented JSON with invisible characters escaped; text that is not JSON is escaped as it is."""
    try:
        return show_json(wire.parse_strictly(result))
    except ValueError:
        return clear(result.decode("utf-8", "replace"))


def task_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A task row for a template: text from callers and servers escaped, and progress as a percentage."""
    share = None
    if row["progress"] is not None and row["progress_total"]:
        share = round(max(0.0, min(1.0, row["progress"] / row["progress_total"])) * 100)
    return {
        **row,
        **{name: clear(row[name]) for name in ("tool", "server", "principal", "scope")},
        "status": clear(row["message"] or "")[:500] or _STATUS.get(TaskState(row["state"]), ""),
        "share": share,
    }


def list_command(filters: Mapping[str, str | None]) -> str:
    """The command that lists the same tasks."""
    given = {name: value for name, value in filters.items() if value}
    state = given.pop("state", "all")
    words = ["taskgate", "tasks", "list", *(["--all"] if state == "all" else ["--state", state])]
    for name, value in given.items():
        words += ["--in-scope" if name == "scope" else f"--{name}", value]
    return shlex.join(words)
