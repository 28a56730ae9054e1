"""What the store does to tasks, each inside one transaction. What it does for itself is in `upkeep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance import approval as law
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.caller import ANONYMOUS_LIMIT
from taskgate.core.identity.identity import tenant_of
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
    LimitHolder,
    ResultGone,
    SameCall,
    StoppedByRecheck,
    TaskQuestion,
    TooManyOpen,
)
from taskgate.ports.task_store import ADDRESS_FACTOR, AcceptLimits, LastLook
from taskgate.store.operations import approvals, rows
from taskgate.store.operations.rows import (
    load_anybodys_task,
    load_our_task,
    load_task,
    move_task,
    put_new_task,
)
from taskgate.store.transaction import Transaction

KEY_GOOD_MS: Final = 24 * 3_600_000
_OPEN_TASKS: Final = "open_tasks_per_caller"
_CONVERSATION: Final = "conversation "
"""How conversations are named among the counts of a transaction."""
BY_ANYBODY: Final = (Cancelled, InputSettled, ApprovalDenied, ApprovalExpired, ApprovalGranted)
"""What people and callers say may reach any gateway. What a server said, and what is sent to it, is its owner's to write."""


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
        before = _waits_alike(tx, draft, approval)
    before = before or _over_limit(tx, draft, limits, approval)
    if before is not None:
        return before
    how: TaskOrigin = sent
    if approval is not None:
        how = HeldForApproval(approval.id, approval.workflow.timeout_ms)
    task = create(draft, how, now_ms=tx.now_ms, owner=tx.ownership.owner, fence=tx.ownership.fence)
    held = None if approval is None else approvals.asked(tx, approval, task.id)
    if held is not None:
        task = replace(task, approval_deadline_ms=held.approval.binding.expires_at_ms)
    event = put_new_task(tx, task, audit)
    if event is None:
        return IdTaken(task.id)
    if held is not None:
        approvals.put_new(tx, held)
    if key is not None:
        tx.run("put_key", principal=task.principal, key=key, call=_call(task), task_id=task.id, created_ms=tx.now_ms)
    return Change(task, event)


def _call(task: Task) -> str:
    return f"{task.server}\n{task.tool}\n{task.digest}"


def _by_key(tx: Transaction, draft: Task, key: str | None) -> SameCall | KeyTaken | ResultGone | None:
    if key is None:
        return None
    found = tx.run("find_key", principal=draft.principal, key=key).fetchone()
    if found is None or tx.now_ms >= found[2] + KEY_GOOD_MS:
        return None
    call, task_id, _, executed = found
    task = load_task(tx, task_id)
    said = task.executed if task is not None else Executed(executed) if executed is not None else Executed.MAYBE
    kept = task is not None and not is_expired(task, tx.now_ms)
    if said is Executed.NO and (not kept or (task is not None and task.state is TaskState.FAILED)):
        # Nothing was done under this key, so it does not stand in the way of a repeat.
        return None
    if call != _call(draft):
        return KeyTaken(task_id)
    return SameCall(task) if task is not None and kept else ResultGone(task_id, said or Executed.MAYBE)


def _waits_alike(tx: Transaction, draft: Task, approval: ApprovalRequest) -> Joined | None:
    """The task of an equal call that waits for people: of the same conversation, with the same arguments and definition."""
    for task_id in approvals.held_alike(tx, approval):
        task = load_task(tx, task_id)
        if task is None or task.state is not TaskState.AWAITING_APPROVAL:
            continue
        if (task.conversation_key, task.place) == (draft.conversation_key, draft.place):
            return Joined(task)
    return None


def take_back(tx: Transaction, draft: Task, key: str | None) -> None:
    """Nobody was told of this task, or will be: it must not run, and its key must not stand in the way of a repeat."""
    ended = advance(tx, draft.id, Cancelled("nobody waited for it to be accepted"))
    if key is not None and isinstance(ended, Change):
        tx.run("drop_key_of_task", principal=draft.principal, key=key, task_id=draft.id)


def _over_limit(
    tx: Transaction, draft: Task, limits: AcceptLimits, approval: ApprovalRequest | None
) -> TooManyOpen | None:
    limited_as = draft.limited_as or draft.caller
    if (refused := _over_limit_of_caller(tx, limited_as, draft.caller, limits.open_tasks)) is not None:
        return refused
    tenant = tenant_of(limited_as)
    if tenant and limits.open_tasks_of_tenant is not None:
        found = tx.run("count_open_of_tenant", what="tenant task", tenant=tenant).fetchone()[0]
        if found >= limits.open_tasks_of_tenant:
            setting, what = "open_tasks_per_tenant", "open tasks of all callers of your tenant"
            return TooManyOpen(what, limits.open_tasks_of_tenant, setting, LimitHolder.TENANT)
    return None if approval is None else approvals.over_limit(tx, approval.counted_as, limits.pending)


def _over_limit_of_caller(tx: Transaction, limited_as: str, caller: str, most: int | None) -> TooManyOpen | None:
    """Callers without an identity are limited by conversation where one is known, and all those of an address together: a new
    session costs nothing, so a limit per session alone could be evaded.
    """
    if not limited_as.startswith(ANONYMOUS_LIMIT):
        if _reached(tx, limited_as, most, "count_open_of_caller", limited_as=limited_as):
            return TooManyOpen("open tasks", most or 0, _OPEN_TASKS)
        return None
    if not caller.startswith(NO_CONVERSATION):
        key = f"{_CONVERSATION}{limited_as} {caller}"
        if _reached(tx, key, most, "count_open_of_conversation", caller=caller, limited_as=limited_as, most=most):
            return TooManyOpen("open tasks in this session", most or 0, _OPEN_TASKS, LimitHolder.CONVERSATION)
    of_address = None if most is None else most * ADDRESS_FACTOR
    if _reached(tx, limited_as, of_address, "count_open_of_caller", limited_as=limited_as):
        what = "open tasks of all callers without a token at your address"
        return TooManyOpen(what, of_address or 0, _OPEN_TASKS, LimitHolder.ADDRESS)
    return None


def _reached(tx: Transaction, key: str, most: int | None, count: str, /, **values: Any) -> bool:
    """Whether as many are open as may be; if not, one more is counted."""
    if most is None:
        if key in tx.most_open:
            tx.most_open[key] += 1
        return False
    # No other writer adds to them before our commit: what was counted once in this transaction can only have become less.
    found = tx.most_open.get(key)
    if found is None or found >= most:
        found = tx.run(count, **values).fetchone()[0]
    if found >= most:
        return True
    tx.most_open[key] = found + 1
    return False


def intend(
    tx: Transaction,
    task_id: str,
    *,
    byte_hash: str,
    upstream: str,
    message: str | None,
    look: LastLook,
    audit: AuditEntry | None,
) -> Intending:
    task = load_our_task(tx, task_id)
    if not isinstance(task, Task):
        return task
    if task.state.is_terminal:
        return AlreadyOver(task.state)
    held = None if task.approval_id is None else approvals.find(tx, task.approval_id)
    verdict = look(task, None if held is None else held.approval, tx.now_ms)
    if verdict is not None:
        stopped = advance(tx, task_id, verdict)
        return StoppedByRecheck(stopped.task, stopped.event) if isinstance(stopped, Change) else stopped
    after = apply(task, Dispatched(tx.ownership.fence, byte_hash, upstream, message), tx.now_ms)
    if not isinstance(after, Task):
        return after
    # An approval is spent by the first attempt; later attempts of the same run need no second one.
    is_spent_by_us = held is not None and held.approval.state is law.State.USED and task.attempts > 0
    if held is not None and not is_spent_by_us:
        workflow = Workflow(held.approval.workflow)
        used = law.apply(held.approval, workflow, law.CallDispatched(tx.now_ms))
        if isinstance(used, law.DecisionRefused):
            return ApprovalSpent(used.approval)
        approvals.put(tx, replace(held, approval=used.approval))
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
) -> Advancing:
    found = load_anybodys_task if isinstance(event, BY_ANYBODY) else load_our_task
    task = found(tx, task_id)
    if not isinstance(task, Task):
        return task
    after = apply(task, event, tx.now_ms)
    if not isinstance(after, Task):
        return after
    if spill is not None and after.outcome is not None:
        after = replace(after, outcome=replace(after.outcome, spill=spill))
    for question in questions:
        tx.run("insert_question", **rows.question_columns(tx.sealing, task_id, question, tx.now_ms))
    if isinstance(event, InputSettled):
        _settle(tx, task_id, event.keys, answers or {})
    if after.state.is_terminal and after.approval_id is not None:
        approvals.withdraw(tx, after.approval_id)
    return Change(after, move_task(tx, task, after, audit, spill))


def _settle(tx: Transaction, task_id: str, keys: Sequence[str], answers: Mapping[str, bytes]) -> None:
    for key in keys:
        if key in answers:
            tx.run("answer_question", task_id=task_id, key=key, answer=tx.sealing.seal(answers[key], task_id))
        else:
            tx.run("withdraw_question", task_id=task_id, key=key)


def take(tx: Transaction, task_id: str) -> Task | None:
    """Make a task ours of which nothing was sent yet, because somebody came here for it. None if it cannot be had."""
    task = load_anybodys_task(tx, task_id)
    if not isinstance(task, Task) or task.state.is_terminal or task.attempts > 0:
        return None
    ours = tx.ownership
    tx.run("own_task", id=task_id, owner=ours.owner, fence=ours.fence)
    return replace(task, owner=ours.owner, fence=ours.fence)


def told_upstream(tx: Transaction, task_id: str) -> None:
    task = load_our_task(tx, task_id)
    if isinstance(task, Task) and task.cancel_owed:
        move_task(tx, task, replace(task, cancel_owed=False, revision=task.revision + 1), None)


def write_note(tx: Transaction, task_id: str, noted: Noted) -> None:
    """Progress that rides along: no event, no audit, and nothing at all if the task has moved on."""
    task = load_our_task(tx, task_id)
    if isinstance(task, Task):
        after = apply(task, noted, tx.now_ms)
        if isinstance(after, Task):
            move_task(tx, task, after, None)
