"""What a person may say about a held call, and the words they hear back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from taskgate.core.governance.approval import Approval, Refusal, State, Verdict, Workflow
from taskgate.core.governance.grants import DEFAULT_GRANT_MS, Grant
from taskgate.ports.approval_store import HeldCall


@dataclass(frozen=True, slots=True)
class GrantWish:
    """ "And the next ones too": what an approver may add to a yes."""

    for_ms: int = DEFAULT_GRANT_MS
    exact_arguments: bool = False
    whole_scope: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of a person's word. `refusal` is empty when it counted; `text` is for that person."""

    text: str
    refusal: str = ""
    held: HeldCall | None = None
    grant: Grant | None = None


_WHY: Final[Mapping[Refusal, str]] = {
    Refusal.ALREADY_VOTED: "You have approved this call already. Somebody else must agree too.",
    Refusal.NOT_AN_APPROVER: "You may not decide on this call.",
    Refusal.OWN_CALL: "You asked for this call yourself, so somebody else must decide. `taskgate token new NAME` makes a "
    "token for an approver; `self_approval: true` in the workflow lets people decide on their own calls.",
    Refusal.EXPIRED: "Too late: nobody had decided in time, so the call was refused.",
    Refusal.NOT_APPROVED: "This call is not approved.",
    Refusal.NOT_DUE: "It is not due yet.",
}


def refused_text(why: Refusal, approval: Approval) -> str:
    if why is not Refusal.ALREADY_DECIDED:
        return _WHY[why]
    by = ", ".join(dict.fromkeys(vote.approver for vote in approval.votes))
    state = "approved and sent" if approval.state is State.USED else approval.state.value
    return f"This call is {state} already{f' (by {by})' if by else ''}."


def accepted_text(approval: Approval, workflow: Workflow, grant: Grant | None) -> str:
    if approval.state is State.DENIED:
        return "Denied. The tool will not run."
    if approval.state is State.OPEN:
        yes = sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE)
        return f"Noted: {yes} of {workflow.approvals_needed} approvals."
    return "Approved." if grant is None else f"Approved, and granted until it is revoked or over (grant {grant.id})."
