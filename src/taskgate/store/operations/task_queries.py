"""Reads of tasks, their results, attempts and questions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from taskgate.core.ids import RANDOM_BYTES, new_task_id
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.core.tasks.transition import apply
from taskgate.ports.store_answers import TaskFilter, TaskPage, TaskQuestion
from taskgate.store.operation import LargeValue, Query
from taskgate.store.operations.task_rows import attempt_from, question_from, task_from
from taskgate.store.operations.tasks import KEY_VALID_MS, NoteProgress
from taskgate.store.reader import Reader
from taskgate.telemetry.damaged_rows import readable

_PARTS: Final = ("part_1", "part_2", "part_3", "part_4")
"""Parameters of the statements that search tasks for the parts of a text."""
_LONGEST_PART: Final = 8192
"""No name is longer, and SQLite refuses patterns of more than 50,000 bytes."""


class FindTask(Query[Task | None], frozen=True):
    """The task, or None if it is unknown or expired; with `include_expired`, an expired task that is not deleted yet is returned
    too. The bytes of its result are read by `ResultBytes`."""

    task_id: str
    include_expired: bool = False

    def run(self, reader: Reader) -> Task | None:
        row = reader.run("find_task", id=self.task_id).fetchone()
        if row is None:
            return None
        task = task_from(reader.sealing, row)
        if is_expired(task, reader.now_ms) and not self.include_expired:
            return None
        waiting = reader.state.waiting_for(NoteProgress, self.task_id)
        if waiting is None:
            return task
        shown = apply(task, waiting.noted, max(reader.now_ms, task.updated_ms))
        return replace(shown, revision=task.revision) if isinstance(shown, Task) else task


class ResultBytes(Query[bytes | None], frozen=True):
    """The exact bytes of a finished task's result or error object."""

    task_id: str

    def run(self, reader: Reader) -> bytes | LargeValue | None:
        row = reader.run("find_outcome", task_id=self.task_id).fetchone()
        if row is None or (row[2] is not None and row[2] <= reader.now_ms):
            return None
        body, spill, _ = row
        if spill is not None:
            return LargeValue(spill, self.task_id)
        return None if body is None else reader.sealing.open(body, self.task_id)


class TasksPage(Query[TaskPage], frozen=True):
    """One caller's tasks, newest first; None, for operators, returns those of all callers.

    `include_expired` includes those whose results have expired. Arguments of more than `arguments_up_to` bytes are left empty.
    """

    caller: str | None
    after: str | None = None
    limit: int = 50
    server: str | None = None
    states: frozenset[TaskState] | None = None
    include_expired: bool = False
    arguments_up_to: int = 0

    def run(self, reader: Reader) -> TaskPage:
        values: dict[str, Any] = {
            "after": self.after,
            "limit": self.limit + 1,
            "server": self.server,
            "states": _listed(self.states),
            "now_ms": reader.now_ms,
            "include_expired": self.include_expired,
            "arguments_up_to": self.arguments_up_to,
        }
        if self.caller is None:
            found = reader.run("page_of_all_tasks", **values).fetchall()
        else:
            found = reader.run("page_of_tasks", caller=self.caller, **values).fetchall()
        return _page(reader, found, self.limit)


class FindTasks(Query[TaskPage], frozen=True):
    """Matching tasks of all callers, newest first. Scans rows: for searches by people, not for calls."""

    # A search with few matches reads all open tasks.
    is_search: ClassVar[bool] = True

    filters: TaskFilter
    after: str | None = None
    limit: int = 50

    def run(self, reader: Reader) -> TaskPage:
        filters = self.filters
        only_open = filters.states is not None and filters.states <= OPEN
        found = reader.run(
            "find_open_tasks" if only_open else "find_tasks",
            before=min(self.after or "~", _first_id(filters.until_ms) if filters.until_ms is not None else "~"),
            first=_first_id(filters.since_ms or 0),
            principal=filters.principal,
            tenant=filters.tenant,
            server=filters.server,
            scope=filters.scope,
            tool=filters.tool,
            states=_listed(filters.states),
            **_patterns(filters.text),
            now_ms=reader.now_ms,
            limit=self.limit + 1,
        ).fetchall()
        return _page(reader, found, self.limit)


class EndedBadly(Query[tuple[Task, ...]], frozen=True):
    """Tasks that ended without a result since then, latest first. Only principal and tenant of `filters` are used."""

    filters: TaskFilter
    since_ms: int
    limit: int

    def run(self, reader: Reader) -> tuple[Task, ...]:
        only = {"principal": self.filters.principal, "tenant": self.filters.tenant}
        found = reader.run("tasks_ended_badly", since_ms=self.since_ms, now_ms=reader.now_ms, limit=self.limit, **only)
        return readable_tasks(reader, found)


class TaskOfKey(Query[str | None], frozen=True):
    """The id of the task with this idempotency key, while the key is valid."""

    principal: str
    key: str

    def run(self, reader: Reader) -> str | None:
        row = reader.run("find_key", principal=self.principal, key=self.key).fetchone()
        return row[1] if row is not None and row[2] > reader.now_ms - KEY_VALID_MS else None


class OpenTasks(Query[int], frozen=True):
    """The number of open tasks of all callers."""

    # Every poll reads it for the poll interval, for which a value of the last second is accurate enough.
    reused_for_s: ClassVar[float] = 1.0

    def run(self, reader: Reader) -> int:
        return int(reader.run("count_open").fetchone()[0])


class QuestionsOf(Query[tuple[TaskQuestion, ...]], frozen=True):
    """The open questions of a task in order; with `answered`, the answered ones instead."""

    task_id: str
    answered: bool = False

    def run(self, reader: Reader) -> tuple[TaskQuestion, ...]:
        found = reader.run("questions_of_task", task_id=self.task_id, state="answered" if self.answered else "open")
        return tuple(question_from(reader.sealing, self.task_id, *row) for row in found)


class AttemptsOf(Query[tuple[Attempt, ...]], frozen=True):
    """The last attempts to send the call of a task, oldest first."""

    task_id: str
    limit: int

    def run(self, reader: Reader) -> tuple[Attempt, ...]:
        found = reader.run("attempts_of_task", task_id=self.task_id, limit=self.limit)
        return tuple(reversed([attempt_from(*row) for row in found]))


def readable_tasks(reader: Reader, rows: Iterable[Sequence[Any]]) -> tuple[Task, ...]:
    return tuple(readable("tasks", rows, partial(task_from, reader.sealing)))


def _page(reader: Reader, found: Sequence[Sequence[Any]], limit: int) -> TaskPage:
    tasks = readable_tasks(reader, found[:limit])
    return TaskPage(tasks, tasks[-1].id if tasks and len(found) > limit else None)


def _listed(states: frozenset[TaskState] | None) -> str | None:
    return None if states is None else "," + ",".join(sorted(states)) + ","


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
