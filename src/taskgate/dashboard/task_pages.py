"""The pages Now, Tasks and one task. They render the values that the JSON API returns."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from taskgate.core import wire
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import TaskState
from taskgate.dashboard import units
from taskgate.dashboard.charts.phases import phase_bar
from taskgate.dashboard.charts.sparkline import sparkline
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.now_api import NowApi
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.task_phases import Phase, PhaseKind
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import PAGE, Answer, RequestProblem, redirect, with_query

EXCERPT: Final = 4_000
"""Characters of arguments and result on the page; `?full=1` shows more."""
LONGEST_COPY: Final = 8_000
"""Characters of arguments in a command or code to copy."""
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
            drawn=_drawn(row),
            timeline=_with_offsets(row),
            arguments=excerpt(show_json(row["arguments"]), limit),
            hidden=row["hidden"],
            result=excerpt(_readable(result), limit) if result is not None else None,
            questions=self._questions.of_task(visit.who, row["id"]),
            may_cancel=row["may_cancel"],
            copies=self._copies(row),
            may_decide=visit.who.may(Permission.SEE),
            api=f"/api/v1/tasks/{row['id']}",
            command=self._frame.command_for("GET", "/api/v1/tasks/{id}", id=row["id"]),
        )

    def _copies(self, row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """The same call as a command and as client code. None where an argument is redacted: the copy would be another call."""
        if row["hidden"]:
            return ()
        arguments = json.dumps(row["arguments"], ensure_ascii=True)
        if len(arguments) > LONGEST_COPY:
            return ()
        return (
            ("taskgate call", call_command(row["tool"], arguments, row["scope"])),
            ("Python", client_code(row["tool"], row["arguments"], self._tasks.mcp_address(row["scope"]))),
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
    """A task row for a template: with its progress as a percentage. A tool error is shown as such, not as completed."""
    share = None
    if row["progress"] is not None and row["progress_total"]:
        share = round(max(0.0, min(1.0, row["progress"] / row["progress_total"])) * 100)
    return {
        **row,
        "shown_state": "tool_error" if row["outcome"] == "tool_error" else row["state"],
        "status": clear(row["message"] or "")[:500] or _STATUS.get(TaskState(row["state"]), ""),
        "share": share,
    }


def _drawn(row: Mapping[str, Any]) -> Markup:
    """The timeline to scale."""
    shown = [
        Phase(PhaseKind(phase["kind"]), phase["label"], _ms(phase["from"]), _ms(phase["to"])) for phase in row["phases"]
    ]
    return phase_bar(shown, [(_ms(step["at"]), step["event"]) for step in row["timeline"][1:]])


def _with_offsets(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events with the time since the first one."""
    first = _ms(row["timeline"][0]["at"])
    return [
        {
            **step,
            "event": clear(step["event"]),
            "detail": clear(step["detail"]),
            "offset": units.duration(_ms(step["at"]) - first),
        }
        for step in row["timeline"]
    ]


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def call_command(tool: str, arguments: str, scope: str) -> str:
    """The command that makes the same call."""
    words = ["taskgate", "call", tool, *([arguments] if arguments != "{}" else [])]
    return shlex.join([*words, "--scope", scope] if scope else words)


def client_code(tool: str, arguments: Any, address: str) -> str:
    """The same call with the client library. Arguments are written as Python literals, which JSON's constants are not."""
    return (
        "import os\n"
        "from taskgate.client.sync import connect\n\n"
        f'with connect({address!a}, token=os.environ["TASKGATE_TOKEN"]) as session:\n'
        f"    result = session.call_tool({tool!a}, {arguments!a})\n"
        "    print(result.text)\n"
    )


def list_command(filters: Mapping[str, str | None]) -> str:
    """The command that lists the same tasks."""
    given = {name: value for name, value in filters.items() if value}
    state = given.pop("state", "all")
    words = ["taskgate", "tasks", "list", *(["--all"] if state == "all" else ["--state", state])]
    for name, value in given.items():
        words += ["--in-scope" if name == "scope" else f"--{name}", value]
    return shlex.join(words)
