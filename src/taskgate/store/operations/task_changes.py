"""Read and write tasks in a transaction. Every change writes its event and its audit row with it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.task_audit import audit_entry_of
from taskgate.core.tasks.task_events import event_data, event_of
from taskgate.ports.store_answers import IdTaken, StaleOwner, StoredEvent, UnknownTask
from taskgate.ports.topics import TASKS
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.events import AppendEvent
from taskgate.store.operations.journal import record_task
from taskgate.store.operations.task_rows import attempt_columns, task_columns, task_from
from taskgate.store.transaction import Transaction


def load_task(tx: Transaction, task_id: str) -> Task | None:
    row = tx.task_row(task_id)
    return None if row is None else task_from(tx.sealing, row)


def load_our_task(tx: Transaction, task_id: str) -> Task | UnknownTask | StaleOwner:
    """Return the task if it is retained and this gateway owns it."""
    task = load_task(tx, task_id)
    if task is None or is_expired(task, tx.now_ms):
        return UnknownTask(task_id)
    if task.fence != tx.ownership.fence or task.owner != tx.ownership.owner:
        return StaleOwner(tx.ownership)
    return task


def load_any_task(tx: Transaction, task_id: str) -> Task | UnknownTask:
    """Return the task if it is retained, whichever gateway owns it: for changes that any gateway may write."""
    task = load_task(tx, task_id)
    return UnknownTask(task_id) if task is None or is_expired(task, tx.now_ms) else task


def put_new_task(tx: Transaction, task: Task, audit: AuditEntry | None) -> StoredEvent | IdTaken | None:
    """Write a new task with its event; return the event, or None if the task has no events."""
    if not tx.changes_one("insert_task", **task_columns(tx.sealing, task)):
        return IdTaken(task.id)
    call, rest = tx.sealing.seal(task.arguments, task.id), tx.sealing.seal(task.params_rest, task.id)
    tx.put("insert_call", task_id=task.id, arguments=call, params_rest=rest)
    if task.last_attempt is not None:
        tx.queue("put_attempt", **attempt_columns(task.id, task.last_attempt))
    return _append_event_and_audit(tx, None, task, audit)


def move_task(
    tx: Transaction, before: Task, after: Task, audit: AuditEntry | None, spill: str | None = None
) -> StoredEvent | None:
    """Write the next value of a task. The caller has checked the ownership; owner and fence do not change."""
    tx.announce(TASKS, after.id)
    if after.outcome is not None and before.outcome is None:
        body = None if spill is not None else after.outcome.body
        body = None if body is None else tx.sealing.seal(body, after.id)
        tx.put("insert_outcome", task_id=after.id, body=body, spill=spill)
    if not tx.changes_one("update_task", **task_columns(tx.sealing, after)):
        raise RuntimeError(f"task {after.id} was changed by another writer")
    if after.last_attempt is not None and after.last_attempt != before.last_attempt:
        tx.queue("put_attempt", **attempt_columns(after.id, after.last_attempt))
    if after.state.is_terminal and before.question_keys:
        tx.run("withdraw_questions", task_id=after.id)
    return _append_event_and_audit(tx, before, after, audit)


def end_tasks(tx: Transaction, moves: Sequence[tuple[Task, Task]]) -> tuple[Task, ...]:
    """Write the final states of many tasks of this gateway with few statements. None of them waits for an approval or has a long
    result."""
    for _, after in moves:
        tx.announce(TASKS, after.id)
        body = None if after.outcome is None or after.outcome.body is None else after.outcome.body
        sealed = None if body is None else tx.sealing.seal(body, after.id)
        tx.put("insert_outcome", task_id=after.id, body=sealed, spill=None)
    if not tx.change_each("update_task", [task_columns(tx.sealing, after) for _, after in moves]):
        raise RuntimeError("a task changed although it was locked")
    with_questions = [after.id for before, after in moves if before.question_keys]
    if with_questions:
        tx.run("withdraw_questions_of", ids=json.dumps(with_questions))
    for before, after in moves:
        _append_event_and_audit(tx, before, after, None)
    return tuple(after for _, after in moves)


def _append_event_and_audit(
    tx: Transaction, before: Task | None, after: Task, audit: AuditEntry | None
) -> StoredEvent | None:
    entry = audit if audit is not None else audit_entry_of(before, after, tx.now_ms)
    if entry is not None:
        if audit is None and after.outcome is not None and tx.sealing.seals:
            # The server's final message is part of the result; audit rows are not encrypted.
            entry = replace(entry, reason="")
        RecordAudit(entry).run(tx)
    record_task(tx, before, after)
    # A script is informed of its calls by their tasks. Its caller gets events of the script only.
    kind = None if after.parent else event_of(before, after)
    if kind is None:
        return None
    return AppendEvent(after.conversation_key.stream, str(kind), after.server, event_data(after)).run(tx)
