"""The elicitation that shows a caller the approval request for its own call, and how the reply is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.governance.held_call import ApprovalRequest, HeldCall
from taskgate.core.redaction.fields import compile_redaction
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.text.homoglyphs import escape_homoglyphs
from taskgate.gateway.governance.pre_send_recheck import as_own_approver
from taskgate.gateway.governing import Elicits
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.strict_arguments import strict_value

_SHOWN = 4_000


class OwnVote(msgspec.Struct, frozen=True):
    approver: Approver
    verdict: Verdict
    reason: str


def may_answer_itself(plan: Plan, approval: ApprovalRequest) -> bool:
    """Return whether the caller may decide on its own call: `self_approval` with a form in which all arguments fit."""
    workflow = approval.workflow
    fits = workflow.self_approval and plan.governing.elicits.get(workflow.name) is Elicits.FORM
    # Arguments that do not fit into the form cannot be approved there.
    return fits and len(_shown(approval)) <= _SHOWN


def form_of(approval: ApprovalRequest) -> dict[str, Any]:
    """Return the approval request as a form elicitation."""
    bound = approval.binding
    message = (
        f"Approve this call of {bound.tool} on {bound.server}?\n\n{excerpt(_shown(approval), _SHOWN).text}\n\n"
        f"The rule {approval.rule} requires the approval."
    )
    return {
        "mode": "form",
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
                "reason": {"type": "string", "title": "Reason", "maxLength": 500},
            },
            "required": ["decision"],
        },
    }


def url_of(approval: ApprovalRequest, url: str) -> dict[str, Any]:
    """Return the approval request as a URL elicitation."""
    return {
        "mode": "url",
        "message": f"The call of {approval.wire_name} waits for an approval. An approver can decide on this page.",
        "url": url,
    }


def own_vote(plan: Plan, held: HeldCall, answer: Mapping[str, Any]) -> OwnVote | None:
    """Return the vote in a form reply, or None if the reply is no valid vote."""
    content = answer.get("content")
    if answer.get("action") != "accept" or not isinstance(content, Mapping):
        return None
    name = held.approval.workflow
    workflow = plan.gates.workflows.get(name)
    if workflow is None or not workflow.self_approval or plan.governing.elicits.get(name) is not Elicits.FORM:
        return None
    decision, reason = content.get("decision"), content.get("reason")
    if decision not in (Verdict.APPROVE.value, Verdict.DENY.value):
        return None
    approver = as_own_approver(plan, held.approval.binding.principal)
    return OwnVote(approver, Verdict(decision), reason if isinstance(reason, str) else "")


def _shown(approval: ApprovalRequest) -> str:
    try:
        value = strict_value(approval.arguments)
    except AmbiguousJson:
        return "x" * (_SHOWN + 1)
    text = show_json(compile_redaction(approval.workflow.redact_fields).redact(value).value)
    return escape_homoglyphs(text) if len(text) <= _SHOWN else text
