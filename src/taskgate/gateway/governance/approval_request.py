"""Build the approval request for one call, and its audit entry."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.pipeline import workflow_named
from taskgate.core.strict_json import AmbiguousJson
from taskgate.gateway.governance.evaluate import binding_of
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.strict_arguments import strict_value

MAX_AUDITED_ARGUMENTS: Final = 16_384


def question(
    plan: Plan, approval_id: str, call: GatedCall, needs: NeedsApproval, caller: str, *, wire_name: str, limit_key: str
) -> ApprovalRequest:
    """Return the request, bound to everything that approvers agree to."""
    return ApprovalRequest(
        id=approval_id,
        workflow=workflow_named(plan.gates, needs.workflow),
        rule=explained(needs),
        binding=binding_of(plan, call),
        caller=caller,
        wire_name=wire_name,
        arguments=call.arguments,
        scope_revision=call.scope_revision,
        limit_key=limit_key,
    )


def explained(needs: NeedsApproval) -> str:
    """Return the rule that holds a call, with its conditions and the operator's note: for approvers and the audit log."""
    rule = f"{needs.rule} because {needs.because}" if needs.because else needs.rule
    return f"{rule}: {needs.reason}" if needs.reason else rule


def audit_of(plan: Plan, request: ApprovalRequest, task_id: str = "") -> AuditEntry:
    """Return the audit entry of the request, with the arguments as approvers see them."""
    redacted = plan.governing.redaction(request.workflow.name).redact(value_of(request.arguments))
    small = len(request.arguments) <= MAX_AUDITED_ARGUMENTS
    bound = request.binding
    return AuditEntry(
        at_ms=0,
        event="approval_asked",
        principal=bound.principal,
        scope=bound.scope,
        server=bound.server,
        name=bound.tool,
        kind=bound.kind.value,
        arguments_digest=bound.arguments_digest,
        arguments=redacted.value if small else None,
        hidden=redacted.hidden,
        rule=request.rule,
        decision="held",
        policy_revision=revisions(bound.policy_revision, request.scope_revision),
        approval_id=request.id,
        task_id=task_id,
    )


def value_of(arguments: bytes) -> Any:
    """Return the arguments as a value to display. Ambiguous JSON is returned as text."""
    try:
        return strict_value(arguments)
    except AmbiguousJson:
        return arguments.decode("utf-8", "replace")
