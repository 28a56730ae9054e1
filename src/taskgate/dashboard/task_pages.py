"""The page of one task. It renders the values that the JSON API returns; of a call that is no longer stored, its row of history."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from typing import Any, Final

import msgspec
from markupsafe import Markup

from taskgate.core import wire
from taskgate.core.governance.card import excerpt, show_code, show_json
from taskgate.core.history.row import HistoryRow, RowKind
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import TaskState
from taskgate.core.timestamps import iso
from taskgate.dashboard import units
from taskgate.dashboard.charts.phases import phase_bar
from taskgate.dashboard.found_text import LONGEST_SEARCH, MIN_SEARCHED, FoundText, found_text
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.questions_api import QuestionsApi
from taskgate.dashboard.rerun_api import RerunApi
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.script_view import shown_calls, shown_report
from taskgate.dashboard.task_phases import Phase, PhaseKind
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.text_filters import clear, task_status
from taskgate.dashboard.web import Answer, RequestProblem, redirect, with_query
from taskgate.replies.tasks import TaskDetail, TimelineStep

EXCERPT: Final = 4_000
"""Characters of arguments and result on the page; `?full=1` shows more."""
LONGEST_COPY: Final = 8_000
"""Characters of arguments in a command or code to copy."""
MAX_SHOWN: Final = 1_000_000


class TaskPages(msgspec.Struct, eq=False, kw_only=True):
    tasks: TasksApi
    history: HistoryApi
    reruns: RerunApi
    questions: QuestionsApi
    frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/tasks/{id}", Access.LOGIN, self._show),
            form_route("/tasks/{id}/cancel", Access.LOGIN, self._cancel),
            form_route(
                "/tasks/{id}/rerun", Access.CALL, self._rerun, scope=lambda request: request.form().get("scope")
            ),
        )

    async def _show(self, visit: Visit, note: str | None = None, status: int = 200) -> Answer:
        try:
            row = await self.tasks.detail(visit)
        except RequestProblem:
            return await self._ended(visit)
        except ValueError as error:
            return self.frame.message(visit.request, visit.user, 400, "Invalid address", str(error))
        result = await self.tasks.stored_result(visit)
        limit, search_text = _display(visit)
        arguments = found_text(show_json(row.arguments), limit, search_text)
        received = found_text(_readable(result), limit, search_text) if result is not None else None
        code = excerpt(show_code(row.arguments) if row.script_calls is not None else "", limit)
        return await self.frame.page(
            visit,
            "tasks",
            "task.html",
            title=clear(row.tool),
            status=status,
            note=note,
            note_kind="bad" if status >= 400 else "",
            task=row,
            status_text=_status_of_script(row) if row.script_calls is not None else task_status(row),
            drawn=_drawn(row),
            same=await self.history.same_calls(visit, row.server, row.name, row.arguments_digest, row.id),
            timeline=_with_offsets(row),
            arguments=arguments,
            script=code.text,
            script_left_out=code.left_out,
            calls=shown_calls(row.script_calls, row.created_at),
            report=shown_report(result) if row.script_calls is not None else None,
            result=received,
            search=_search(search_text, arguments, received),
            questions=self.questions.of_task(visit.user, row.id),
            copies=self._copies(row),
            may_rerun=row.state.is_terminal and not row.hidden,
            may_decide=visit.user.may(Permission.SEE),
            api=f"/api/v1/tasks/{row.id}",
            command=self.frame.command_for("GET", "/api/v1/tasks/{id}", id=row.id),
        )

    async def _ended(self, visit: Visit) -> Answer:
        """A call whose task is no longer stored, or that never was one. Raises RequestProblem if there is no such row."""
        found = await self.history.detail(visit)
        row = await self.history.row(visit)
        limit, search_text = _display(visit)
        content = found_text(show_json(found.content), limit, search_text) if found.content is not None else None
        return await self.frame.page(
            visit,
            "tasks",
            "ended.html",
            title=clear(row.tool or "Call"),
            row=found,
            drawn=phase_bar(_ended_phases(row), []),
            steps=_ended_steps(row),
            same=await self.history.same_calls(visit, row.server, row.tool, row.digest, row.id),
            parent_known=bool(row.parent) and await self.history.has_row(visit, row.parent),
            content=content,
            search=_search(search_text, content),
            audit=with_query("/audit", found.audit) if visit.user.may(Permission.SEE) and found.audit else None,
            api=f"/api/v1/history/{row.id}",
            command=self.frame.command_for("GET", "/api/v1/tasks/{id}", id=row.id),
        )

    async def _rerun(self, visit: Visit) -> Answer:
        """Run the call again as the person who clicks, through the same rules; the new task is linked to this one."""
        reply = await self.reruns.rerun(visit)
        if reply.task_id is not None:
            return redirect(f"/tasks/{reply.task_id}")
        shown = excerpt(show_json(reply.received), EXCERPT).text
        return await self._show(visit, f"The call was not repeated as a task: {shown}", 409)

    def _copies(self, row: TaskDetail) -> tuple[tuple[str, str], ...]:
        """The same call as a command and as client code. None where an argument is redacted: the copy would be another call."""
        if row.hidden:
            return ()
        arguments = json.dumps(row.arguments, ensure_ascii=True)
        if len(arguments) > LONGEST_COPY:
            return ()
        return (
            ("taskgate call", call_command(row.tool, arguments, row.scope)),
            ("Python", client_code(row.tool, row.arguments, self.tasks.mcp_address(row.scope))),
        )

    async def _cancel(self, visit: Visit) -> Answer:
        try:
            row = await self.tasks.cancel(visit, visit.request.form().get("reason", "").strip()[:500] or None)
        except RequestProblem as problem:
            return await self._show(visit, problem.text, problem.status)
        return redirect(f"/tasks/{row.id}")


def _display(visit: Visit) -> tuple[int, str]:
    """How many characters of arguments and result are shown, and what is searched for in them: a search covers all of them."""
    search_text = clear(visit.parameter("find") or "")[:LONGEST_SEARCH]
    return MAX_SHOWN if search_text or visit.parameter("full") == "1" else EXCERPT, search_text


def _search(search_text: str, *texts: FoundText | None) -> dict[str, Any] | None:
    """The search form of the page; None if there is little to search in."""
    known = [text for text in texts if text is not None]
    if not search_text and sum(len(text.text) for text in known) < MIN_SEARCHED:
        return None
    matches = sum(text.matches for text in known)
    partial = not search_text and any(text.left_out for text in known)
    return {"text": search_text, "matches": matches, "partial": partial}


def _readable(result: bytes) -> str:
    """Indented JSON with invisible characters escaped; text that is not JSON is escaped as it is."""
    try:
        return show_json(wire.parse_strictly(result))
    except ValueError:
        return clear(result.decode("utf-8", "replace"))


def _status_of_script(task: TaskDetail) -> str:
    """A script runs at the gateway, and the further lines of its message list its calls, which are shown by themselves."""
    status = clear((task.message or "").partition("\n")[0])[:500]
    return status or ("Running" if task.state is TaskState.RUNNING else task_status(task))


def _drawn(row: TaskDetail) -> Markup:
    """The timeline to scale."""
    shown = [Phase(PhaseKind(one.kind), one.label, _ms(one.begin), _ms(one.to)) for one in row.phases]
    return phase_bar(shown, [(_ms(step.at), step.event) for step in row.timeline[1:]])


def _with_offsets(row: TaskDetail) -> list[tuple[TimelineStep, str]]:
    """The events with the time since the first one."""
    first = _ms(row.timeline[0].at)
    return [(step, units.duration(_ms(step.at) - first)) for step in row.timeline]


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


def _ended_phases(row: HistoryRow) -> list[Phase]:
    if row.kind is not RowKind.TASK and row.kind is not RowKind.CALL:
        return []
    sent = min(max(row.sent_ms or row.ended_ms, row.accepted_ms), row.ended_ms)
    waited = Phase(PhaseKind.WAITING, "waiting", row.accepted_ms, sent)
    worked = Phase(PhaseKind.WORKING, f"running on {row.server}", sent, row.ended_ms)
    return [phase for phase in (waited, worked) if phase.to_ms > phase.from_ms]


def _ended_steps(row: HistoryRow) -> list[tuple[str, str, str]]:
    """What happened, when, and how long after the beginning."""
    moments = [
        ("Accepted", row.accepted_ms),
        (f"Sent to {row.server}", row.sent_ms),
        (f"Ended: {row.outcome.value}", row.ended_ms),
    ]
    known = [(label, at_ms) for label, at_ms in moments if at_ms]
    return [(clear(label), iso(at_ms), units.duration(at_ms - known[0][1])) for label, at_ms in known]
