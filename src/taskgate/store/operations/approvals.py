"""Approvals and the calls that they hold. The rules are in `core.governance.approval`.

An approval and its task change in one transaction, so exactly one of many concurrent decisions finds the approval open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance import approval as approvals
from taskgate.core.governance.approval import Approval
from taskgate.core.governance.held_call import NO_PENDING_LIMITS, ApprovalRequest, HeldCall, PendingLimits
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.caller import ANONYMOUS_LIMIT
from taskgate.core.identity.identity import principal_name, tenant_of
from taskgate.core.tasks.endings import after_approval
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent, apply
from taskgate.ports.store_answers import Change, LimitHolder, TooManyOpen
from taskgate.ports.topics import APPROVALS, TASKS
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operation import Operation, OwnerOperation, Query
from taskgate.store.operations.approval_rows import approval_columns, approval_from, held_from
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.journal import record_held_end
from taskgate.store.operations.task_changes import load_any_task, move_task
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

Consequence = Callable[[Task, Approval], TransitionEvent | None]
"""Returns the event for the task of an approval that has just been decided. Called inside the transaction; must be quick."""

AuditOf = Callable[[HeldCall, int], AuditEntry]

MAX_COMPARED: Final = 200
"""How many pending requests of a caller for the same tool are compared with a new one."""


class HeldPage(msgspec.Struct, frozen=True):
    """A page of held calls. `after` is the position of the next page, None at the end."""

    held: tuple[HeldCall, ...]
    after: str | None


class Decided(msgspec.Struct, frozen=True):
    """The outcome of an event for an approval (`core.governance.approval`: changed or refused), and the change of its task."""

    outcome: approvals.Outcome
    held: HeldCall
    change: Change | None = None


class UnknownApproval(msgspec.Struct, frozen=True):
    approval_id: str


def new_held_call(tx: Transaction, request: ApprovalRequest, task_id: str | None) -> HeldCall:
    """Return an approval to be opened, with its deadline by the store's clock."""
    approval = approvals.open_approval(
        request.id,
        request.workflow,
        request.rule,
        request.binding,
        tx.now_ms,
        unvalidated=request.unvalidated,
        plan=request.plan,
        from_script=request.from_script,
    )
    return HeldCall(approval, request.counted_as, request.wire_name, request.arguments, task_id=task_id)


def insert(tx: Transaction, held: HeldCall) -> None:
    """Write a new approval. It is announced with its task, because approvers may use the console of another gateway."""
    tx.announce(APPROVALS, held.approval.id)
    if held.task_id is not None:
        tx.announce(TASKS, held.task_id)
    tx.run("insert_approval", **approval_columns(tx.sealing, held))


def find(tx: Transaction, approval_id: str) -> HeldCall | None:
    row = tx.run("find_approval", id=approval_id).fetchone()
    return None if row is None else held_from(tx.sealing, row)


def update(tx: Transaction, held: HeldCall) -> None:
    tx.announce(APPROVALS, held.approval.id)
    columns = approval_columns(tx.sealing, held)
    changed = ("id", "state", "due_ms", "decided_ms", "doc")
    tx.run("update_approval", **{name: columns[name] for name in changed})


def over_limit(tx: Transaction, caller: str, limits: PendingLimits) -> TooManyOpen | None:
    if limits.per_caller is not None:
        found = tx.run("count_pending_of_caller", caller=caller).fetchone()[0]
        if found >= limits.per_caller:
            return TooManyOpen("pending approvals", limits.per_caller, "pending_approvals_per_caller")
    if limits.anonymous is not None and caller.startswith(ANONYMOUS_LIMIT):
        found = tx.run("count_pending_of_anonymous").fetchone()[0]
        if found >= limits.anonymous:
            setting, what = "anonymous_pending_approvals", "pending approvals of callers without a token"
            return TooManyOpen(what, limits.anonymous, setting, LimitHolder.ANONYMOUS)
    tenant = tenant_of(caller)
    if tenant and limits.per_tenant is not None:
        found = tx.run("count_open_of_tenant", what="tenant approval", tenant=tenant).fetchone()[0]
        if found >= limits.per_tenant:
            setting, what = "pending_approvals_per_tenant", "pending approvals of all callers of your tenant"
            return TooManyOpen(what, limits.per_tenant, setting, LimitHolder.TENANT)
    return None


class HoldCall(OwnerOperation[HeldCall | TooManyOpen], frozen=True):
    """Open an approval for a call without a task. Calls with a task are held by `tasks.Accept`.

    `joins`: return the principal's pending or unused approval of the same request instead, if there is one.
    """

    request: ApprovalRequest
    pending: PendingLimits = NO_PENDING_LIMITS
    audit: AuditEntry | None = None
    joins: bool = False

    @property
    def locks(self) -> Locks:
        limits: tuple[str, ...] = (self.request.counted_as,)
        if self.pending.per_tenant is not None:
            limits += tenants_of(limits)
        return Locks(limits=limits)

    def run(self, tx: Transaction) -> HeldCall | TooManyOpen:
        if self.joins and (equal := _equal_request(tx, self.request.binding)) is not None:
            return equal
        if (refused := over_limit(tx, self.request.counted_as, self.pending)) is not None:
            return refused
        held = new_held_call(tx, self.request, None)
        insert(tx, held)
        TakeHeld(held.approval.id).run(tx)
        RecordAudit(self.audit if self.audit is not None else entry_of(held, "approval_asked", tx.now_ms)).run(tx)
        return held


def _equal_request(tx: Transaction, bound: approvals.Binding) -> HeldCall | None:
    values = {"principal": bound.principal, "server": bound.server, "tool": bound.tool}
    found = tx.run("held_requests", **values, limit=MAX_COMPARED).fetchall()
    for held in readable("approvals", found, partial(held_from, tx.sealing)):
        other = held.approval.binding
        if (other.kind, other.arguments_digest, other.scope) == (bound.kind, bound.arguments_digest, bound.scope):
            return held
    return None


def tasks_of_equal_calls(tx: Transaction, request: ApprovalRequest) -> list[str]:
    """Return the tasks of pending calls with the same binding, which one approval would cover too."""
    bound = request.binding
    values = {"caller": request.counted_as, "server": bound.server, "tool": bound.tool, "limit": MAX_COMPARED}
    rows = tx.run("held_calls", **values).fetchall()
    found = readable("approvals", rows, lambda row: (approval_from(row[0]).binding, row[1]))
    return [task_id for other, task_id in found if _call_of(other) == _call_of(bound)]


def _call_of(bound: approvals.Binding) -> tuple[str, ...]:
    return bound.principal, bound.scope, bound.kind.value, bound.arguments_digest, bound.definition_digest


class TakeHeld(Operation[bool], frozen=True):
    """Return whether this gateway notifies approvers of a held request without a task: it owns it, or the owner is dead."""

    approval_id: str

    @property
    def locks(self) -> Locks:
        return Locks(approvals=(self.approval_id,))

    def run(self, tx: Transaction) -> bool:
        if not tx.is_shared:
            return True
        return tx.run("own_approval", id=self.approval_id, owner=tx.ownership.owner).rowcount == 1


def withdraw(tx: Transaction, approval_id: str, reason: str = approvals.CANCELLED) -> None:
    """Withdraw an approval whose call has ended or was requested again."""
    held = find(tx, approval_id)
    if held is None:
        return
    workflow = Workflow(held.approval.workflow)
    outcome = approvals.apply(held.approval, workflow, approvals.Withdrawn(tx.now_ms, reason))
    if outcome.approval is not held.approval:
        moved = replace(held, approval=outcome.approval)
        update(tx, moved)
        RecordAudit(entry_of(moved, _event(held, moved), tx.now_ms)).run(tx)


class ChangeHeld(OwnerOperation[Decided | UnknownApproval], frozen=True):
    """Apply a vote, a withdrawal, a drift or an expiry. `at_ms` of the event is replaced by the store's time, or by `not_before_ms`
    if that is later (a deadline that has passed by the monotonic clock)."""

    approval_id: str
    workflow: Workflow
    event: approvals.ApprovalEvent
    not_before_ms: int = 0
    then: Consequence = after_approval
    audit: AuditOf | None = None

    @property
    def locks(self) -> Locks:
        return Locks(approvals=(self.approval_id,))

    def run(self, tx: Transaction) -> Decided | UnknownApproval:
        held = find(tx, self.approval_id)
        if held is None:
            return UnknownApproval(self.approval_id)
        event = replace(self.event, at_ms=max(self.not_before_ms, tx.now_ms))
        outcome = approvals.apply(held.approval, self.workflow, event)
        if outcome.approval is held.approval:
            return Decided(outcome, held)
        moved = replace(held, approval=outcome.approval)
        update(tx, moved)
        RecordAudit(
            self.audit(moved, tx.now_ms) if self.audit is not None else entry_of(moved, _event(held, moved), tx.now_ms)
        ).run(tx)
        if moved.approval.state is held.approval.state:
            return Decided(outcome, moved)
        if moved.task_id is None:
            record_held_end(tx, moved.approval)
        return Decided(outcome, moved, _consequence(tx, moved, self.then))


def _consequence(tx: Transaction, held: HeldCall, then: Consequence) -> Change | None:
    """Apply the decision to its task, at whichever gateway it runs, unless the task has changed or waits for a newer approval."""
    if held.task_id is None:
        return None
    task = load_any_task(tx, held.task_id)
    if not isinstance(task, Task) or task.approval_id != held.approval.id:
        return None
    event = then(task, held.approval)
    if event is None:
        return None
    after = apply(task, event, tx.now_ms)
    return Change(after, move_task(tx, task, after, None)) if isinstance(after, Task) else None


def _event(before: HeldCall, after: HeldCall) -> str:
    same = before.approval.state is after.approval.state
    return "approval_vote" if same else f"approval_{after.approval.state.value}"


def entry_of(held: HeldCall, event: str, at_ms: int) -> AuditEntry:
    """Return the audit entry for a change of an approval."""
    approval = held.approval
    return AuditEntry(
        at_ms=at_ms,
        event=event,
        principal=approval.binding.principal,
        scope=approval.binding.scope,
        server=approval.binding.server,
        name=approval.binding.tool,
        kind=approval.binding.kind.value,
        arguments_digest=approval.binding.arguments_digest,
        rule=approval.rule,
        decision=approval.state.value,
        policy_revision=approval.binding.policy_revision,
        approval_id=approval.id,
        approvers=tuple(vote.approver for vote in approval.votes),
        reason=approval.reason,
        task_id=held.task_id or "",
    )


class FindHeld(Query[HeldCall | None], frozen=True):
    approval_id: str

    def run(self, reader: Reader) -> HeldCall | None:
        row = reader.run("find_approval", id=self.approval_id).fetchone()
        return None if row is None else held_from(reader.sealing, row)


class HeldCalls(Query[HeldPage], frozen=True):
    """Held calls, oldest first: all of them, or those of the callers of a tenant. Raises ValueError for an invalid cursor."""

    open_only: bool = True
    after: str | None = None
    limit: int = 50
    tenant: str | None = None

    def run(self, reader: Reader) -> HeldPage:
        query = "page_of_open_approvals" if self.open_only else "page_of_approvals"
        asked_ms, last = _held_cursor(self.after)
        begins = None if self.tenant is None else principal_name(self.tenant, "")
        found = reader.run(query, asked_ms=asked_ms, id=last, limit=self.limit + 1, begins=begins).fetchall()
        held = tuple(readable("approvals", found[: self.limit], partial(held_from, reader.sealing)))
        more = bool(held) and len(found) > self.limit
        return HeldPage(held, f"{held[-1].approval.asked_at_ms}:{held[-1].approval.id}" if more else None)


class PendingCount(Query[int], frozen=True):
    """The number of open approvals: all of them, or those of one caller or of all callers of a tenant."""

    caller: str | None = None
    tenant: str | None = None

    def run(self, reader: Reader) -> int:
        if self.tenant is not None:
            return int(reader.run("count_pending_of_tenant", tenant=self.tenant).fetchone()[0])
        if self.caller is None:
            return int(reader.run("count_pending").fetchone()[0])
        return int(reader.run("count_pending_of_caller", caller=self.caller).fetchone()[0])


class LastApproved(Query[HeldCall | None], frozen=True):
    """The latest approved call of this tool, to show what differs from it."""

    server: str
    tool: str
    before: str | None = None

    def run(self, reader: Reader) -> HeldCall | None:
        values = {"server": self.server, "tool": self.tool, "before": self.before}
        row = reader.run("last_given_approval", **values).fetchone()
        return None if row is None else held_from(reader.sealing, row)


def _held_cursor(after: str | None) -> tuple[int, str]:
    """Raises ValueError for an invalid cursor."""
    if after is None:
        return -1, ""
    asked_ms, _, last = after.partition(":")
    if not (asked_ms.isascii() and asked_ms.isdigit()) or len(asked_ms) > 15:
        raise ValueError("invalid cursor")
    return int(asked_ms), last
