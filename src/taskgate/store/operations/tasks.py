"""Changes of tasks. Takeover and retention are in `upkeep`, the reads in `task_queries`.

Every write carries the writer's ownership (its name and its fence, a number that grows with every change of owner) and is stamped
by the store's own clock. A writer that has lost its ownership changes nothing and gets `StaleOwner`. `core.tasks.transition`
defines which transitions are legal; it is applied inside the transaction, so a refusal is an ordinary answer here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed
from taskgate.core.governance import approval as approval_rules
from taskgate.core.governance.approval import Approval
from taskgate.core.governance.held_call import ApprovalRequest, HeldCall
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
    ResultReceived,
    RoundAnswered,
    ScriptStarted,
    TransitionEvent,
    apply,
)
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
    Outdated,
    ResultGone,
    SameCall,
    StaleOwner,
    StoppedByRecheck,
    TaskQuestion,
)
from taskgate.ports.topics import GRANTS, TASKS
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operation import LargeBody, Latest, Operation, OwnerOperation
from taskgate.store.operations import approvals
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.grants import standing_grants
from taskgate.store.operations.task_changes import (
    load_any_task,
    load_our_task,
    load_task,
    move_task,
    put_new_task,
)
from taskgate.store.operations.task_limits import NO_LIMITS, AcceptLimits, over_limit
from taskgate.store.operations.task_rows import question_columns
from taskgate.store.transaction import Transaction

KEY_VALID_MS: Final = 24 * 3_600_000
LARGE_RESULT: Final = 1 << 20
"""Longer results are stored outside the rows."""


class Forbidden(msgspec.Struct, frozen=True):
    """The last check forbids sending the call. `event` ends its task."""

    event: TransitionEvent
    audit: AuditEntry
    """If the call was approved, its approval ends too, and the entry is about that."""


FinalRecheck = Callable[[Task, Approval | None, int], Forbidden | None]
"""Called inside the intent's transaction with the stored task, its approval and the store's time. None allows the dispatch; an
event that ends the task is applied instead of it. Must be quick and free of side effects."""
BY_ANY_GATEWAY: Final = (Cancelled, InputSettled, ApprovalDenied, ApprovalExpired, ApprovalGranted)
"""Decisions of callers and approvers, which may arrive at any gateway. Only the owner writes what a server returned or is sent."""


class Accept(OwnerOperation[Accepting], frozen=True):
    """Make a call durable. Times, owner, fence and state of the draft are set here.

    `sent` is for a promoted call that is already in flight (accept and intent in one write). It is kept if its caller stops waiting
    for the write, and a further attempt with the same id returns the task as `SameCall`. `approval` is for a call that needs an
    approval; at most one of the two. `key` is the caller's idempotency key, valid for 24 h within its principal. `joins`: if an
    equal call of the same conversation waits for an approval and this one has no key, return that task instead.
    """

    draft: Task
    sent: AlreadySent | None = None
    approval: ApprovalRequest | None = None
    key: str | None = None
    limits: AcceptLimits = NO_LIMITS
    audit: AuditEntry | None = None
    joins: bool = False

    def __post_init__(self) -> None:
        if self.sent is not None and self.approval is not None:
            raise ValueError("a call that was already sent cannot wait for an approval")

    @property
    def locks(self) -> Locks:
        draft, approval = self.draft, self.approval
        limits: tuple[str, ...] = (draft.limited_as or draft.caller,)
        if approval is not None and approval.counted_as not in limits:
            limits += (approval.counted_as,)
        per_tenant = approval is not None and self.limits.pending.per_tenant is not None
        if self.limits.open_tasks_of_tenant is not None or per_tenant:
            limits += tenants_of(limits)
        names = (f"key:{draft.principal}\n{self.key}",) if self.key is not None else ()
        return Locks(tasks=(draft.id,), callers=(draft.caller,), limits=limits, names=names)

    def reverted(self, answer: Accepting) -> Operation[None] | None:
        # A call that was sent runs whether or not its caller waits for its record.
        if self.sent is not None or not isinstance(answer, Change):
            return None
        return _UndoAccept(self.draft.id, self.draft.principal, self.key)

    def run(self, tx: Transaction) -> Accepting:
        draft, approval, key = self.draft, self.approval, self.key
        before: Accepting | None = _by_key(tx, draft, key)
        if before is None and self.joins and key is None and approval is not None:
            before = _pending_equal_call(tx, draft, approval)
        before = before or over_limit(tx, draft, self.limits, approval)
        if before is not None:
            return before
        how: TaskOrigin = self.sent
        if approval is not None:
            how = HeldForApproval(approval.id, approval.workflow.timeout_ms)
        task = create(draft, how, now_ms=tx.now_ms, owner=tx.ownership.owner, fence=tx.ownership.fence)
        held = None if approval is None else approvals.new_held_call(tx, approval, task.id)
        if held is not None:
            task = replace(task, approval_deadline_ms=held.approval.binding.expires_at_ms)
        event = put_new_task(tx, task, self.audit)
        if isinstance(event, IdTaken):
            return event if self.sent is None else _stored_before(tx, draft) or event
        if held is not None:
            approvals.insert(tx, held)
        if key is not None:
            values = {"principal": task.principal, "key": key, "call": _call(task), "task_id": task.id}
            tx.run("put_key", created_ms=tx.now_ms, **values)
        return Change(task, event)


class _UndoAccept(Operation[None], frozen=True):
    """Undo an accept whose caller has stopped waiting: the task must not run, and its key must not prevent a retry."""

    task_id: str
    principal: str
    key: str | None

    def run(self, tx: Transaction) -> None:
        ended = Advance(self.task_id, Cancelled("the caller stopped waiting before the task was accepted")).run(tx)
        if self.key is not None and isinstance(ended, Change):
            tx.run("drop_key_of_task", principal=self.principal, key=self.key, task_id=self.task_id)


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


class Intend(OwnerOperation[Intending], frozen=True):
    """Write the intent to send, and the end of the round before if it is given. Only `Intended` allows the first byte to go out.

    Checked in the same transaction: the fence is valid, the task has not ended, the approval (if there is one) is valid and is
    spent by this, and `recheck` allows it.
    """

    task_id: str
    byte_hash: str
    upstream: str
    recheck: FinalRecheck
    message: str | None = None
    audit: AuditEntry | None = None
    answered: RoundAnswered | None = None

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def needs_lease(self, answer: Intending | None) -> bool:
        # If the commit took so long that another gateway may run the task by now, nothing is sent, whatever was written.
        return answer is None or isinstance(answer, Intended)

    def run(self, tx: Transaction) -> Intending:
        if tx.is_shared and (outdated := _outdated_topics(tx)):
            return Outdated(outdated)
        task = load_our_task(tx, self.task_id)
        if not isinstance(task, Task):
            return task
        if task.state.is_terminal:
            return AlreadyOver(task.state)
        held = None if task.approval_id is None else approvals.find(tx, task.approval_id)
        verdict = self.recheck(task, None if held is None else held.approval, tx.now_ms)
        if verdict is not None:
            self._record(tx, held, verdict.audit)
            stopped = Advance(self.task_id, verdict.event).run(tx)
            return StoppedByRecheck(stopped.task, stopped.event) if isinstance(stopped, Change) else stopped
        after = apply(task, self._begins(tx, task), tx.now_ms)
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
        return Intended(after, move_task(tx, task, after, self.audit))

    def _record(self, tx: Transaction, held: HeldCall | None, audit: AuditEntry) -> None:
        if held is None or held.approval.state is not approval_rules.State.APPROVED:
            RecordAudit(audit).run(tx)
            return
        drifted = approval_rules.Drifted(tx.now_ms, audit.decision, f"{audit.decision}: {audit.reason}")
        ended = approval_rules.apply(held.approval, Workflow(held.approval.workflow), drifted)
        moved = replace(held, approval=ended.approval)
        approvals.update(tx, moved)
        RecordAudit(approvals.entry_of(moved, "approval_invalid", tx.now_ms)).run(tx)

    def _begins(self, tx: Transaction, task: Task) -> ScriptStarted | Dispatched:
        if task.script:
            return ScriptStarted()
        return Dispatched(
            tx.ownership.fence, self.byte_hash, self.upstream, message=self.message, answered=self.answered
        )


def _outdated_topics(tx: Transaction) -> tuple[str, ...]:
    """Read the grants again if they changed, and return the other cached topics that another gateway has changed."""
    present, known = tx.revisions(), tx.state.known_revisions
    if present.get(GRANTS, 0) != known.get(GRANTS):
        tx.state.know_grants(standing_grants(tx))
    return tuple(topic for topic in known if topic != GRANTS and present.get(topic, 0) > known[topic])


class Advance(OwnerOperation[Advancing], frozen=True):
    """Apply one event: an upstream's task id, questions, a result, an error, a cancellation, and so on.

    An event that ends the task withdraws its open approval in the same transaction. `Dispatched` is written by `Intend`.
    `received`: with the end of a script, the calls whose outcomes it received after its newest stored step. `spill` is the name
    under which the store keeps a large result.
    """

    task_id: str
    event: TransitionEvent
    questions: Sequence[TaskQuestion] = ()
    answers: Mapping[str, bytes] | None = None
    audit: AuditEntry | None = None
    received: ReceivedOutcomes | None = None
    spill: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.event, Dispatched):
            raise ValueError("a dispatch is written by `Intend`, with its recheck")

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def large_body(self) -> LargeBody | None:
        event = self.event
        if not isinstance(event, ResultReceived) or len(event.body) <= LARGE_RESULT:
            return None
        return LargeBody(self.task_id, event.body)

    def with_large(self, name: str) -> Advance:
        return replace(self, spill=name)

    def discarded(self, answer: Advancing) -> Sequence[str]:
        return () if self.spill is None or isinstance(answer, Change) else (self.spill,)

    def run(self, tx: Transaction) -> Advancing:
        task_id, event = self.task_id, self.event
        found = load_any_task if isinstance(event, BY_ANY_GATEWAY) else load_our_task
        task = found(tx, task_id)
        if not isinstance(task, Task):
            return task
        after = apply(task, event, tx.now_ms)
        if not isinstance(after, Task):
            return after
        # A report that waits for the next commit would be written too late, if this ends the task.
        waiting = tx.state.waiting_for(NoteProgress, task_id)
        if waiting is not None and after.state.is_terminal:
            after = _with_last_report(task, after, waiting.noted, tx.now_ms)
        if self.spill is not None and after.outcome is not None:
            after = replace(after, outcome=replace(after.outcome, spill=self.spill))
        for question in self.questions:
            tx.run("insert_question", **question_columns(tx.sealing, task_id, question, tx.now_ms))
        if isinstance(event, InputSettled):
            _settle(tx, task_id, event.keys, self.answers or {})
        if after.state.is_terminal and after.approval_id is not None:
            approvals.withdraw(tx, after.approval_id)
        if self.received is not None:
            mark_received(tx, task_id, self.received)
        return Change(after, move_task(tx, task, after, self.audit, self.spill))


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


class TakeTask(Operation[Task | None], frozen=True):
    """Take ownership of another gateway's task of which nothing was sent yet, because its caller is here. Return None if that is
    not possible."""

    is_repeated: ClassVar[bool] = False

    task_id: str

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def if_taken_over(self, stale: StaleOwner) -> None:
        return None

    def run(self, tx: Transaction) -> Task | None:
        task = load_any_task(tx, self.task_id)
        if not isinstance(task, Task) or task.state.is_terminal or task.attempts > 0:
            return None
        ours = tx.ownership
        tx.run("own_task", id=self.task_id, owner=ours.owner, fence=ours.fence)
        return replace(task, owner=ours.owner, fence=ours.fence)


class HandOver(Operation[bool], frozen=True):
    """Make another gateway the owner of an open task of this one, and announce it. Return False if that gateway was declared dead,
    or the task is not open or not ours.

    The shared lock on the row of that gateway keeps it from being declared dead before the commit.
    """

    is_repeated: ClassVar[bool] = False

    task_id: str
    owner: str

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def if_taken_over(self, stale: StaleOwner) -> bool:
        return False

    def run(self, tx: Transaction) -> bool:
        task = load_our_task(tx, self.task_id)
        found = tx.run("find_owner", owner=self.owner).fetchone()
        if not isinstance(task, Task) or task.state.is_terminal or found is None or found[1]:
            return False
        tx.run("own_task", id=self.task_id, owner=self.owner, fence=found[0])
        tx.announce(TASKS, self.task_id)
        return True


class CancelDelivered(OwnerOperation[None], frozen=True):
    """Record that the upstream was notified of the cancellation; the next owner need not repeat it."""

    task_id: str

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def run(self, tx: Transaction) -> None:
        task = load_our_task(tx, self.task_id)
        if isinstance(task, Task) and task.cancel_unsent:
            move_task(tx, task, replace(task, cancel_unsent=False, revision=task.revision + 1), None)


class NoteProgress(Latest, frozen=True):
    """Store progress or a status text, without event and audit row. Readers see it at once; it is written with the next commit, or
    lost in a crash. Does nothing if the task has ended or has another owner."""

    task_id: str
    noted: Noted

    @property
    def key(self) -> str:
        return self.task_id

    @property
    def locks(self) -> Locks:
        return task_locks(self.task_id)

    def merged(self, earlier: NoteProgress) -> NoteProgress:
        noted, before = self.noted, earlier.noted
        return NoteProgress(
            self.task_id,
            Noted(
                message=noted.message if noted.message is not None else before.message,
                progress=noted.progress if noted.progress is not None else before.progress,
                total=noted.total if noted.total is not None else before.total,
            ),
        )

    def run(self, tx: Transaction) -> None:
        task = load_our_task(tx, self.task_id)
        if isinstance(task, Task):
            after = apply(task, self.noted, tx.now_ms)
            if isinstance(after, Task):
                move_task(tx, task, after, None)


def task_locks(task_id: str) -> Locks:
    return Locks(tasks=(task_id,), reads=(task_id,))
