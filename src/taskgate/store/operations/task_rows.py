"""Tasks as rows: found, written anew, moved on. Every change writes its event and its audit row beside it."""

from __future__ import annotations

from msgspec.structs import replace

from taskgate.core.audit import AuditEntry
from taskgate.core.events import entry_of, event_data, event_of
from taskgate.core.tasks.recovery import is_gone
from taskgate.core.tasks.task import Task
from taskgate.ports.replicas import TASKS
from taskgate.ports.store_answers import StaleOwner, StoredEvent, UnknownTask
from taskgate.store.operations import rows
from taskgate.store.operations.audit import record
from taskgate.store.operations.events import tell
from taskgate.store.operations.transaction import Transaction


def load(tx: Transaction, task_id: str) -> Task | None:
    row = tx.run("find_task", id=task_id).fetchone()
    return None if row is None else rows.task_from(tx.sealing, *row)


def load_ours(tx: Transaction, task_id: str) -> Task | UnknownTask | StaleOwner:
    """The task, if it is still kept and if its fence is ours."""
    task = load(tx, task_id)
    if task is None or is_gone(task, tx.now_ms):
        return UnknownTask(task_id)
    if task.fence != tx.ownership.fence or task.owner != tx.ownership.owner:
        return StaleOwner(tx.ownership)
    return task


def load_anybodys(tx: Transaction, task_id: str) -> Task | UnknownTask:
    """The task, if it is still kept, whoever runs it. For what any gateway may write; the owner hears of it."""
    task = load(tx, task_id)
    return UnknownTask(task_id) if task is None or is_gone(task, tx.now_ms) else task


def put_new(tx: Transaction, task: Task, audit: AuditEntry | None) -> StoredEvent | None:
    """Write a new task and tell of it; None if its id is taken."""
    if not tx.changes_one("insert_task", **rows.task_columns(tx.sealing, task)):
        return None
    call, rest = tx.sealing.seal(task.arguments, task.id), tx.sealing.seal(task.params_rest, task.id)
    tx.put("insert_call", task_id=task.id, arguments=call, params_rest=rest)
    if task.last_attempt is not None:
        tx.run("put_attempt", **rows.attempt_columns(task.id, task.last_attempt))
    return _tell(tx, None, task, audit)


def move(
    tx: Transaction, before: Task, after: Task, audit: AuditEntry | None, spill: str | None = None
) -> StoredEvent | None:
    """Write the next value of a task. The caller has checked that we may; owner and fence stay as they are."""
    tx.announce(TASKS, after.id)
    if after.outcome is not None and before.outcome is None:
        body = None if spill is not None else after.outcome.body
        body = None if body is None else tx.sealing.seal(body, after.id)
        tx.run("insert_outcome", task_id=after.id, body=body, spill=spill)
    if not tx.changes_one("update_task", **rows.task_columns(tx.sealing, after)):
        raise RuntimeError(f"task {after.id} changed under our hands")
    if after.last_attempt is not None and after.last_attempt != before.last_attempt:
        tx.run("put_attempt", **rows.attempt_columns(after.id, after.last_attempt))
    if after.state.is_terminal:
        tx.run("withdraw_questions", task_id=after.id)
    return _tell(tx, before, after, audit)


def _tell(tx: Transaction, before: Task | None, after: Task, audit: AuditEntry | None) -> StoredEvent | None:
    entry = audit if audit is not None else entry_of(before, after, tx.now_ms)
    if entry is not None:
        if audit is None and after.outcome is not None and tx.sealing.seals:
            # The last word of its server belongs to the result; audit rows are not sealed.
            entry = replace(entry, reason="")
        record(tx, entry)
    kind = event_of(before, after)
    return None if kind is None else tell(tx, after.asked_in.stream, kind.value, after.server, event_data(after))
