"""Export and erasure of one principal's data, for administrators.

An export is read page by page, section by section; `next` leads through all of them. The audit log is excluded: it has its own
export and is never erased. See docs/how-to/personal-data.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import as_key
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.ids import is_task_id
from taskgate.core.raw_json import Raw
from taskgate.core.timestamps import iso
from taskgate.dashboard.ports import CallForgetting, Events, PersonForgetting, TaskControl
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.rows import grant_row, task_row
from taskgate.dashboard.web import Answer, json_answer
from taskgate.gateway.events import DataErased
from taskgate.ports.account_connector import AccountConnector
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskQuestion
from taskgate.replies.fields import extended
from taskgate.replies.history import history_entry
from taskgate.replies.personal_data import (
    DataPage,
    ErasedCounts,
    Erasure,
    ExportedAccount,
    ExportedApproval,
    ExportedCall,
    ExportedEvent,
    ExportedGrant,
    ExportedQuestion,
    ExportedRecord,
    ExportedRecordedCall,
    ExportedTask,
    ExportedUsage,
)
from taskgate.store.operations.approvals import HeldCalls
from taskgate.store.operations.erasure import TasksOf, Unfinished, erase
from taskgate.store.operations.events import EventsAfter, StreamsOf
from taskgate.store.operations.grants import FindGrants
from taskgate.store.operations.history import HistoryContent
from taskgate.store.operations.history_search import FindHistory
from taskgate.store.operations.identity_records import CONSOLE_SESSION, REVOKED, IdentityRecordsOf
from taskgate.store.operations.task_queries import FindTask, QuestionsOf, ResultBytes
from taskgate.store.operations.usage import RecordedCalls, UsageBetween

TASKS_A_PAGE: Final = 20
LARGE_PAGE: Final = 4 << 20
"""A page ends early when its results exceed this size."""
ROWS_A_PAGE: Final = 500
_ERASE: Final = closed_object(("principal",), principal=TEXT, cancel={"type": "boolean"})
_QUERY: Final = {"principal": "name of the principal", "after": "start of the next page, from `next`"}
_INVALID_PRINCIPAL: Final = f"Send the name of a principal; {ANONYMOUS!r} is not one."

Rows = list[Any]
Part = Callable[[str, str], Awaitable[tuple[Rows, str | None]]]
"""Rows of a principal from a position, and the next position; None at the end."""


class DataApi:
    def __init__(
        self,
        store: Store,
        *,
        tasks: TaskControl,
        accounts: AccountConnector,
        people: PersonForgetting,
        journal: CallForgetting,
        events: Events,
    ) -> None:
        self._store = store
        self._control = tasks
        self._accounts = accounts
        self._people = people
        self._journal = journal
        self._hub = events
        self._parts: dict[str, Part] = {
            "tasks": self._tasks,
            "events": self._events,
            "approvals": self._approvals,
            "grants": self._grants,
            "calls": self._recorded_calls,
            "history": self._history,
            "usage": self._usage,
            "identity": self._identity,
        }

    def routes(self) -> tuple[Route, ...]:
        admin = Access.CONFIGURE
        return (
            get(
                "/data/export",
                admin,
                self._export,
                "Export the data of one principal.",
                query=_QUERY,
                command="taskgate data export --principal NAME",
                answer=DataPage,
            ),
            post(
                "/data/erase",
                admin,
                self._erase,
                "Erase the data of one principal; the audit log is kept.",
                _ERASE,
                command="taskgate data erase --principal NAME",
                answer=Erasure,
            ),
        )

    async def _export(self, visit: Visit) -> Answer:
        principal = _principal(visit, visit.parameter("principal"))
        part, _, rest = (visit.parameter("after") or "tasks:").partition(":")
        if part not in self._parts:
            raise ValueError("`after` must be the `next` of the previous page")
        rows, more = await self._parts[part](principal, rest)
        if more is not None:
            following: str | None = f"{part}:{more}"
        else:
            names = [*self._parts, None]
            after = names[names.index(part) + 1]
            following = f"{after}:" if after is not None else None
        return json_answer(DataPage(rows=rows, next=following))

    async def _tasks(self, principal: str, rest: str) -> tuple[Rows, str | None]:
        found = await self._store.ask(TasksOf(principal, rest, TASKS_A_PAGE))
        rows: Rows = []
        size = 0
        for task_id in found:
            row, bytes_of_it = await self._task(task_id)
            rows += row
            size += bytes_of_it
            if size > LARGE_PAGE:
                return rows, task_id
        return rows, found[-1] if len(found) == TASKS_A_PAGE else None

    async def _task(self, task_id: str) -> tuple[Rows, int]:
        task = await self._store.ask(FindTask(task_id, include_expired=True))
        if task is None:
            return [], 0
        result = await self._store.ask(ResultBytes(task_id))
        questions = [
            *await self._store.ask(QuestionsOf(task_id, answered=True)),
            *await self._store.ask(QuestionsOf(task_id)),
        ]
        row = extended(
            ExportedTask,
            task_row(task),
            arguments=Raw(task.arguments or b"null"),
            params=Raw(task.params_rest or b"null"),
            result=Raw(result if result is not None else b"null"),
            questions=[_question(question) for question in questions],
        )
        return [row], len(task.arguments) + len(result or b"")

    async def _events(self, principal: str, rest: str) -> tuple[Rows, str | None]:
        """One event stream per page."""
        streams = [stream for stream in sorted(await self._store.ask(StreamsOf(principal))) if stream > rest]
        if not streams:
            return [], None
        page = await self._store.ask(EventsAfter(streams[0], 0))
        rows = [
            ExportedEvent(event=event.kind, server=event.server, at=iso(event.at_ms), data=event.data)
            for event in page.events
        ]
        return rows, streams[0] if len(streams) > 1 else None

    async def _approvals(self, principal: str, rest: str) -> tuple[Rows, str | None]:
        page = await self._store.ask(HeldCalls(open_only=False, after=rest or None, limit=ROWS_A_PAGE))
        rows = [
            ExportedApproval(tool=held.wire_name, arguments=Raw(held.arguments or b"null"), approval=held.approval)
            for held in page.held
            if held.approval.binding.principal == principal
        ]
        return rows, page.after

    async def _grants(self, principal: str, _rest: str) -> tuple[Rows, str | None]:
        every = await self._store.ask(FindGrants(all_of_them=True))
        return [extended(ExportedGrant, grant_row(grant)) for grant in every if grant.principal == principal], None

    async def _recorded_calls(self, principal: str, rest: str) -> tuple[Rows, str | None]:
        page = await self._store.ask(RecordedCalls(0, int(rest or "0"), ROWS_A_PAGE))
        rows = [ExportedRecordedCall(call=call) for call in page.calls if call.principal == principal]
        return rows, str(page.after) if page.after is not None else None

    async def _history(self, principal: str, rest: str) -> tuple[Rows, str | None]:
        filters = HistoryFilter(caller=as_key(principal))
        page = await self._store.ask(
            FindHistory(filters, before=int(rest) if rest.isdigit() else None, limit=ROWS_A_PAGE)
        )
        rows: Rows = []
        for row in page.rows:
            content = await self._store.ask(HistoryContent(row.task_id)) if row.task_id else None
            rows.append(ExportedCall(call=history_entry(row), content=Raw(content or b"null")))
        return rows, str(page.after) if page.after is not None else None

    async def _usage(self, principal: str, _rest: str) -> tuple[Rows, str | None]:
        every = await self._store.ask(UsageBetween("0000-01-01", "9999-12-31"))
        return [extended(ExportedUsage, row) for row in every if row.principal == principal], None

    async def _identity(self, principal: str, _rest: str) -> tuple[Rows, str | None]:
        """Sessions and accounts, without secrets."""
        rows: Rows = []
        for record in await self._store.ask(IdentityRecordsOf(principal)):
            known = b"null" if record.kind == CONSOLE_SESSION else record.body or b"null"
            rows.append(ExportedRecord(kind=record.kind, until_ms=record.expires_ms, known=Raw(known)))
        accounts = await self._accounts.accounts_of(principal)
        return rows + [extended(ExportedAccount, row, server=name) for name, row in accounts.items()], None

    async def _erase(self, visit: Visit) -> Answer:
        body = visit.request.json()
        cancel = body.get("cancel", False)
        if set(body) - {"principal", "cancel"} or type(cancel) is not bool:
            raise ValueError('send "principal" and optionally "cancel": true')
        principal = _principal(visit, body.get("principal"))
        by = visit.user.id
        self._journal.forget_person(principal)
        entry = AuditEntry(0, "data_erased", principal, kind="data", decision="erased", reason=f"by {by}")
        done = await erase(self._store, principal, REVOKED, entry)
        if isinstance(done, Unfinished) and cancel:
            await self._cancel(done.ids, by)
            done = await erase(self._store, principal, REVOKED, entry)
        if isinstance(done, Unfinished):
            return json_answer({"error": _not_yet(done.ids), "open": done.ids}, 409)
        accounts = [
            server
            for server in await self._accounts.accounts_of(principal)
            if await self._accounts.disconnect(server, principal)
        ]
        await self._people.forget(principal)
        self._hub.publish(DataErased(principal))
        return json_answer(Erasure(principal=principal, erased=extended(ErasedCounts, done), accounts=accounts))

    async def _cancel(self, open_ids: tuple[str, ...], by: str) -> None:
        for task_id in open_ids:
            task = await self._store.ask(FindTask(task_id)) if is_task_id(task_id) else None
            if task is None or task.state.is_terminal:
                continue
            try:
                await self._control.cancel_task(task, f"by {by}: the caller's data is being erased")
            except CallerError:
                continue  # it has just ended


def _principal(visit: Visit, name: object) -> str:
    if type(name) is not str or not name or "\0" in name or name == ANONYMOUS or not visit.user.reaches(name):
        raise ValueError(_INVALID_PRINCIPAL)
    return name


def _not_yet(open_ids: tuple[str, ...]) -> str:
    some = ", ".join(open_ids[:5]) + (", ..." if len(open_ids) > 5 else "")
    return (
        f"Nothing was erased: {len(open_ids)} calls are still open ({some}). Wait until they finish, or cancel the tasks "
        "(option --cancel) and decide the open approvals."
    )


def _question(question: TaskQuestion) -> ExportedQuestion:
    return ExportedQuestion(
        server=question.server,
        method=question.method,
        asked_at=iso(question.asked_ms),
        request=Raw(question.request),
        answer=Raw(question.answer or b"null"),
    )
