"""What the gates can say about a call, standing permissions that say it in advance, and the recheck before a byte goes upstream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TypeAlias, assert_never

from taskgate.core.governance.approval import (
    APPROVAL_REJECTED,
    Approval,
    Approver,
    Binding,
    OnTimeout,
    State,
    Verdict,
    Workflow,
    approvals_that_count,
    as_of,
    count_people,
)
from taskgate.core.identity import tenant_of


class Gate(StrEnum):
    """Which stage spoke."""

    VISIBILITY = "visibility"
    RULES = "rules"
    POLICY = "policy"
    APPROVAL = "approval"


class Action(StrEnum):
    """What a rule, a record or the defaults may ask for."""

    FORWARD = "forward"
    APPROVE = "approve"
    DENY = "deny"
    POLICY = "policy"


class Strictness(IntEnum):
    """The order in which answers narrow. A later stage may move up, never down."""

    FORWARD = 0
    POLICY = 1
    APPROVE = 2
    DENY = 3


class Note(StrEnum):
    """What production would have done where development let it pass."""

    WOULD_DENY = "WOULD_DENY"
    WOULD_HOLD = "WOULD_HOLD"


@dataclass(frozen=True, slots=True)
class Forward:
    """Send it. `note` is set only in the development profile."""

    rule: str
    note: Note | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """Hold it until the workflow's people have agreed. `reason` is the operator's note for approvers."""

    workflow: str
    rule: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NeedsPolicy:
    """Ask the policy engine. `at_least_approve` names the workflow that must agree even if the policy says forward."""

    policy_id: str
    workflow: str | None
    rule: str
    at_least_approve: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """Do not send it. `reason` is for the log only; it may name rules."""

    gate: Gate
    reason: str
    error_type: str
    rule: str = ""


Decision: TypeAlias = Forward | NeedsApproval | NeedsPolicy | Denied
Settled: TypeAlias = Forward | NeedsApproval | Denied


def strictness(decision: Decision) -> Strictness:
    """Where a decision stands in the order of narrowing."""
    match decision:
        case Forward():
            return Strictness.FORWARD
        case NeedsPolicy(at_least_approve=None):
            return Strictness.POLICY
        case NeedsPolicy() | NeedsApproval():
            return Strictness.APPROVE
        case Denied():
            return Strictness.DENY
        case _:
            assert_never(decision)


def action_of(decision: Decision) -> Action:
    """The action a decision amounts to, as the annotation matrix and the log lines name it."""
    match decision:
        case Forward():
            return Action.FORWARD
        case NeedsPolicy():
            return Action.POLICY
        case NeedsApproval():
            return Action.APPROVE
        case Denied():
            return Action.DENY
        case _:
            assert_never(decision)


def describe(decision: Decision) -> str:
    """The decision in one line, for operators: logs and `taskgate policy test`. Callers never see it."""
    match decision:
        case Forward(rule, note, reason):
            return f"forward ({rule})" if note is None else f"forward, {note.value}: {reason} ({rule})"
        case NeedsApproval(workflow, rule, _):
            return f"hold for the approval workflow {workflow} ({rule})"
        case NeedsPolicy(policy_id, _, rule, None):
            return f"ask the policy{f' as {policy_id}' if policy_id else ''} ({rule})"
        case NeedsPolicy(_, _, rule, workflow):
            return f"ask the policy, and at least the approval workflow {workflow} ({rule})"
        case Denied(gate, reason, _, rule):
            return f"deny at {gate.value}: {reason}{f' ({rule})' if rule else ''}"
        case _:
            assert_never(decision)


# Standing permissions: "approve this tool, or exactly these arguments, for this scope for an hour".
#
# A grant is born from an approval that people really gave, is bound to the tool's definition, and covers only callers
# of the same scope and tenant (and, unless said otherwise, the same principal). It never widens: a denied tool stays
# denied, and a workflow that the grant was not given under is asked as usual.

MAX_GRANT_MS = 24 * 3_600_000
DEFAULT_GRANT_MS = 3_600_000


class NoGrant(ValueError):
    """A grant that cannot be given; the message says why."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One standing permission. `arguments_digest` None covers any arguments, `principal` None the whole scope."""

    id: str
    workflow: str
    server: str
    tool: str
    scope: str
    principal: str | None
    arguments_digest: str | None
    definition_digest: str
    granted_at_ms: int
    until_ms: int
    granted_by: tuple[str, ...]
    approval_id: str
    revoked_at_ms: int | None = None
    revoked_by: str = ""
    tenant: str = ""
    """Of whoever the approved call was from: the whole scope means those of the same tenant."""


def grant_from(
    approval: Approval,
    grant_id: str,
    now_ms: int,
    *,
    for_ms: int = DEFAULT_GRANT_MS,
    longest_ms: int = MAX_GRANT_MS,
    exact_arguments: bool = False,
    whole_scope: bool = False,
) -> Grant:
    """A grant from an approval that has just been given by as many people as its workflow asks for."""
    if approval.state not in (State.APPROVED, State.USED):
        raise NoGrant("only an approved call can be turned into a grant")
    if not 0 < for_ms <= min(longest_ms, MAX_GRANT_MS):
        raise NoGrant("a grant may not last that long")
    people = tuple(dict.fromkeys(vote.approver for vote in approval.votes if vote.verdict is Verdict.APPROVE))
    if not people:
        raise NoGrant("nobody approved this call; silence gives no grant")
    bound = approval.binding
    return Grant(
        id=grant_id,
        workflow=approval.workflow,
        server=bound.server,
        tool=bound.tool,
        scope=bound.scope,
        principal=None if whole_scope else bound.principal,
        arguments_digest=bound.arguments_digest if exact_arguments else None,
        definition_digest=bound.definition_digest,
        granted_at_ms=now_ms,
        until_ms=now_ms + for_ms,
        granted_by=people,
        approval_id=approval.id,
        tenant=tenant_of(bound.principal),
    )


def covers(grant: Grant, workflow: Workflow, wanted: Binding, approvers: Mapping[str, Approver], now_ms: int) -> bool:
    """Whether the grant answers for this call under this workflow, with the people of today."""
    return (
        grant.revoked_at_ms is None
        and grant.granted_at_ms <= now_ms < grant.until_ms
        and grant.workflow == workflow.name
        and (grant.server, grant.tool, grant.scope) == (wanted.server, wanted.tool, wanted.scope)
        and _is_for(grant, wanted.principal)
        and grant.arguments_digest in (None, wanted.arguments_digest)
        and grant.definition_digest == wanted.definition_digest
        and _people_still_count(grant, workflow, wanted, approvers)
    )


def _is_for(grant: Grant, principal: str) -> bool:
    return grant.tenant == tenant_of(principal) if grant.principal is None else grant.principal == principal


def covering(
    grants: Iterable[Grant], workflow: Workflow, wanted: Binding, approvers: Mapping[str, Approver], now_ms: int
) -> Grant | None:
    """The first grant that answers for this call."""
    return next((grant for grant in grants if covers(grant, workflow, wanted, approvers, now_ms)), None)


def revoke(grant: Grant, by: str, now_ms: int) -> Grant:
    """End a grant now; revoking twice keeps the first."""
    if grant.revoked_at_ms is not None:
        return grant
    return replace(grant, revoked_at_ms=now_ms, revoked_by=by)


def _people_still_count(grant: Grant, workflow: Workflow, wanted: Binding, approvers: Mapping[str, Approver]) -> bool:
    # Judged against *this* requester: nobody's grant may let them run their own call.
    known = (approvers[person] for person in grant.granted_by if person in approvers)
    return count_people(workflow, wanted, known) >= workflow.approvals_needed


# The recheck before a byte goes upstream: is what people agreed to still what would be sent, and would they still be
# asked?
#
# Called in the transaction that records the intent to dispatch. Everything in the binding is compared with the present;
# a policy that was reloaded meanwhile is asked again, and people who lost the right to decide no longer count.

POLICY_DRIFT = "policy_drift"
REQUEST_DRIFT = "request_drift"


@dataclass(frozen=True, slots=True)
class Present:
    """How things stand at dispatch. `decision` is the gates' answer under the policy of now, with the actual
    arguments."""

    principal: str
    server: str
    tool: str
    arguments_digest: str
    definition_digest: str
    policy_revision: str
    decision: Settled
    workflow: Workflow | None
    approvers: Mapping[str, Approver]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """Send it, and mark the approval as used in the same transaction."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Do not send a byte. `reason` is safe for the caller; it names no rule and no argument."""

    error_type: str
    reason: str


Recheck: TypeAlias = Cleared | Stopped


def recheck(approval: Approval, present: Present) -> Recheck:
    """Whether the approved call may be dispatched now."""
    workflow = present.workflow if present.workflow is not None else Workflow(approval.workflow)
    current = as_of(approval, workflow, present.now_ms)
    if current.state is not State.APPROVED:
        return Stopped(current.error_type or APPROVAL_REJECTED, f"The approval is {current.state.value}.")
    changed = _what_changed(approval, present)
    if changed is not None:
        return Stopped(REQUEST_DRIFT, f"The {changed} changed after the call was approved.")
    return _by_policy(current, present)


def _what_changed(approval: Approval, present: Present) -> str | None:
    bound = approval.binding
    pairs = (
        ("caller", bound.principal, present.principal),
        ("server", bound.server, present.server),
        ("tool", bound.tool, present.tool),
        ("arguments", bound.arguments_digest, present.arguments_digest),
        ("tool's definition", bound.definition_digest, present.definition_digest),
    )
    return next((what for what, then, now in pairs if then != now), None)


def _by_policy(approval: Approval, present: Present) -> Recheck:
    if isinstance(present.decision, Denied):
        return Stopped(POLICY_DRIFT, "The policy changed after the call was approved and no longer allows it.")
    if isinstance(present.decision, NeedsApproval) and present.decision.workflow != approval.workflow:
        return Stopped(POLICY_DRIFT, "The policy changed after the call was approved and now asks other people.")
    if present.workflow is None:
        return Stopped(POLICY_DRIFT, "The approval workflow was removed after the call was approved.")
    if _approved_by_silence(approval):
        if present.workflow.on_timeout is OnTimeout.APPROVE:
            return Cleared()
        return Stopped(POLICY_DRIFT, "The approval workflow no longer approves by silence.")
    if approvals_that_count(approval, present.workflow, present.approvers) < present.workflow.approvals_needed:
        return Stopped(
            POLICY_DRIFT, "Somebody who approved the call may no longer do so, or more people must agree now."
        )
    return Cleared()


def _approved_by_silence(approval: Approval) -> bool:
    return approval.decided_at_ms == approval.binding.expires_at_ms
