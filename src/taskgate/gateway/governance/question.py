"""The question that is put to people about one call: what it is bound to, and how it stands in the audit log."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.governance.decision import NeedsApproval
from taskgate.core.governance.digest import AmbiguousJson, parse_strict
from taskgate.core.governance.pipeline import workflow_named
from taskgate.gateway.governance.evaluate import Asked, binding_of
from taskgate.gateway.plan.plan import Plan
from taskgate.ports.approval_store import ApprovalRequest

MAX_AUDITED_ARGUMENTS: Final = 16_384


def question(
    plan: Plan, approval_id: str, asked: Asked, needs: NeedsApproval, caller: str, *, wire_name: str, limit_key: str
) -> ApprovalRequest:
    """Bound to everything that people will agree to."""
    return ApprovalRequest(
        approval_id,
        workflow_named(plan.gates, needs.workflow),
        f"{needs.rule}: {needs.reason}" if needs.reason else needs.rule,
        binding_of(plan, asked),
        caller,
        wire_name,
        asked.arguments,
        asked.scope_revision,
        limit_key,
    )


def audit_of(plan: Plan, asked: ApprovalRequest, task_id: str = "") -> AuditEntry:
    """The row that says what was asked, with its arguments as approvers see them."""
    redacted = plan.governing.redaction(asked.workflow.name).redact(value_of(asked.arguments))
    small = len(asked.arguments) <= MAX_AUDITED_ARGUMENTS
    bound = asked.binding
    return AuditEntry(
        0,
        "approval_asked",
        bound.principal,
        bound.scope,
        bound.server,
        bound.tool,
        bound.kind.value,
        bound.arguments_digest,
        redacted.value if small else None,
        redacted.hidden,
        asked.rule,
        "held",
        revisions(bound.policy_revision, asked.scope_revision),
        asked.id,
        task_id=task_id,
    )


def value_of(arguments: bytes) -> Any:
    """The arguments as a value to show; what cannot be read strictly is shown as the text it is."""
    try:
        return parse_strict(arguments)
    except AmbiguousJson:
        return arguments.decode("utf-8", "replace")
