"""Operations on approvals, each in one transaction. The rules are in `core.governance.approval`."""

from __future__ import annotations

from dataclasses import replace as with_changes
from functools import partial
from typing import Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance import approval as approvals
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.caller import ANONYMOUS_LIMIT
from taskgate.core.identity.identity import tenant_of
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import apply
from taskgate.ports.approval_store import (
    ApprovalRequest,
    AuditOf,
    Consequence,
    Decided,
    HeldCall,
    PendingLimits,
    StoredReceipt,
    UnknownApproval,
)
from taskgate.ports.store_answers import Change, LimitHolder, StaleOwner, TooManyOpen
from taskgate.ports.topics import APPROVALS, TASKS
from taskgate.store.operations.approval_rows import approval_columns, approval_from, held_from
from taskgate.store.operations.audit import record_audit
from taskgate.store.operations.history import record_held_end
from taskgate.store.operations.task_changes import load_any_task, move_task
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

MAX_COMPARED: Final = 200
"""How many pending requests of a caller for the same tool are compared with a new one."""


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
    return HeldCall(approval, request.counted_as, request.wire_name, request.arguments, task_id)


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


def hold(
    tx: Transaction, request: ApprovalRequest, pending: PendingLimits, audit: AuditEntry | None, *, joins: bool
) -> HeldCall | TooManyOpen:
    """Open an approval for a call without a task.

    `joins`: return the principal's pending or unused approval of the same request, if there is one.
    """
    if joins and (equal := _equal_request(tx, request.binding)) is not None:
        return equal
    if (refused := over_limit(tx, request.counted_as, pending)) is not None:
        return refused
    held = new_held_call(tx, request, None)
    insert(tx, held)
    take_held(tx, held.approval.id)
    record_audit(tx, audit if audit is not None else entry_of(held, "approval_asked", tx.now_ms))
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


def take_held(tx: Transaction, approval_id: str) -> bool:
    """Return whether this gateway notifies approvers of a held request without a task: it owns it, or the owner is dead."""
    if not tx.is_shared:
        return True
    return tx.run("own_approval", id=approval_id, owner=tx.ownership.owner).rowcount == 1


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
        record_audit(tx, entry_of(moved, _event(held, moved), tx.now_ms))


def change_held(
    tx: Transaction,
    approval_id: str,
    workflow: Workflow,
    event: approvals.ApprovalEvent,
    *,
    not_before_ms: int,
    then: Consequence,
    audit: AuditOf | None,
) -> Decided | UnknownApproval | StaleOwner:
    held = find(tx, approval_id)
    if held is None:
        return UnknownApproval(approval_id)
    outcome = approvals.apply(held.approval, workflow, with_changes(event, at_ms=max(not_before_ms, tx.now_ms)))
    if outcome.approval is held.approval:
        return Decided(outcome, held)
    moved = replace(held, approval=outcome.approval)
    update(tx, moved)
    record_audit(tx, audit(moved, tx.now_ms) if audit is not None else entry_of(moved, _event(held, moved), tx.now_ms))
    if moved.approval.state is held.approval.state:
        return Decided(outcome, moved)
    if moved.task_id is None:
        record_held_end(tx, moved.approval)
    return Decided(outcome, moved, _consequence(tx, moved, then))


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


def put_receipt(tx: Transaction, receipt: StoredReceipt) -> None:
    values = {name: getattr(receipt, name) for name in receipt.__struct_fields__}
    tx.run("put_receipt", **values)


def drop_receipt(tx: Transaction, approval_id: str, place: str) -> None:
    tx.run("drop_receipt", approval_id=approval_id, place=place)
