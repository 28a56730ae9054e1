"""Read operations, over named statements that an adapter runs. They see the last commit and never wait for the writer.

Large values (long results, exports) are not read here but in a thread of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import msgspec

from taskgate.core.audit.chain import GENESIS, Row
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.history.counts import ChartSubject, CountRow, Dimension, Period
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import HistoryRow, number_of
from taskgate.core.identity.conversation import streams_between
from taskgate.core.identity.identity import principal_name
from taskgate.core.ids import RANDOM_BYTES, new_task_id
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.approval_store import HeldCall, HeldPage, StoredPin, StoredReceipt
from taskgate.ports.audit_log import AuditTime
from taskgate.ports.catalog_store import KeptCatalog
from taskgate.ports.event_outbox import EventPage
from taskgate.ports.history import HistoryPage
from taskgate.ports.identity_store import IdentityRecord
from taskgate.ports.scope_store import KeptScope
from taskgate.ports.script_store import ScriptCall, StoredScript
from taskgate.ports.store_answers import Due, Ownership, TaskFilter, TaskPage, TaskQuestion
from taskgate.store.operations.approval_rows import held_from
from taskgate.store.operations.audit import audit_from, audit_time
from taskgate.store.operations.events import event_from
from taskgate.store.operations.grants import grant_from
from taskgate.store.operations.history import history_row_from
from taskgate.store.operations.history_search import history_query
from taskgate.store.operations.pins import pin_from, readable_pin
from taskgate.store.operations.recorded_calls import decode_recorded_call
from taskgate.store.operations.scripts import script_from
from taskgate.store.operations.task_rows import attempt_from, question_from, task_from
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Statements
from taskgate.store.transaction_settings import TransactionSettings
from taskgate.telemetry.damaged_rows import readable

_PARTS: Final = ("part_1", "part_2", "part_3", "part_4")
"""Parameters of the statements that search tasks for the parts of a text."""
_LONGEST_PART: Final = 8192
"""No name is longer, and SQLite refuses patterns of more than 50,000 bytes."""


@dataclass(slots=True, eq=False)
class Reader:
    """Every method is quick and changes nothing."""

    _run: Statements
    _settings: TransactionSettings
    _sealing: Sealing

    def task(self, task_id: str, now_ms: int, *, include_expired: bool = False) -> Task | None:
        row = self._run("find_task", id=task_id).fetchone()
        if row is None:
            return None
        task = task_from(self._sealing, row)
        return None if is_expired(task, now_ms) and not include_expired else task

    def outcome(self, task_id: str, now_ms: int) -> tuple[bytes | None, str | None] | None:
        """Return the body of a retained result, or the name under which a long one is stored; the other one is None."""
        row = self._run("find_outcome", task_id=task_id).fetchone()
        if row is None or (row[2] is not None and row[2] <= now_ms):
            return None
        return None if row[0] is None else self._sealing.open(row[0], task_id), row[1]

    def page(
        self,
        caller: str | None,
        *,
        after: str | None,
        limit: int,
        server: str | None,
        states: frozenset[TaskState] | None,
        include_expired: bool,
        arguments_up_to: int,
        now_ms: int,
    ) -> TaskPage:
        listed_states = None if states is None else "," + ",".join(sorted(states)) + ","
        values = {"after": after, "limit": limit + 1, "server": server, "states": listed_states, "now_ms": now_ms}
        values |= {"include_expired": include_expired, "arguments_up_to": arguments_up_to}
        if caller is None:
            found = self._run("page_of_all_tasks", **values).fetchall()
        else:
            found = self._run("page_of_tasks", caller=caller, **values).fetchall()
        tasks = self._tasks(found[:limit])
        return TaskPage(tasks, tasks[-1].id if tasks and len(found) > limit else None)

    def find_tasks(self, filters: TaskFilter, after: str | None, limit: int, now_ms: int) -> TaskPage:
        states = None if filters.states is None else "," + ",".join(sorted(filters.states)) + ","
        only_open = filters.states is not None and filters.states <= OPEN
        found = self._run(
            "find_open_tasks" if only_open else "find_tasks",
            before=min(after or "~", _first_id(filters.until_ms) if filters.until_ms is not None else "~"),
            first=_first_id(filters.since_ms or 0),
            principal=filters.principal,
            tenant=filters.tenant,
            server=filters.server,
            scope=filters.scope,
            tool=filters.tool,
            states=states,
            **_patterns(filters.text),
            now_ms=now_ms,
            limit=limit + 1,
        ).fetchall()
        tasks = self._tasks(found[:limit])
        return TaskPage(tasks, tasks[-1].id if tasks and len(found) > limit else None)

    def ended_badly(self, filters: TaskFilter, since_ms: int, limit: int, now_ms: int) -> tuple[Task, ...]:
        only = {"principal": filters.principal, "tenant": filters.tenant}
        found = self._run("tasks_ended_badly", since_ms=since_ms, now_ms=now_ms, limit=limit, **only)
        return self._tasks(found)

    def _tasks(self, rows: Iterable[Sequence[Any]]) -> tuple[Task, ...]:
        return tuple(readable("tasks", rows, partial(task_from, self._sealing)))

    def task_of_key(self, principal: str, key: str, after_ms: int) -> str | None:
        row = self._run("find_key", principal=principal, key=key).fetchone()
        return row[1] if row is not None and row[2] > after_ms else None

    def open_count(self, caller: str | None) -> int:
        if caller is None:
            return int(self._run("count_open").fetchone()[0])
        return int(self._run("count_open_of_caller", limited_as=caller).fetchone()[0])

    def questions(self, task_id: str, *, answered: bool) -> tuple[TaskQuestion, ...]:
        found = self._run("questions_of_task", task_id=task_id, state="answered" if answered else "open")
        return tuple(question_from(self._sealing, task_id, *row) for row in found)

    def attempts(self, task_id: str, limit: int) -> tuple[Attempt, ...]:
        found = self._run("attempts_of_task", task_id=task_id, limit=limit)
        return tuple(reversed([attempt_from(*row) for row in found]))

    def script(self, task_id: str) -> StoredScript | None:
        row = self._run("find_script", task_id=task_id).fetchone()
        return None if row is None else script_from(self._sealing, task_id, *row)

    def script_calls(self, task_id: str, after: int, limit: int) -> tuple[ScriptCall, ...]:
        found = self._run("calls_of_script", script_id=task_id, number=after, limit=limit)
        return tuple(
            ScriptCall(number, line, delivered, task_from(self._sealing, row))
            for number, line, delivered, *row in found
        )

    def asking_calls(self, task_id: str) -> tuple[str, ...]:
        return tuple(row[0] for row in self._run("asking_calls", script_id=task_id))

    def due(self, now_ms: int, limit: int) -> Due:
        statements = ("due_approvals", "due_executions", "due_holds")
        return Due(*(tuple(row[0] for row in self._run(name, now_ms=now_ms, limit=limit)) for name in statements))

    def claimed(self, ours: Ownership, after: str, limit: int) -> tuple[Task, ...]:
        ids = json.dumps(self.claimed_ids(ours, after, limit))
        found = self._run("our_tasks", ids=ids, owner=ours.owner, fence=ours.fence)
        return self._tasks(found)

    def claimed_ids(self, ours: Ownership, after: str, limit: int) -> list[str]:
        found = self._run("claimed_ids", after=after, limit=limit, owner=ours.owner, fence=ours.fence)
        return [row[0] for row in found]

    def expiring(self, now_ms: int, limit: int) -> list[tuple[Task, str | None]]:
        """Return expired tasks of this gateway's share, each with the name of its long result."""
        found = self._run("expiring_tasks", now_ms=now_ms, limit=limit)
        return readable("tasks", found, lambda row: (task_from(self._sealing, row[:3]), row[3]))

    def is_current(self, ours: Ownership) -> bool:
        """Return whether no other owner has taken over since the store was opened."""
        found = self._run("find_owner", owner=ours.owner).fetchone()
        return found is not None and found[0] == ours.fence and not found[1]

    def spill_names(self) -> set[str]:
        return {row[0] for row in self._run("spill_names")}

    def held(self, approval_id: str) -> HeldCall | None:
        row = self._run("find_approval", id=approval_id).fetchone()
        return None if row is None else held_from(self._sealing, row)

    def held_page(self, *, open_only: bool, after: str | None, limit: int, tenant: str | None) -> HeldPage:
        query = "page_of_open_approvals" if open_only else "page_of_approvals"
        asked_ms, last = _held_cursor(after)
        begins = None if tenant is None else principal_name(tenant, "")
        found = self._run(query, asked_ms=asked_ms, id=last, limit=limit + 1, begins=begins).fetchall()
        held = tuple(readable("approvals", found[:limit], partial(held_from, self._sealing)))
        more = bool(held) and len(found) > limit
        return HeldPage(held, f"{held[-1].approval.asked_at_ms}:{held[-1].approval.id}" if more else None)

    def pending_count(self, caller: str | None, tenant: str | None) -> int:
        if tenant is not None:
            return int(self._run("count_pending_of_tenant", tenant=tenant).fetchone()[0])
        if caller is None:
            return int(self._run("count_pending").fetchone()[0])
        return int(self._run("count_pending_of_caller", caller=caller).fetchone()[0])

    def last_approved(self, server: str, tool: str, before: str | None) -> HeldCall | None:
        row = self._run("last_given_approval", server=server, tool=tool, before=before).fetchone()
        return None if row is None else held_from(self._sealing, row)

    def grants(self, now_ms: int, *, all_of_them: bool) -> tuple[Grant, ...]:
        found = self._run("all_grants") if all_of_them else self._run("live_grants", now_ms=now_ms)
        return tuple(readable("grants", found, lambda row: grant_from(row[0])))

    def pins(self, server: str | None) -> tuple[StoredPin, ...]:
        return tuple(readable_pin(*row) for row in self._run("all_pins", server=server))

    def accepted_definitions(self, server: str, tool: str) -> tuple[StoredPin, ...]:
        found = self._run("accepted_definitions", server=server, tool=tool)
        return tuple(readable("earlier_pins", found, lambda row: pin_from(*row), lambda row: f"{row[0]}/{row[1]}"))

    def receipts(self, limit: int) -> tuple[StoredReceipt, ...]:
        return tuple(StoredReceipt(*row) for row in self._run("all_receipts", limit=limit))

    def events_after(self, caller: str, number: int, limit: int | None, now_ms: int) -> EventPage:
        settings = self._settings
        last, _ = self.stream(caller)
        floor = max(number, last - settings.max_events)
        limit = settings.max_events if limit is None else limit
        found = self._run(
            "events_after", caller=caller, number=floor, limit=limit, since_ms=now_ms - settings.events_for_ms
        )
        events = tuple(readable("events", found, partial(event_from, self._sealing), lambda row: str(row[1])))
        first_kept = events[0].number if events else last + 1
        return EventPage(events, lost=max(0, first_kept - number - 1), last=last)

    def stream(self, caller: str) -> tuple[int, int]:
        """Return the last number assigned, and the last one delivered."""
        row = self._run("find_stream", caller=caller).fetchone()
        return (0, 0) if row is None else (row[0], row[1])

    def streams_of(self, caller: str) -> tuple[str, ...]:
        first, beyond = streams_between(caller)
        return tuple(row[0] for row in self._run("streams_of_caller", caller=caller, first=first, beyond=beyond))

    def catalogs(self) -> tuple[KeptCatalog, ...]:
        return tuple(KeptCatalog(*row) for row in self._run("kept_catalogs"))

    def identity_record(self, kind: str, name: str) -> IdentityRecord | None:
        row = self._run("find_identity_record", kind=kind, name=name).fetchone()
        return None if row is None else IdentityRecord(*row)

    def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]:
        return tuple(IdentityRecord(*row) for row in self._run("identity_records", kind=kind))

    def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]:
        return tuple(IdentityRecord(*row) for row in self._run("identity_records_of", principal=principal))

    def tasks_of(self, principal: str, after: str, limit: int) -> tuple[str, ...]:
        values = {"principal": principal, "after": after, "finished_only": False}
        found = self._run("tasks_of_principal", limit=limit, **values)
        return tuple(row[0] for row in found)

    def scopes(self) -> tuple[KeptScope, ...]:
        return tuple(KeptScope(*row) for row in self._run("kept_scopes"))

    def rows_of(self, name: str, /, **values: Any) -> list[Any]:
        """Return the rows of a statement that only one adapter has."""
        return self._run(name, **values).fetchall()

    def revisions(self) -> dict[str, int]:
        return dict(self._run("revisions").fetchall())

    def recorded_calls(self, since_ms: int, after: int, limit: int) -> list[tuple[int, RecordedCall]]:
        found = self._run("recorded_calls_after", number=after, since_ms=since_ms, limit=limit).fetchall()
        return readable(
            "recorded_calls",
            found,
            lambda row: (row[0], decode_recorded_call(self._sealing, row[1])),
            lambda row: str(row[0]),
        )

    def last_recorded_call(self) -> int:
        return int(self._run("last_recorded_call").fetchone()[0])

    def usage_between(self, first: str, last: str, limit: int) -> list[tuple[Any, ...]]:
        return self._run("usage_between", first=first, last=last, limit=limit).fetchall()

    def history_page(self, filters: HistoryFilter, before: int | None, limit: int) -> HistoryPage:
        name, values = history_query(filters, before, limit + 1)
        found = self._run(name, **values).fetchall()
        rows = tuple(readable("history", found[:limit], history_row_from, lambda row: str(row[0])))
        return HistoryPage(rows, rows[-1].number if rows and len(found) > limit else None)

    def history_row(self, row_id: str) -> HistoryRow | None:
        number = number_of(row_id)
        if number is None:
            found = self._run("history_row_of_task", task_id=row_id).fetchone()
        else:
            found = self._run("history_row_numbered", number=number).fetchone()
        return None if found is None else history_row_from(found)

    def history_counts(
        self, subject: ChartSubject, period: Period, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[CountRow, ...]:
        values: dict[str, Any] = {"dimension": subject.dimension.value, "name": subject.name, "tenant": subject.tenant}
        values |= {"period": period.value, "since_ms": since_ms, "until_ms": until_ms, "bucket_ms": bucket_ms}
        found = self._run("history_counts_of", **values)
        return tuple(map(CountRow._make, found))

    def history_totals(
        self, dimension: Dimension, tenant: str | None, period: Period, since_ms: int, until_ms: int
    ) -> tuple[CountRow, ...]:
        values = {"dimension": dimension.value, "tenant": tenant, "since_ms": since_ms, "until_ms": until_ms}
        found = self._run("history_totals", period=period.value, **values)
        return tuple(map(CountRow._make, found))

    def history_courses(
        self,
        dimension: Dimension,
        tenant: str | None,
        period: Period,
        names: Sequence[str],
        *,
        since_ms: int,
        until_ms: int,
        bucket_ms: int,
    ) -> tuple[CountRow, ...]:
        values = {"dimension": dimension.value, "tenant": tenant, "since_ms": since_ms, "until_ms": until_ms}
        listed = msgspec.json.encode(list(names)).decode()
        found = self._run("history_courses", period=period.value, names=listed, bucket_ms=bucket_ms, **values)
        return tuple(map(CountRow._make, found))

    def history_latencies(
        self,
        dimension: Dimension,
        tenant: str | None,
        period: Period,
        names: Sequence[str],
        *,
        since_ms: int,
        until_ms: int,
    ) -> tuple[CountRow, ...]:
        values = {"dimension": dimension.value, "tenant": tenant, "since_ms": since_ms, "until_ms": until_ms}
        listed = msgspec.json.encode(list(names)).decode()
        found = self._run("history_latencies", period=period.value, names=listed, **values)
        return tuple(map(CountRow._make, found))

    def history_names(self, dimension: Dimension, tenant: str | None, begins: str, limit: int) -> tuple[str, ...]:
        values = {"dimension": dimension.value, "tenant": tenant, "begins": begins, "beyond": begins + "\U0010ffff"}
        return tuple(row[0] for row in self._run("history_names", limit=limit, **values))

    def history_content(self, task_id: str) -> bytes | None:
        row = self._run("find_history_content", task_id=task_id).fetchone()
        return None if row is None else self._sealing.open(bytes(row[0]), task_id)

    def history_size(self) -> dict[str, int]:
        return dict(self._run("history_size").fetchall())

    def audit_head(self) -> tuple[int, str]:
        found = self._run("last_audit").fetchone()
        return (0, GENESIS) if found is None else (found[0], found[1])

    def audit_rows(self, after: int, limit: int) -> tuple[Row, ...]:
        return tuple(audit_from(*row) for row in self._run("audit_after", number=after, limit=limit))

    def audit_times(self, after: int, limit: int) -> tuple[AuditTime, ...]:
        return tuple(audit_time(*row) for row in self._run("audit_after", number=after, limit=limit))


def _held_cursor(after: str | None) -> tuple[int, str]:
    """Raises ValueError for an invalid cursor."""
    if after is None:
        return -1, ""
    asked_ms, _, last = after.partition(":")
    if not (asked_ms.isascii() and asked_ms.isdigit()) or len(asked_ms) > 15:
        raise ValueError("invalid cursor")
    return int(asked_ms), last


def _patterns(text: str | None) -> dict[str, str | None]:
    """The values of a search for the parts of a text in names: patterns of LIKE. The longest is first: the fewest match it."""
    # As the databases do it: ASCII letters only are made lower case.
    parts = [] if text is None else text.encode().lower().decode().split()
    longest = sorted(dict.fromkeys(parts), key=len, reverse=True)[: len(_PARTS)]
    patterns = ["%" + re.sub(r"([%_\\])", r"\\\1", part) + "%" for part in longest]
    if text is not None and (not parts or any(len(part) > _LONGEST_PART or "\0" in part for part in parts)):
        patterns = [""]  # matches no name
    return dict(zip_longest(_PARTS, patterns))


def _first_id(ms: int) -> str:
    """Return the smallest id of a task created in this millisecond."""
    return new_task_id(min(max(ms, 0), (1 << 48) - 1), bytes(RANDOM_BYTES))
