"""Operations on tasks, each in one transaction. Takeover and retention are in `upkeep`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance import approval as approval_rules
from taskgate.core.governance.workflow import Workflow
from taskgate.core.scripts.record import ReceivedOutcomes
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.origin import AlreadySent, HeldForApproval, TaskOrigin, create
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    AlreadyOver,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    Cancelled,
    Dispatched,
    InputSettled,
    Noted,
    RoundAnswered,
    ScriptStarted,
    TransitionEvent,
    apply,
)
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store_answers import (
    Accepting,
    Advancing,
    ApprovalSpent,
    Change,
    IdTaken,
    Intended,
    Intending,
    Joined,
    KeyTaken,
    ResultGone,
    SameCall,
    StoppedByRecheck,
    TaskQuestion,
)
from taskgate.ports.task_store import AcceptLimits, FinalRecheck
from taskgate.ports.topics import TASKS
from taskgate.store.operations import approvals
from taskgate.store.operations.task_changes import (
    load_any_task,
    load_our_task,
    load_task,
    move_task,
    put_new_task,
)
from taskgate.store.operations.task_limits import over_limit
from taskgate.store.operations.task_rows import question_columns
from taskgate.store.transaction import Transaction

KEY_VALID_MS: Final = 24 * 3_600_000
BY_ANY_GATEWAY: Final = (Cancelled, InputSettled, ApprovalDenied, ApprovalExpired, ApprovalGranted)
"""Decisions of callers and approvers, which may arrive at any gateway. Only the owner writes what a server returned or is sent."""


def accept(
    tx: Transaction,
    draft: Task,
    *,
    sent: AlreadySent | None,
    approval: ApprovalRequest | None,
    key: str | None,
    limits: AcceptLimits,
    audit: AuditEntry | None,
    joins: bool = False,
) -> Accepting:
    before: Accepting | None = _by_key(tx, draft, key)
    if before is None and joins and key is None and approval is not None:
        before = _pending_equal_call(tx, draft, approval)
    before = before or over_limit(tx, draft, limits, approval)
    if before is not None:
        return before
    how: TaskOrigin = sent
    if approval is not None:
        how = HeldForApproval(approval.id, approval.workflow.timeout_ms)
    task = create(draft, how, now_ms=tx.now_ms, owner=tx.ownership.owner, fence=tx.ownership.fence)
    held = None if approval is None else approvals.new_held_call(tx, approval, task.id)
    if held is not None:
        task = replace(task, approval_deadline_ms=held.approval.binding.expires_at_ms)
    event = put_new_task(tx, task, audit)
    if isinstance(event, IdTaken):
        return event if sent is None else _stored_before(tx, draft) or event
    if held is not None:
        approvals.insert(tx, held)
    if key is not None:
        tx.run("put_key", principal=task.principal, key=key, call=_call(task), task_id=task.id, created_ms=tx.now_ms)
    return Change(task, event)


def _stored_before(tx: Transaction, draft: Task) -> SameCall | None:
    """Return the task of a sent call that an earlier attempt has stored, although its caller had stopped waiting for it."""
    task = load_task(tx, draft.id)
    is_same = task is not None and (task.principal, _call(task)) == (draft.principal, _call(draft))
    return SameCall(task) if task is not None and is_same else None


def _call(task: Task) -> str:
    return f"{task.server}\n{task.tool}\n{task.digest}"


def _by_key(tx: Transaction, draft: Task, key: str | None) -> SameCall | KeyTaken | ResultGone | None:
    if key is None:
        return None
    found = tx.run("find_key", principal=draft.principal, key=key).fetchone()
    if found is None or tx.now_ms >= found[2] + KEY_VALID_MS:
        return None
    call, task_id, _, executed = found
    task = load_task(tx, task_id)
    was_executed = task.executed if task is not None else Executed(executed) if executed is not None else Executed.MAYBE
    kept = task is not None and not is_expired(task, tx.now_ms)
    if was_executed is Executed.NO and (not kept or (task is not None and task.state is TaskState.FAILED)):
        # Nothing was executed under this key, so the call may be repeated.
        return None
    if call != _call(draft):
        return KeyTaken(task_id)
    return SameCall(task) if task is not None and kept else ResultGone(task_id, was_executed or Executed.MAYBE)


def _pending_equal_call(tx: Transaction, draft: Task, approval: ApprovalRequest) -> Joined | None:
    """Return the task of an equal pending call: of the same conversation, with the same arguments and definition.

    A call of a script is no repetition of a plain call, nor the other way round.
    """
    for task_id in approvals.tasks_of_equal_calls(tx, approval):
        task = load_task(tx, task_id)
        if task is None or task.state is not TaskState.AWAITING_APPROVAL:
            continue
        if (task.conversation_key, task.place, task.parent) == (draft.conversation_key, draft.place, draft.parent):
            return Joined(task)
    return None


def revert_accept(tx: Transaction, draft: Task, key: str | None) -> None:
    """Undo an accept whose caller has stopped waiting: the task must not run, and its key must not prevent a retry."""
    ended = advance(tx, draft.id, Cancelled("the caller stopped waiting before the task was accepted"))
    if key is not None and isinstance(ended, Change):
        tx.run("drop_key_of_task", principal=draft.principal, key=key, task_id=draft.id)


def intend(
    tx: Transaction,
    task_id: str,
    *,
    byte_hash: str,
    upstream: str,
    message: str | None,
    recheck: FinalRecheck,
    audit: AuditEntry | None,
    answered: RoundAnswered | None,
) -> Intending:
    task = load_our_task(tx, task_id)
    if not isinstance(task, Task):
        return task
    if task.state.is_terminal:
        return AlreadyOver(task.state)
    held = None if task.approval_id is None else approvals.find(tx, task.approval_id)
    verdict = recheck(task, None if held is None else held.approval, tx.now_ms)
    if verdict is not None:
        stopped = advance(tx, task_id, verdict)
        return StoppedByRecheck(stopped.task, stopped.event) if isinstance(stopped, Change) else stopped
    begins = ScriptStarted() if task.script else Dispatched(tx.ownership.fence, byte_hash, upstream, message, answered)
    after = apply(task, begins, tx.now_ms)
    if not isinstance(after, Task):
        return after
    # The first attempt spends the approval; later attempts of the same run need no other.
    is_spent_by_us = held is not None and held.approval.state is approval_rules.State.USED and task.attempts > 0
    if held is not None and not is_spent_by_us:
        workflow = Workflow(held.approval.workflow)
        used = approval_rules.apply(held.approval, workflow, approval_rules.CallDispatched(tx.now_ms))
        if isinstance(used, approval_rules.DecisionRefused):
            return ApprovalSpent(used.approval)
        approvals.update(tx, replace(held, approval=used.approval))
    return Intended(after, move_task(tx, task, after, audit))


def advance(
    tx: Transaction,
    task_id: str,
    event: TransitionEvent,
    *,
    questions: Sequence[TaskQuestion] = (),
    answers: Mapping[str, bytes] | None = None,
    audit: AuditEntry | None = None,
    spill: str | None = None,
    received: ReceivedOutcomes | None = None,
    noted: Noted | None = None,
) -> Advancing:
    """Apply an event to a task and write it. `noted` is a report that is not written yet: it is stored if the task ends."""
    found = load_any_task if isinstance(event, BY_ANY_GATEWAY) else load_our_task
    task = found(tx, task_id)
    if not isinstance(task, Task):
        return task
    after = apply(task, event, tx.now_ms)
    if not isinstance(after, Task):
        return after
    if noted is not None and after.state.is_terminal:
        after = _with_last_report(task, after, noted, tx.now_ms)
    if spill is not None and after.outcome is not None:
        after = replace(after, outcome=replace(after.outcome, spill=spill))
    for question in questions:
        tx.run("insert_question", **question_columns(tx.sealing, task_id, question, tx.now_ms))
    if isinstance(event, InputSettled):
        _settle(tx, task_id, event.keys, answers or {})
    if after.state.is_terminal and after.approval_id is not None:
        approvals.withdraw(tx, after.approval_id)
    if received is not None:
        mark_received(tx, task_id, received)
    return Change(after, move_task(tx, task, after, audit, spill))


def _with_last_report(task: Task, after: Task, noted: Noted, now_ms: int) -> Task:
    """The ended task with the progress that was reported just before its end."""
    shown = apply(task, noted, now_ms)
    if not isinstance(shown, Task):
        return after
    last = {"progress": shown.progress, "progress_total": shown.progress_total, "progress_steps": shown.progress_steps}
    return replace(after, **last)


def mark_received(tx: Transaction, script_id: str, received: ReceivedOutcomes) -> None:
    """Record with which step a script received the outcomes of these calls."""
    numbers = json.dumps([str(number) for number in received.numbers])
    tx.run("deliver_script_calls", script_id=script_id, step=received.step, numbers=numbers)


def _settle(tx: Transaction, task_id: str, keys: Sequence[str], answers: Mapping[str, bytes]) -> None:
    for key in keys:
        if key in answers:
            sealed = tx.sealing.seal(answers[key], task_id)
            tx.run("answer_question", task_id=task_id, key=key, answer=sealed, now_ms=tx.now_ms)
        else:
            tx.run("withdraw_question", task_id=task_id, key=key)


def take(tx: Transaction, task_id: str) -> Task | None:
    """Take ownership of a task of which nothing was sent yet, because its caller is here. Return None if that is not possible."""
    task = load_any_task(tx, task_id)
    if not isinstance(task, Task) or task.state.is_terminal or task.attempts > 0:
        return None
    ours = tx.ownership
    tx.run("own_task", id=task_id, owner=ours.owner, fence=ours.fence)
    return replace(task, owner=ours.owner, fence=ours.fence)


def hand_over(tx: Transaction, task_id: str, owner: str) -> bool:
    """Make another gateway the owner of a task of this one. The shared lock on the row of that gateway keeps it from being declared
    dead before the commit.
    """
    task = load_our_task(tx, task_id)
    found = tx.run("find_owner", owner=owner).fetchone()
    if not isinstance(task, Task) or task.state.is_terminal or found is None or found[1]:
        return False
    tx.run("own_task", id=task_id, owner=owner, fence=found[0])
    tx.announce(TASKS, task_id)
    return True


def cancel_delivered(tx: Transaction, task_id: str) -> None:
    task = load_our_task(tx, task_id)
    if isinstance(task, Task) and task.cancel_unsent:
        move_task(tx, task, replace(task, cancel_unsent=False, revision=task.revision + 1), None)


def write_note(tx: Transaction, task_id: str, noted: Noted) -> None:
    """Write progress, without event and audit row. Does nothing if the task has ended or has another owner."""
    task = load_our_task(tx, task_id)
    if isinstance(task, Task):
        after = apply(task, noted, tx.now_ms)
        if isinstance(after, Task):
            move_task(tx, task, after, None)
