"""One write transaction as the operations see it: the database, the time, in whose name, and what every change
appends.

Made by the writer thread, one per group commit. The time is read once, so everything in it happened at the same
moment. Every change of a task goes through `put_new` or `move`, which write the event and the audit row beside it.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import replace as with_changes
from typing import Any

from taskgate.core.audit import GENESIS, Entry
from taskgate.core.governance.digest import digest_of_bytes
from taskgate.core.tasks import expiry, ids
from taskgate.core.tasks.audit_entry import entry_of
from taskgate.core.tasks.events import event_data, event_of
from taskgate.core.tasks.task import Task
from taskgate.ports.event_outbox import StoredEvent
from taskgate.ports.store_answers import Ownership, StaleOwner, UnknownTask
from taskgate.store.sqlite import rows
from taskgate.store.sqlite.kept_events import KeptEvents
from taskgate.store.sqlite.named_queries import SQL

_TRIM_EVERY = 64


class Transaction:
    """What an operation may do. Lives only inside one BEGIN and COMMIT."""

    def __init__(
        self, connection: sqlite3.Connection, now_ms: int, ownership: Ownership, kept_events: KeptEvents
    ) -> None:
        self._connection = connection
        self.kept_events = kept_events
        self.now_ms = now_ms
        self.ownership = ownership
        self._audit_head: tuple[int, str] | None = None
        self._stale: bool | None = None

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        return self._connection.execute(SQL[name], values)

    def is_stale(self) -> bool:
        """Whether another owner has taken over since we started."""
        if self._stale is None:
            found = self.run("find_owner", owner=self.ownership.owner).fetchone()
            self._stale = found is None or found[0] != self.ownership.fence or bool(found[1])
        return self._stale

    @property
    def audit_number(self) -> int:
        """The number of the last audit row, if this transaction has written one; else 0."""
        return self._audit_head[0] if self._audit_head is not None else 0

    def forget_head(self) -> None:
        """After a rollback to a savepoint the remembered end of the audit chain may never have been written."""
        self._audit_head = None

    def load(self, task_id: str) -> Task | None:
        row = self.run("find_task", id=task_id).fetchone()
        return None if row is None else rows.task_from(*row)

    def load_ours(self, task_id: str) -> Task | UnknownTask | StaleOwner:
        """The task, if it is still kept and if its fence is ours."""
        task = self.load(task_id)
        if task is None or expiry.is_gone(task, self.now_ms):
            return UnknownTask(task_id)
        if task.fence != self.ownership.fence or task.owner != self.ownership.owner:
            return StaleOwner(self.ownership)
        return task

    def put_new(self, task: Task, audit: Entry | None) -> StoredEvent | None:
        """Write a new task and tell of it; None if its id is taken."""
        if self.run("insert_task", **rows.task_columns(task)).rowcount != 1:
            return None
        self.run("insert_call", task_id=task.id, arguments=task.arguments, params_rest=task.params_rest)
        if task.last_attempt is not None:
            self.run("put_attempt", **rows.attempt_columns(task.id, task.last_attempt))
        return self._tell(None, task, audit)

    def move(self, before: Task, after: Task, audit: Entry | None, spill: str | None = None) -> StoredEvent | None:
        """Write the next value of a task. The caller has checked that the fence is ours."""
        if after.outcome is not None and before.outcome is None:
            body = None if spill is not None else after.outcome.body
            self.run("insert_outcome", task_id=after.id, body=body, spill=spill)
        changed = self.run("update_task", **rows.task_columns(after)).rowcount
        if changed != 1:
            raise RuntimeError(f"task {after.id} changed under our hands")
        if after.last_attempt is not None and after.last_attempt != before.last_attempt:
            self.run("put_attempt", **rows.attempt_columns(after.id, after.last_attempt))
        if after.state.is_terminal:
            self.run("withdraw_questions", task_id=after.id)
        return self._tell(before, after, audit)

    def _tell(self, before: Task | None, after: Task, audit: Entry | None) -> StoredEvent | None:
        entry = audit if audit is not None else entry_of(before, after, self.now_ms)
        if entry is not None:
            self.record(entry)
        kind = event_of(before, after)
        return None if kind is None else self.tell(after.caller, kind.value, after.server, event_data(after))

    def tell(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        """Append an event to a caller's stream."""
        number: int = self.run("next_event_number", caller=caller, now_ms=self.now_ms).fetchone()[0]
        event_id = ids.ulid(self.now_ms, secrets.token_bytes(ids.RANDOM_BYTES))
        event = StoredEvent(number, event_id, caller, kind, server, self.now_ms, data)
        self.run("insert_event", **rows.event_columns(event))
        if number % _TRIM_EVERY == 0:
            self.run("drop_old_events_of_caller", caller=caller, number=number - self.kept_events.most)
        return event

    def record(self, entry: Entry) -> None:
        """Append to the audit chain, stamped with the store's time if it has none."""
        if entry.at_ms == 0:
            entry = with_changes(entry, at_ms=self.now_ms)
        if self._audit_head is None:
            self._audit_head = self.run("last_audit").fetchone() or (0, GENESIS)
        number, previous = self._audit_head
        content = rows.audit_content(number + 1, previous, entry)
        digest = digest_of_bytes(content)
        self.run("insert_audit", number=number + 1, hash=digest, content=content)
        self._audit_head = (number + 1, digest)
