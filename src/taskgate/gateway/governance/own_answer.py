"""The caller's own elicitation as a place to ask: a link to the approval page, or a form where its own word counts.

A form is shown only if the workflow has the channel *and* says `self_approval: true`: then the operator trusts the person at the
caller with their own calls. A link may be shown to anybody; the page behind it lets only approvers decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskgate.core.governance.approval import Approver, Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.governance.digest import AmbiguousJson, parse_strict
from taskgate.core.governance.redaction import compile_redaction
from taskgate.gateway.governance.recheck import as_own_approver
from taskgate.gateway.plan.plan import Elicits, Plan
from taskgate.ports.approval_store import ApprovalRequest, HeldCall

_SHOWN = 4_000


@dataclass(frozen=True, slots=True)
class Word:
    who: Approver
    verdict: Verdict
    reason: str


def may_answer_itself(plan: Plan, approval: ApprovalRequest) -> bool:
    workflow = approval.workflow
    fits = workflow.self_approval and plan.governing.elicits.get(workflow.name) is Elicits.FORM
    # What does not fit into the form cannot be approved there.
    return fits and len(_shown(approval)) <= _SHOWN


def form_of(approval: ApprovalRequest) -> dict[str, Any]:
    """The question as a form in the client."""
    bound = approval.binding
    message = (
        f"Approve this call of {bound.tool} on {bound.server}?\n\n{excerpt(_shown(approval), _SHOWN).text}\n\n"
        f"Asked for by the rule {approval.rule}."
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
    """The question as a link to the approval page."""
    return {
        "mode": "url",
        "message": f"The call of {approval.wire_name} waits for an approval. An approver can decide on this page.",
        "url": url,
    }


def own_answer(plan: Plan, held: HeldCall, answer: Mapping[str, Any]) -> Word | None:
    """What the person at the caller said in the form, if their word may count."""
    content = answer.get("content")
    if answer.get("action") != "accept" or not isinstance(content, Mapping):
        return None
    name = held.approval.workflow
    workflow = plan.gates.workflows.get(name)
    if workflow is None or not workflow.self_approval or plan.governing.elicits.get(name) is not Elicits.FORM:
        return None
    said, reason = content.get("decision"), content.get("reason")
    if said not in (Verdict.APPROVE.value, Verdict.DENY.value):
        return None
    who = as_own_approver(plan, held.approval.binding.principal)
    return Word(who, Verdict(said), reason if isinstance(reason, str) else "")


def _shown(approval: ApprovalRequest) -> str:
    try:
        value = parse_strict(approval.arguments)
    except AmbiguousJson:
        return "x" * (_SHOWN + 1)
    return show_json(compile_redaction(approval.workflow.redact_fields).redact(value).value)
