"""Between values and rows: tasks, events and audit entries as they are written, and how values are read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import FORMAT, GENESIS, AuditEntry, Row, from_export, row_bytes
from taskgate.core.catalog.pin import Pin
from taskgate.core.digest import digest_of_bytes
from taskgate.core.governance.approval import Approval, State
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.core.tasks.deadlines import is_expired, kept_until_ms
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.core.tasks.task_audit import audit_entry_of
from taskgate.core.tasks.task_events import event_data, event_of
from taskgate.ports.approval_store import HeldCall, StoredPin
from taskgate.ports.store import AuditTime
from taskgate.ports.store_answers import StaleOwner, StoredEvent, TaskQuestion, UnknownTask
from taskgate.ports.topics import TASKS
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_read_task: Final = msgspec.json.Decoder(Task).decode
_read_approval: Final = msgspec.json.Decoder(Approval).decode
_read_recorded: Final = msgspec.json.Decoder(RecordedCall).decode
_read_grant: Final = msgspec.json.Decoder(Grant).decode
_WAITING: Final = (TaskState.AWAITING_APPROVAL, TaskState.APPROVED)
_OUT: Final = (TaskState.RUNNING, TaskState.INPUT_REQUIRED)


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task's server said: the part of `doc` that is sealed."""

    status_message: str | None = None
    request_state: bytes | None = None


_read_said: Final = msgspec.json.Decoder(_Said).decode


def _task_doc(sealing: Sealing, doc: Task) -> bytes:
    if not sealing.seals or (doc.status_message is None and doc.request_state is None):
        return _encode(doc)
    said = _encode(_Said(doc.status_message, doc.request_state))
    return sealing.seal_into(_encode(replace(doc, status_message=None, request_state=None)), said, doc.id)


def task_columns(sealing: Sealing, task: Task) -> dict[str, Any]:
    """Arguments and results have tables of their own, and owner and fence are columns: none of them is in `doc`."""
    outcome = task.outcome
    doc = replace(
        task,
        arguments=b"",
        params_rest=b"",
        outcome=None if outcome is None else replace(outcome, body=None),
        owner="",
        fence=0,
    )
    return {
        "id": task.id,
        "principal": task.principal,
        "caller": task.caller,
        "limited_as": task.limited_as or task.caller,
        "scope": task.scope,
        "server": task.server,
        "wire_name": task.wire_name,
        "state": task.state.value,
        "owner": task.owner,
        "fence": task.fence,
        "revision": task.revision,
        "needs_owner": int(not task.state.is_terminal or task.cancel_owed),
        "finished_ms": task.finished_ms,
        "keep_until_ms": kept_until_ms(task),
        "approval_due_ms": task.approval_deadline_ms if task.state in _WAITING else None,
        "execution_due_ms": task.execution_deadline_ms if task.state in _OUT else None,
        "doc": _task_doc(sealing, doc),
    }


def task_from(sealing: Sealing, row: Sequence[Any]) -> Task:
    """`row`: doc, owner and fence; then the arguments and the rest of the params, as far as they were asked for."""
    doc, owner, fence, arguments, params_rest = (*row, b"", b"")[:5]
    task = _read_task(doc)
    call, rest = sealing.open(arguments, task.id), sealing.open(params_rest, task.id)
    task = replace(task, owner=owner, fence=fence, arguments=call, params_rest=rest)
    sealed = sealing.open_in(doc, task.id)
    if sealed is None:
        return task
    said = _read_said(sealed)
    return replace(task, status_message=said.status_message, request_state=said.request_state)


def attempt_columns(task_id: str, attempt: Attempt) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "number": attempt.number,
        "fence": attempt.fence,
        "byte_hash": attempt.byte_hash,
        "upstream": attempt.upstream,
        "sent_at_ms": attempt.sent_at_ms,
        "state": attempt.state.value,
    }


def question_from(sealing: Sealing, task_id: str, *row: Any) -> TaskQuestion:
    question = TaskQuestion(*row)
    answer = None if question.answer is None else sealing.open(question.answer, task_id)
    return replace(question, request=sealing.open(question.request, task_id), answer=answer)


def question_columns(sealing: Sealing, task_id: str, question: TaskQuestion, now_ms: int) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "key": question.key,
        "server": question.server,
        "method": question.method,
        "request": sealing.seal(question.request, task_id),
        "asked_ms": now_ms,
        "expires_ms": question.expires_ms,
        "shown_as": question.shown_as,
    }


def approval_columns(sealing: Sealing, held: HeldCall) -> dict[str, Any]:
    approval = held.approval
    due = {State.OPEN: approval.binding.expires_at_ms, State.APPROVED: approval.valid_until_ms}
    return {
        "id": approval.id,
        "principal": approval.binding.principal,
        "task_id": held.task_id,
        "caller": held.caller,
        "server": approval.binding.server,
        "tool": approval.binding.tool,
        "state": approval.state.value,
        "asked_ms": approval.asked_at_ms,
        "due_ms": due.get(approval.state),
        "decided_ms": approval.decided_at_ms,
        "wire_name": held.wire_name,
        "arguments": sealing.seal(held.arguments, approval.id),
        "doc": _encode(approval),
    }


def approval_from(doc: bytes) -> Approval:
    return _read_approval(doc)


def held_from(sealing: Sealing, row: Sequence[Any]) -> HeldCall:
    doc, caller, wire_name, arguments, task_id = row
    approval = approval_from(doc)
    return HeldCall(approval, caller, wire_name, sealing.open(arguments, approval.id), task_id)


def event_columns(sealing: Sealing, event: StoredEvent) -> dict[str, Any]:
    return {
        "caller": event.caller,
        "number": event.number,
        "id": event.id,
        "kind": event.kind,
        "server": event.server,
        "at_ms": event.at_ms,
        "data": sealing.seal(_encode(event.data), event.id),
    }


def event_from(sealing: Sealing, row: Sequence[Any]) -> StoredEvent:
    number, event_id, caller, kind, server, at_ms, data = row
    said = msgspec.json.decode(sealing.open(data, event_id))
    return StoredEvent(number, event_id, caller, kind, server, at_ms, said)


def recorded_call(sealing: Sealing, call: RecordedCall) -> bytes:
    if not sealing.seals or call.arguments is None:
        return _encode(call)
    shown = _encode(replace(call, arguments=None))
    return sealing.seal_into(shown, call.arguments.encode(), call.principal)


def recorded_call_from(sealing: Sealing, body: bytes) -> RecordedCall:
    call = _read_recorded(body)
    arguments = sealing.open_in(body, call.principal)
    return call if arguments is None else replace(call, arguments=arguments.decode())


def grant_columns(grant: Grant) -> dict[str, Any]:
    revoked = int(grant.revoked_at_ms is not None)
    return {"id": grant.id, "until_ms": grant.until_ms, "revoked": revoked, "doc": _encode(grant)}


def grant_from(doc: bytes) -> Grant:
    return _read_grant(doc)


def pin_doc(pin: Pin) -> bytes:
    # The standard library keeps whole numbers of any size as they are.
    return json.dumps({"digest": pin.digest, "definition": pin.definition}, ensure_ascii=False).encode()


def pin_from(server: str, tool: str, doc: bytes, by: str, at_ms: int) -> StoredPin:
    said = json.loads(doc)
    return StoredPin(server, tool, Pin(said["digest"], said["definition"]), by, at_ms)


def audit_content(number: int, previous: str, entry: AuditEntry) -> bytes:
    """`core.audit.row_bytes`, ten times faster for entries without arguments, which is nearly all of them."""
    if entry.arguments is not None:
        return row_bytes(number, previous, entry)
    return _encode_sorted({"format": FORMAT, "number": number, "previous": previous, "entry": entry})


def audit_from(hash: str, content: bytes) -> Row:
    return from_export({**json.loads(content), "hash": hash})


class _TimeOfEntry(msgspec.Struct):
    at_ms: int


class _TimeOfRow(msgspec.Struct):
    number: int
    entry: _TimeOfEntry


_read_time: Final = msgspec.json.Decoder(_TimeOfRow).decode


def audit_time(hash: str, content: bytes) -> AuditTime:
    """Only when it was, at a fraction of the cost of reading all of a row."""
    read = _read_time(content)
    return AuditTime(read.number, hash, read.entry.at_ms)


# The audit chain: rows are appended in the transaction of what they tell about.


def record_audit(tx: Transaction, entry: AuditEntry) -> None:
    """Append to the chain, stamped with the store's time if the entry has none."""
    if entry.at_ms == 0:
        entry = replace(entry, at_ms=tx.now_ms)
    number, previous = tx.audit_head or tx.run("last_audit").fetchone() or (0, GENESIS)
    content = audit_content(number + 1, previous, entry)
    digest = digest_of_bytes(content)
    tx.put("insert_audit", number=number + 1, hash=digest, content=content)
    tx.audited(number + 1, digest)


# Events: numbered without gaps within one caller, in the order of the commits.

_TRIM_EVERY: Final = 64


def tell_event(tx: Transaction, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
    """Append an event to a caller's stream."""
    number = tx.next_event_number(caller)
    event_id = ulid(tx.now_ms, tx.random_bytes(RANDOM_BYTES))
    event = StoredEvent(number, event_id, caller, kind, server, tx.now_ms, data)
    tx.put("insert_event", **event_columns(tx.sealing, event))
    if number % _TRIM_EVERY == 0:
        tx.queue("drop_old_events_of_caller", caller=caller, number=number - tx.kept_events.most)
    return event


def move_cursor(tx: Transaction, caller: str, number: int) -> None:
    """Remember up to where a caller was handed its events. Never moves back."""
    tx.run("move_cursor", caller=caller, number=number, now_ms=tx.now_ms)


# Tasks as rows: found, written anew, moved on. Every change writes its event and its audit row beside it.


def load_task(tx: Transaction, task_id: str) -> Task | None:
    row = tx.task_row(task_id)
    return None if row is None else task_from(tx.sealing, row)


def load_our_task(tx: Transaction, task_id: str) -> Task | UnknownTask | StaleOwner:
    """The task, if it is still kept and if its fence is ours."""
    task = load_task(tx, task_id)
    if task is None or is_expired(task, tx.now_ms):
        return UnknownTask(task_id)
    if task.fence != tx.ownership.fence or task.owner != tx.ownership.owner:
        return StaleOwner(tx.ownership)
    return task


def load_anybodys_task(tx: Transaction, task_id: str) -> Task | UnknownTask:
    """The task, if it is still kept, whoever runs it. For what any gateway may write; the owner hears of it."""
    task = load_task(tx, task_id)
    return UnknownTask(task_id) if task is None or is_expired(task, tx.now_ms) else task


def put_new_task(tx: Transaction, task: Task, audit: AuditEntry | None) -> StoredEvent | None:
    """Write a new task and tell of it; None if its id is taken."""
    if not tx.changes_one("insert_task", **task_columns(tx.sealing, task)):
        return None
    call, rest = tx.sealing.seal(task.arguments, task.id), tx.sealing.seal(task.params_rest, task.id)
    tx.put("insert_call", task_id=task.id, arguments=call, params_rest=rest)
    if task.last_attempt is not None:
        tx.queue("put_attempt", **attempt_columns(task.id, task.last_attempt))
    return _tell_change(tx, None, task, audit)


def move_task(
    tx: Transaction, before: Task, after: Task, audit: AuditEntry | None, spill: str | None = None
) -> StoredEvent | None:
    """Write the next value of a task. The caller has checked that we may; owner and fence stay as they are."""
    tx.announce(TASKS, after.id)
    if after.outcome is not None and before.outcome is None:
        body = None if spill is not None else after.outcome.body
        body = None if body is None else tx.sealing.seal(body, after.id)
        tx.put("insert_outcome", task_id=after.id, body=body, spill=spill)
    if not tx.changes_one("update_task", **task_columns(tx.sealing, after)):
        raise RuntimeError(f"task {after.id} changed under our hands")
    if after.last_attempt is not None and after.last_attempt != before.last_attempt:
        tx.queue("put_attempt", **attempt_columns(after.id, after.last_attempt))
    if after.state.is_terminal and before.question_keys:
        tx.run("withdraw_questions", task_id=after.id)
    return _tell_change(tx, before, after, audit)


def end_tasks(tx: Transaction, moves: Sequence[tuple[Task, Task]]) -> tuple[Task, ...]:
    """Write the ends of many tasks of ours with few statements. None of them waits for an approval or has a long result."""
    for _, after in moves:
        tx.announce(TASKS, after.id)
        body = None if after.outcome is None or after.outcome.body is None else after.outcome.body
        sealed = None if body is None else tx.sealing.seal(body, after.id)
        tx.put("insert_outcome", task_id=after.id, body=sealed, spill=None)
    if not tx.change_each("update_task", [task_columns(tx.sealing, after) for _, after in moves]):
        raise RuntimeError("a task changed although it was locked")
    asked = [after.id for before, after in moves if before.question_keys]
    if asked:
        tx.run("withdraw_questions_of", ids=json.dumps(asked))
    for before, after in moves:
        _tell_change(tx, before, after, None)
    return tuple(after for _, after in moves)


def _tell_change(tx: Transaction, before: Task | None, after: Task, audit: AuditEntry | None) -> StoredEvent | None:
    entry = audit if audit is not None else audit_entry_of(before, after, tx.now_ms)
    if entry is not None:
        if audit is None and after.outcome is not None and tx.sealing.seals:
            # The last word of its server belongs to the result; audit rows are not sealed.
            entry = replace(entry, reason="")
        record_audit(tx, entry)
    kind = event_of(before, after)
    return (
        None
        if kind is None
        else tell_event(tx, after.conversation_key.stream, kind.value, after.server, event_data(after))
    )
