"""What the store does to approvals, grants and pins, each in one transaction. The rules are in `core.governance`."""

from __future__ import annotations

from dataclasses import replace as with_changes
from typing import Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance import approval as approvals
from taskgate.core.governance.grants import Grant, revoke
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
from taskgate.ports.topics import APPROVALS, GRANTS, PINS, TASKS
from taskgate.store.operations import rows
from taskgate.store.operations.rows import load_anybodys_task, move_task, record_audit
from taskgate.store.transaction import Transaction

MOST_ALIKE: Final = 200
"""So many requests of a caller for one thing are looked at for the same one."""


def asked(tx: Transaction, request: ApprovalRequest, task_id: str | None) -> HeldCall:
    """An approval that is about to be opened, with its deadline by the store's clock."""
    approval = approvals.open_approval(
        request.id, request.workflow, request.rule, request.binding, tx.now_ms, unvalidated=request.unvalidated
    )
    return HeldCall(approval, request.counted_as, request.wire_name, request.arguments, task_id)


def put_new(tx: Transaction, held: HeldCall) -> None:
    """Announced with its task: whoever may decide it looks at the pages of some gateway, not of this one."""
    tx.announce(APPROVALS, held.approval.id)
    if held.task_id is not None:
        tx.announce(TASKS, held.task_id)
    tx.run("insert_approval", **rows.approval_columns(tx.sealing, held))


def find(tx: Transaction, approval_id: str) -> HeldCall | None:
    row = tx.run("find_approval", id=approval_id).fetchone()
    return None if row is None else rows.held_from(tx.sealing, row)


def put(tx: Transaction, held: HeldCall) -> None:
    tx.announce(APPROVALS, held.approval.id)
    columns = rows.approval_columns(tx.sealing, held)
    wanted = ("id", "state", "due_ms", "decided_ms", "doc")
    tx.run("update_approval", **{name: columns[name] for name in wanted})


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
    """`joins`: where the same request of the same principal waits for an answer, or has one that was not used, it is that one."""
    if joins and (before := _asked_before(tx, request.binding)) is not None:
        return before
    if (refused := over_limit(tx, request.counted_as, pending)) is not None:
        return refused
    held = asked(tx, request, None)
    put_new(tx, held)
    take_held(tx, held.approval.id)
    record_audit(tx, audit if audit is not None else entry_of(held, "approval_asked", tx.now_ms))
    return held


def _asked_before(tx: Transaction, bound: approvals.Binding) -> HeldCall | None:
    wanted = {"principal": bound.principal, "server": bound.server, "tool": bound.tool}
    for row in tx.run("held_requests", **wanted, limit=MOST_ALIKE).fetchall():
        held = rows.held_from(tx.sealing, row)
        asked = held.approval.binding
        if (asked.kind, asked.arguments_digest, asked.scope) == (bound.kind, bound.arguments_digest, bound.scope):
            return held
    return None


def held_alike(tx: Transaction, request: ApprovalRequest) -> list[str]:
    """The tasks of calls that wait for people and that a yes would bind to the same as this one."""
    bound = request.binding
    wanted = {"caller": request.counted_as, "server": bound.server, "tool": bound.tool, "limit": MOST_ALIKE}
    found = [(rows.approval_from(doc).binding, task_id) for doc, task_id in tx.run("held_calls", **wanted).fetchall()]
    return [task_id for other, task_id in found if _call_of(other) == _call_of(bound)]


def _call_of(bound: approvals.Binding) -> tuple[str, ...]:
    return bound.principal, bound.scope, bound.kind.value, bound.arguments_digest, bound.definition_digest


def take_held(tx: Transaction, approval_id: str) -> bool:
    """Whether people hear of a held request without a task from us, because it is ours or its gateway is dead."""
    if not tx.is_shared:
        return True
    return tx.run("own_approval", id=approval_id, owner=tx.ownership.owner).rowcount == 1


def withdraw(tx: Transaction, approval_id: str, reason: str = approvals.CANCELLED) -> None:
    """The call is over or asked about anew, so there is nothing to decide any more."""
    held = find(tx, approval_id)
    if held is None:
        return
    workflow = Workflow(held.approval.workflow)
    outcome = approvals.apply(held.approval, workflow, approvals.Withdrawn(tx.now_ms, reason))
    if outcome.approval is not held.approval:
        moved = replace(held, approval=outcome.approval)
        put(tx, moved)
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
    put(tx, moved)
    record_audit(tx, audit(moved, tx.now_ms) if audit is not None else entry_of(moved, _event(held, moved), tx.now_ms))
    if moved.approval.state is held.approval.state:
        return Decided(outcome, moved)
    return Decided(outcome, moved, _consequence(tx, moved, then))


def _consequence(tx: Transaction, held: HeldCall, then: Consequence) -> Change | None:
    """What it means for the task, whoever runs it, unless the task has moved on or waits for a newer approval."""
    if held.task_id is None:
        return None
    task = load_anybodys_task(tx, held.task_id)
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
    """The audit entry of a change of an approval."""
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


# What the store does to standing grants, each inside one transaction. The rules are in `core.governance.decision`.


def give_grant(tx: Transaction, grant: Grant, audit: AuditEntry | None) -> None:
    _put_grant(tx, grant, audit, "grant_given")


def take_back_grant(tx: Transaction, grant_id: str, by: str, audit: AuditEntry | None) -> Grant | None:
    """The grant as it is after this, or None if there is none of this name."""
    row = tx.run("find_grant", id=grant_id).fetchone()
    if row is None:
        return None
    before = rows.grant_from(row[0])
    after = revoke(before, by, tx.now_ms)
    if after is not before:
        _put_grant(tx, after, audit, "grant_revoked")
    return after


def standing_grants(tx: Transaction) -> tuple[Grant, ...]:
    """The grants that stand at this moment, whoever changed them."""
    return tuple(rows.grant_from(doc) for (doc,) in tx.run("live_grants", now_ms=tx.now_ms))


def _put_grant(tx: Transaction, grant: Grant, audit: AuditEntry | None, event: str) -> None:
    tx.announce(GRANTS, grant.id)
    tx.run("put_grant", **rows.grant_columns(grant))
    record_audit(tx, audit if audit is not None else _grant_entry(grant, event, tx.now_ms))


def _grant_entry(grant: Grant, event: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        event=event,
        principal=grant.principal or "",
        scope=grant.scope,
        server=grant.server,
        name=grant.tool,
        arguments_digest=grant.arguments_digest or "",
        approval_id=grant.approval_id,
        approvers=grant.granted_by,
        reason=f"revoked by {grant.revoked_by}" if grant.revoked_at_ms is not None else "",
    )


# What the store does to pinned definitions, each inside one transaction.


def put_pin(tx: Transaction, server: str, tool: str, pin: Pin, *, by: str, audit: AuditEntry | None) -> None:
    tx.announce(PINS, f"{server}/{tool}")
    tx.run("put_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by=by, at_ms=tx.now_ms)
    if audit is not None:
        record_audit(tx, audit)


def put_first_pin(tx: Transaction, server: str, tool: str, pin: Pin, audit: AuditEntry | None) -> Pin:
    """Pin a definition that is seen for the first time. Of several gateways that see one, the first wins: its pin is returned."""
    if tx.run("put_first_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by="", at_ms=tx.now_ms).rowcount == 1:
        tx.announce(PINS, f"{server}/{tool}")
        if audit is not None:
            record_audit(tx, audit)
        return pin
    return rows.pin_from(*tx.run("find_pin", server=server, tool=tool).fetchone()).pin
