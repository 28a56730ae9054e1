"""The recheck of an approved call before it is sent: is it still the call that was approved, under rules that still allow it?

Runs in the transaction that records the intent to dispatch. Everything in the binding is compared with the present
state. A policy that was reloaded since is evaluated again, and votes of people who may no longer decide do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from taskgate.core.governance.approval import (
    APPROVAL_REJECTED,
    Approval,
    State,
    as_of,
    still_approved,
)
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.decision import Denied, NeedsApproval, Settled, describe
from taskgate.core.governance.workflow import OnTimeout, Workflow, covers

POLICY_DRIFT = "policy_drift"
REQUEST_DRIFT = "request_drift"


class CallAtDispatch(msgspec.Struct, frozen=True):
    """The call as it would be sent now. `decision` is the gates' decision under the current policy, with the actual
    arguments.
    """

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


class Cleared(msgspec.Struct, frozen=True):
    """Send it, and mark the approval as used in the same transaction."""


class Stopped(msgspec.Struct, frozen=True):
    """Do not send a byte. `reason` may be shown to the caller; it names no rule and no argument."""

    error_type: str
    reason: str
    detail: str = ""
    """What decides now, and because of which facts: for operators, the audit log and approvers."""


Recheck: TypeAlias = Cleared | Stopped


def recheck(approval: Approval, present: CallAtDispatch) -> Recheck:
    """Return whether the approved call may be sent now."""
    workflow = present.workflow if present.workflow is not None else Workflow(approval.workflow)
    current = as_of(approval, workflow, present.now_ms)
    if current.state is not State.APPROVED:
        return Stopped(current.error_type or APPROVAL_REJECTED, f"The approval is {current.state.value}.")
    changed = _what_changed(approval, present)
    if changed is not None:
        return Stopped(REQUEST_DRIFT, f"The {changed} changed after the call was approved.", f"the {changed} changed")
    return _by_policy(current, present)


def _what_changed(approval: Approval, present: CallAtDispatch) -> str | None:
    bound = approval.binding
    pairs = (
        ("caller", bound.principal, present.principal),
        ("server", bound.server, present.server),
        ("tool", bound.tool, present.tool),
        ("arguments", bound.arguments_digest, present.arguments_digest),
        ("tool's definition", bound.definition_digest, present.definition_digest),
    )
    return next((what for what, then, now in pairs if then != now), None)


def _by_policy(approval: Approval, present: CallAtDispatch) -> Recheck:
    """Only a stricter decision than the one that was approved stops the call."""
    now = f"now: {describe(present.decision)}"
    if isinstance(present.decision, Denied):
        return Stopped(POLICY_DRIFT, "The policy changed after the call was approved and no longer allows it.", now)
    if isinstance(present.decision, NeedsApproval) and not covers(approval.workflow, present.decision.workflow):
        text = "The policy changed after the call was approved and now requires other approvers."
        return Stopped(POLICY_DRIFT, text, now)
    if present.workflow is None:
        text = f"there is no approval workflow {approval.workflow} any more"
        return Stopped(POLICY_DRIFT, "The approval workflow was removed after the call was approved.", text)
    if _approved_by_timeout(approval):
        if present.workflow.on_timeout is OnTimeout.APPROVE:
            return Cleared()
        text = f"the workflow {approval.workflow} no longer approves on timeout"
        return Stopped(POLICY_DRIFT, "The approval workflow no longer approves on timeout.", text)
    if not still_approved(approval, present.workflow, present.approvers):
        text = "A person who approved the call may no longer do so, or more approvals are required now."
        return Stopped(POLICY_DRIFT, text, f"the approvals that count now are not enough for {approval.workflow}")
    return Cleared()


def _approved_by_timeout(approval: Approval) -> bool:
    return approval.decided_at_ms == approval.binding.expires_at_ms
