"""Withdrawing an approval: by whom, until when, and what is kept of it."""

from __future__ import annotations

import pytest
from tests.core.governance.test_approvals import ANN, BOB, TWO, WORKFLOW, no, opened, yes

from taskgate.core.governance.approval import (
    Approval,
    ApprovalEvent,
    CallDispatched,
    Changed,
    DecisionRefused,
    Recalled,
    Refusal,
    State,
    Withdrawn,
    apply,
)
from taskgate.core.governance.workflow import Workflow


def after(*events: ApprovalEvent, workflow: Workflow = WORKFLOW) -> Approval:
    approval = opened(workflow)
    for event in events:
        approval = apply(approval, workflow, event).approval
    return approval


def test_recalled_approval_is_open_with_the_votes_of_others_and_its_deadline() -> None:
    approved = after(yes(ANN), yes(BOB, 1_200), workflow=TWO)
    assert approved.state is State.APPROVED
    outcome = apply(approved, TWO, Recalled(BOB, 1_300))
    assert isinstance(outcome, Changed)
    assert outcome.ended is False
    reopened = outcome.approval
    assert (reopened.state, [vote.approver for vote in reopened.votes]) == (State.OPEN, ["ann"])
    assert (reopened.decided_at_ms, reopened.valid_until_ms, reopened.reason) == (None, None, "")
    assert reopened.binding == approved.binding
    again = apply(reopened, TWO, yes(BOB, 1_400)).approval
    assert again.state is State.APPROVED


@pytest.mark.parametrize(
    "events",
    [(), (no(ANN),), (yes(ANN), CallDispatched(1_200)), (yes(ANN), Withdrawn(1_200))],
    ids=["open", "denied", "used", "cancelled"],
)
def test_only_an_unused_approval_is_recalled(events: tuple[ApprovalEvent, ...]) -> None:
    approval = after(*events)
    outcome = apply(approval, WORKFLOW, Recalled(ANN, 1_300))
    assert outcome == DecisionRefused(Refusal.ALREADY_DECIDED, approval)


def test_only_an_approver_recalls_the_own_approval() -> None:
    approved = after(yes(ANN))
    assert apply(approved, WORKFLOW, Recalled(BOB, 1_300)) == DecisionRefused(Refusal.NOT_AN_APPROVER, approved)


def test_approval_past_its_deadline_is_not_recalled() -> None:
    approved = after(yes(ANN))
    deadline = approved.binding.expires_at_ms
    assert apply(approved, WORKFLOW, Recalled(ANN, deadline)) == DecisionRefused(Refusal.EXPIRED, approved)
    assert isinstance(apply(approved, WORKFLOW, Recalled(ANN, deadline - 1)), Changed)
