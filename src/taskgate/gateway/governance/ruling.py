"""The text that an approver is shown after a vote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core.governance.approval import Approval, Refusal, State, Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.caller import OPERATOR

STARTS_NOW: Final = "It runs now."
WAITS_FOR_CALLER: Final = "It runs when its caller polls the task again."
_WHY: Final[Mapping[Refusal, str]] = {
    Refusal.ALREADY_VOTED: "You have approved this call already. Another approver must agree too.",
    Refusal.EXPIRED: "The approval has expired and the call was refused. Its caller can send it again.",
    Refusal.NOT_APPROVED: "This call is not approved.",
    Refusal.NOT_DUE: "It is not due yet.",
}
_ANOTHER_APPROVER: Final = "`taskgate tokens new NAME --role approver` creates a token for one"


def refused_text(why: Refusal, approval: Approval, approver: Approver, page: str) -> str:
    """Return why a vote did not count, and what to do instead. `page` is the URL of the approval page."""
    if why is Refusal.OWN_CALL:
        allow = f"`self_approval: true` in the workflow {approval.workflow} lets people decide on their own calls."
        if approver.id == OPERATOR:
            # An agent may hold the operator's token, but it cannot have logged in.
            return (
                "This call was made with the operator's token, which therefore cannot approve it. Log in with the link that "
                f"`taskgate approvals login` prints, and decide at {page}; or let another approver decide "
                f"({_ANOTHER_APPROVER}). {allow}"
            )
        return f"You made this call, so another approver must decide ({_ANOTHER_APPROVER}). {allow}"
    if why is Refusal.NOT_AN_APPROVER:
        return (
            f"You are not an approver of the workflow {approval.workflow}. Its approvers, and the operator, can decide at "
            f"{page}. {_ANOTHER_APPROVER}; `approvers` in the workflow lists who may decide."
        )
    if why is Refusal.LOGIN_TOO_OLD:
        return f"Approving this call needs a fresh login: log in again at {page}, and decide there."
    if why is not Refusal.ALREADY_DECIDED:
        return _WHY[why]
    by = ", ".join(dict.fromkeys(vote.approver for vote in approval.votes))
    state = "approved and sent" if approval.state is State.USED else approval.state.value
    return f"This call is {state} already{f' (by {by})' if by else ''}."


def accepted_text(approval: Approval, workflow: Workflow, grant: Grant | None, *, starts: bool | None) -> str:
    """Return the text for a vote that counted. `starts`: whether the task starts now; None if it is no task."""
    if approval.state is State.DENIED:
        return "Denied. The tool will not run."
    if approval.state is State.OPEN:
        yes = sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE)
        return f"Noted: {yes} of {workflow.approvals_needed} approvals."
    text = "Approved." if grant is None else f"Approved, and granted until revoked or expired (grant {grant.id})."
    if starts is None:
        return text
    return f"{text} {STARTS_NOW if starts else WAITS_FOR_CALLER}"
