"""The page Tasks: what is open, and every call that has ended, found by filters in the address."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import BAD_OUTCOMES, CallOutcome, as_key
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.paging import paged
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.schema_forms import form_values
from taskgate.dashboard.scripts_api import ScriptsApi
from taskgate.dashboard.sorting import TableColumn, head_cells, sorted_rows
from taskgate.dashboard.task_filters import point_in_time
from taskgate.dashboard.tasks_api import TasksApi
from taskgate.dashboard.topics import Topic
from taskgate.dashboard.web import PAGE, Answer, RequestProblem, redirect, with_query
from taskgate.replies.history import EndedCalls, HistoryEntry
from taskgate.replies.tasks import OperatorTask

OPEN_SHOWN: Final = 20
"""Open tasks above those that have ended; all of them with `?state=open`."""
MAX_CANCELLED: Final = 100
_FILTERS: Final = ("state", "server", "tool", "caller", "scope", "since", "until", "text")
_ENDED: Final[Mapping[str, frozenset[CallOutcome]]] = {
    "bad": BAD_OUTCOMES,
    "completed": frozenset({CallOutcome.OK}),
    **{one.value: frozenset({one}) for one in CallOutcome if one not in (CallOutcome.OK, CallOutcome.GAP)},
}
_OPEN: Final[Mapping[str, frozenset[TaskState]]] = {
    "open": OPEN,
    **{state.value: frozenset({state}) for state in TaskState if state in OPEN},
}
STATES: Final = (*_OPEN, *_ENDED)
_EXPORTS: Final = (("CSV", "csv"), ("JSON lines", "jsonl"))
_VIEWS: Final[tuple[tuple[str, dict[str, str | None]], ...]] = (
    ("All", {}),
    ("Open", {"state": "open"}),
    ("Ended badly", {"state": "bad"}),
    ("Tool errors", {"state": "tool_error"}),
    ("Denied", {"state": "denied"}),
)
_COLUMNS: Final[tuple[TableColumn[HistoryEntry], ...]] = (
    TableColumn("state", "State", lambda row: row.shown_state),
    TableColumn("tool", "Tool", lambda row: row.tool),
    TableColumn("caller", "Caller", lambda row: row.caller),
    TableColumn("took", "Duration", lambda row: row.took_ms, numeric=True),
    TableColumn("why", "Why", lambda row: row.why or None),
    TableColumn("scope", "Scope", lambda row: row.scope),
    TableColumn("client", "Client", lambda row: row.client),
    TableColumn("approved_by", "Approved by", lambda row: row.approved_by or None),
    TableColumn("size", "Sizes", lambda row: row.size_in + row.size_out, numeric=True),
    TableColumn("when", "Ended", lambda row: row.ended_at, numeric=True),
)
COLUMNS: Final = tuple(column.key for column in _COLUMNS)
MAX_SORTED: Final = 1_000
"""A sorted table has so many of the newest rows that match: history is stored by time."""
USUAL_COLUMNS: Final = ("state", "tool", "caller", "took", "why", "when")
_COOKIE: Final = "taskgate_task_columns"
_YEAR_S: Final = 365 * 86_400


class TaskListPages(msgspec.Struct, eq=False, kw_only=True):
    tasks: TasksApi
    scripts: ScriptsApi
    history: HistoryApi
    records: Records
    frame: Frame

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/tasks",
                Access.LOGIN,
                self._list,
                page=Page("tasks", "Tasks", "/api/v1/history", (Topic.TASKS,), menu=2),
            ),
            form_route("/tasks/cancel", Access.LOGIN, self._cancel),
            form_route("/tasks/stop-scripts", Access.ACT, self._stop_scripts),
        )

    async def _list(self, visit: Visit) -> Answer:
        filters = {name: visit.parameter(name) for name in _FILTERS}
        if filters["state"] == "all":
            filters["state"] = None
        note, note_kind = _cancelled_note(visit) or _stopped_note(visit), ""
        sort = visit.parameter("sort")
        sort = sort if sort is not None and sort.removeprefix("-") in COLUMNS else None
        rows: Sequence[HistoryEntry] = ()
        opened: Sequence[OperatorTask] = ()
        after, more_open = None, False
        try:
            state = filters["state"]
            if state is not None and state not in STATES:
                raise ValueError(f"state must be one of {', '.join(STATES)}")
            if state not in _ENDED and visit.parameter("after") is None and sort is None:
                limit = PAGE if state in _OPEN else OPEN_SHOWN
                found = await self.tasks.listed(visit, limit, states=_OPEN[state or "open"])
                opened, more_open = found.tasks, found.next is not None
                after = found.next if state in _OPEN else None
            elif state in _OPEN:
                found = await self.tasks.listed(visit, PAGE, states=_OPEN[state or "open"])
                opened, after = found.tasks, found.next
            if state not in _OPEN:
                ended = await self._ended(visit, filters, PAGE if sort is None else MAX_SORTED)
                rows, after = ended.rows, ended.next
        except ValueError as problem:
            note, note_kind = str(problem), "bad"
        page, sorted_of = None, len(rows) if sort is not None else 0
        if sort is not None:
            page = paged(
                sorted_rows(rows, _COLUMNS, sort), visit.parameter("page"), "/tasks", {**filters, "sort": sort}
            )
            rows, after = page.rows, None
        columns, chosen_now = _columns(visit)
        query = {name: value for name, value in filters.items() if name != "state"}
        api = "/api/v1/tasks" if filters["state"] in _OPEN else "/api/v1/history"
        api_query = {**query, "state" if filters["state"] in _OPEN else "outcome": _outcome_parameter(filters["state"])}
        answer = await self.frame.page(
            visit,
            "tasks",
            "tasks.html",
            note=note,
            note_kind=note_kind,
            filters=filters,
            views=[
                (label, with_query("/tasks", view), filters["state"] == view.get("state") and not any(query.values()))
                for label, view in _VIEWS
            ],
            open=opened,
            may_cancel=bool(opened),
            stop=await self._stoppable(visit, filters),
            more_open=with_query("/tasks", query, state="open") if more_open and filters["state"] is None else None,
            rows=rows,
            heads=dict(zip(COLUMNS, head_cells(_COLUMNS, sort or "-when", "/tasks", filters), strict=True)),
            page=page,
            sorted_of=sorted_of,
            most_sorted=MAX_SORTED,
            unsorted=with_query("/tasks", filters),
            columns=columns,
            choices=[(one.key, one.label, one.key in columns) for one in _COLUMNS],
            next=with_query("/tasks", filters, after=after) if after else None,
            states=STATES,
            filtered=any(filters.values()),
            suggestions=await self._suggestions(visit),
            export=[
                (
                    label,
                    with_query(
                        "/api/v1/history/export", {**api_query, "kind": visit.parameter("kind"), "format": form}
                    ),
                )
                for label, form in _EXPORTS
            ],
            api=with_query(api, {**api_query, "after": visit.parameter("after")}),
            command=list_command(filters),
        )
        return msgspec.structs.replace(answer, headers=(*answer.headers, _cookie(columns))) if chosen_now else answer

    async def _ended(self, visit: Visit, filters: Mapping[str, str | None], limit: int) -> EndedCalls:
        now, caller = self.records.now_ms(), filters["caller"]
        history_filter = HistoryFilter(
            caller=as_key(caller) if caller is not None else None,
            scope=filters["scope"],
            server=filters["server"],
            tool=filters["tool"],
            outcomes=_ENDED[filters["state"]] if filters["state"] is not None else None,
            text=filters["text"],
            since_ms=point_in_time("since", filters["since"], now),
            until_ms=point_in_time("until", filters["until"], now),
        )
        return await self.history.page(visit, history_filter, limit)

    async def _suggestions(self, visit: Visit) -> dict[str, list[str]]:
        """Names for the filters."""
        scopes = self.records.scopes(visit.user) if visit.only is None else []
        return {**await self.history.suggestions(visit), "scope": scopes}

    async def _stoppable(self, visit: Visit, filters: Mapping[str, str | None]) -> dict[str, Any] | None:
        """Values of the form that stops scripts. None where it is not offered: it can select by caller and scope only, so the page
        must not be filtered by anything else.
        """
        caller, scope = filters["caller"], filters["scope"]
        others = any(value for name, value in filters.items() if name not in ("state", "caller", "scope"))
        is_offered = visit.user.may(Permission.ACT) and filters["state"] in (None, "open") and not others
        if not is_offered or not await self.scripts.any_runs(visit.user, caller, scope):
            return None
        which = [*(["--principal", caller] if caller else []), *(["--scope", scope] if scope else [])]
        command = self.frame.command_for("POST", "/api/v1/scripts/stop")
        return {"caller": caller, "scope": scope, "command": f"{command} {shlex.join(which or ['--all'])}"}

    async def _stop_scripts(self, visit: Visit) -> Answer:
        form = visit.request.form()
        caller, scope, reason = (form.get(name, "").strip() or None for name in ("caller", "scope", "reason"))
        everything = form.get("all") == "1"
        stopped = await self.scripts.stop(visit, caller, scope, reason[:500] if reason else None, everything=everything)
        return redirect(
            with_query("/tasks", {"state": "open", "caller": caller, "scope": scope, "stopped": str(len(stopped))})
        )

    async def _cancel(self, visit: Visit) -> Answer:
        """Cancel the selected tasks, each as if on its own page."""
        ids = form_values(visit).get("id", [])[:MAX_CANCELLED]
        done = 0
        for task_id in ids:
            try:
                await self.tasks.cancel(msgspec.structs.replace(visit, values={"id": task_id}), None)
                done += 1
            except RequestProblem:
                continue
        return redirect(f"/tasks?state=open&cancelled={done}&kept={len(ids) - done}")


def _cancelled_note(visit: Visit) -> str | None:
    done, kept = visit.parameter("cancelled"), visit.parameter("kept")
    if done is None or kept is None or not (done.isdigit() and kept.isdigit() and len(done) < 4 and len(kept) < 4):
        return None
    rest = f" {int(kept)} had ended already, or you may not cancel them." if int(kept) else ""
    return f"{int(done)} task{'' if int(done) == 1 else 's'} cancelled.{rest}"


def _stopped_note(visit: Visit) -> str | None:
    stopped = visit.parameter("stopped")
    if stopped is None or not (stopped.isascii() and stopped.isdigit() and len(stopped) < 7):
        return None
    if int(stopped) == 0:
        return "No matching script was running."
    return f"{int(stopped)} script{'' if int(stopped) == 1 else 's'} stopped. The audit log has what had run."


def _outcome_parameter(state: str | None) -> str | None:
    return "ok" if state == "completed" else state


def _columns(visit: Visit) -> tuple[tuple[str, ...], bool]:
    """The columns of the table: those of the address, else those of the cookie; and whether the address names them."""
    if visit.parameter("columns") is not None:
        named = parse_qs(visit.request.raw_query).get("column", [])
        return tuple(name for name in COLUMNS if name in named) or USUAL_COLUMNS, True
    kept = (visit.request.cookie(_COOKIE) or "").split(".")
    return tuple(name for name in COLUMNS if name in kept) or USUAL_COLUMNS, False


def _cookie(columns: tuple[str, ...]) -> tuple[bytes, bytes]:
    value = f"{_COOKIE}={'.'.join(columns)}; Path=/tasks; Max-Age={_YEAR_S}; HttpOnly; SameSite=Strict"
    return b"set-cookie", value.encode("ascii")


def list_command(filters: Mapping[str, str | None]) -> str:
    """The command that lists the same."""
    given = {name: value for name, value in filters.items() if value}
    state = given.pop("state", None)
    if state in _OPEN:
        words = ["taskgate", "tasks", "list", "--state", str(state)]
        scope = "--in-scope"
    else:
        words = ["taskgate", "history", *(["--outcome", str(_outcome_parameter(state))] if state else [])]
        scope = "--in-scope"
    for name, value in given.items():
        words += [scope if name == "scope" else f"--{name}", value]
    return shlex.join(words)
